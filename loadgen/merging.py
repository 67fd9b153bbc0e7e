"""Joins what several replaying workers tell into the one story of their run.

Counts add up; lateness and load are the worst worker's, since each is judged by itself. A second is
told once every worker has told it or a later one, or has ended. Pure: no I/O, no clock.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

__all__ = ["Seconds", "interleaved"]

Row = dict[str, Any]
COUNTS = ("offered", "done", "refused", "failed", "in_flight")
OWN = ("dispatch_lag_ms", "loop_lag_ms", "cpu_share")


def _oldest(rows: Sequence[Row]) -> dict[str, float]:
    ages: dict[str, float] = {}
    for name, age in chain.from_iterable(row["oldest_unanswered_s"].items() for row in rows):
        ages[name] = max(age, ages.get(name, age))
    return ages


def _joined(told: Mapping[int, Row], latest: Mapping[int, Row]) -> Row:
    """One row: counts of all workers, conduct of those that told this second."""
    row: Row = {"kind": "second", "source": "client", "t_s": max(r["t_s"] for r in told.values())}
    for key in COUNTS:
        total: Counter[str] = Counter()
        for own in latest.values():
            total.update(own[key])
        row[key] = dict(total)
    row["oldest_unanswered_s"] = _oldest(list(latest.values()))
    row |= {key: max(r[key] for r in told.values()) for key in OWN}
    if len(latest) > 1:
        row["workers"] = [{"worker": n, **{key: told[n][key] for key in OWN}} for n in sorted(told)]
    return row


class Seconds:
    """Collects the workers' rows of every second.

    Args:
        workers: how many there are.
    """

    __slots__ = ("_ended", "_latest", "_pending", "_reached", "_workers")

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pending: dict[int, dict[int, Row]] = {}
        self._latest: dict[int, Row] = {}
        self._reached: dict[int, float] = {}
        self._ended: dict[int, Row] = {}

    def add(self, worker: int, row: Row) -> list[Row]:
        """Take a worker's row; return the joined rows that are now complete.

        A row without `tick` is the worker's last.
        """
        own = {k: v for k, v in row.items() if k != "tick"}
        self._latest[worker], self._reached[worker] = own, row.get("tick", math.inf)
        if "tick" in row:
            self._pending.setdefault(row["tick"], {})[worker] = own
        else:
            self._ended[worker] = own
        made = list(self._complete())
        if len(self._ended) == self._workers:
            made.append(_joined(self._ended, self._ended))
        return made

    def _complete(self) -> Iterator[Row]:
        if len(self._reached) < self._workers:
            return
        for tick in sorted(t for t in self._pending if t <= min(self._reached.values())):
            told = self._pending.pop(tick)
            yield _joined(told, {**self._latest, **told})


def interleaved(shares: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Put the workers' lines back into planned order: request i was worker i mod N's."""
    rounds = chain.from_iterable(zip_longest(*shares))
    return [line for line in rounds if line is not None]
