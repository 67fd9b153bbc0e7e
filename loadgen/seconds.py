"""Turns a run's requests and samples into one row a second, and joins the runs of a stratum.

A second holds what fell into it: what was planned, ended, refused or failed in it, the tokens that
came, the worst that a gauge showed. A second in which nobody looked has no value: absent, not
zero. Pure: no I/O, no clock.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from loadgen.record import Outcome, RequestRecord

__all__ = ["GAUGES", "Gauge", "counts", "gauge", "largest"]

Row = Mapping[str, Any]
Line = dict[int, float]
Lines = dict[str, Line]
REFUSED = frozenset({Outcome.REJECTED, Outcome.EXPIRED})


@dataclass(frozen=True, slots=True)
class Gauge:
    """Something that is looked at every second.

    Args:
        title: what it is, for a reader.
        unit: of its values.
        source: whose rows hold it: client, gateway or engine.
        key: its name there.
        kind: by-class, plain, engines (their sum) or counter (their sum since the start).
    """

    title: str
    unit: str
    source: str
    key: str
    kind: str


GAUGES = (
    Gauge(
        "oldest request without an answer", "seconds", "client", "oldest_unanswered_s", "by-class"
    ),
    Gauge(
        "oldest request waiting in the gateway", "seconds", "gateway", "oldest_age_s", "by-class"
    ),
    Gauge("requests waiting in the gateway", "requests", "gateway", "queue_depth", "by-class"),
    Gauge("requests running on the engines", "requests", "engine", "running", "engines"),
    Gauge("requests waiting in the engines", "requests", "engine", "waiting", "engines"),
    Gauge("KV cache in use, fullest engine", "share", "engine", "kv_usage", "plain"),
    Gauge("preemptions since the start", "preemptions", "engine", "preemptions_total", "counter"),
    Gauge(
        "the client's own lateness: dispatch", "milliseconds", "client", "dispatch_lag_ms", "plain"
    ),
    Gauge(
        "the client's own lateness: event loop", "milliseconds", "client", "loop_lag_ms", "plain"
    ),
    Gauge("the client's processor time", "share of a core", "client", "cpu_share", "plain"),
)


def _second(row: Row) -> int:
    return math.floor(float(row["t_s"]))


def _keep_largest(line: Line, second: int, value: float) -> None:
    line[second] = max(line.get(second, -math.inf), value)


def _plain(rows: Iterable[Row], key: str) -> Lines:
    line: Line = {}
    for row in rows:
        _keep_largest(line, _second(row), row[key])
    return {"": line}


def _by_class(rows: Iterable[Row], key: str) -> Lines:
    lines: Lines = {}
    for row in rows:
        told = row[key] if isinstance(row[key], Mapping) else {"": row[key]}
        for name, value in told.items():
            _keep_largest(lines.setdefault(name, {}), _second(row), value)
    return lines


def _added(lines: Iterable[Line]) -> Line:
    total: Counter[int] = Counter()
    for line in lines:
        total.update(line)
    return dict(total)


def _per_engine(rows: Sequence[Row]) -> list[list[Row]]:
    numbers = sorted({row["engine"] for row in rows})
    return [[row for row in rows if row["engine"] == n] for n in numbers]


def _engines(rows: Sequence[Row], key: str) -> Lines:
    return {"": _added(_plain(own, key)[""] for own in _per_engine(rows))}


def _risen(rows: Sequence[Row], key: str) -> Line:
    """A counter's rise since its first row; a fall is a restart and begins again from zero."""
    line, total = {_second(rows[0]): 0.0}, 0.0
    for before, after in pairwise(rows):
        a, b = before[key], after[key]
        total += b - a if b >= a else b
        line[_second(after)] = total
    return line


def _counter(rows: Sequence[Row], key: str) -> Lines:
    return {"": _added(_risen(own, key) for own in _per_engine(rows))}


KINDS: Mapping[str, Callable[[Sequence[Row], str], Lines]] = {
    "plain": _plain,
    "by-class": _by_class,
    "engines": _engines,
    "counter": _counter,
}


def gauge(samples: Sequence[Row], wanted: Gauge) -> Lines:
    """Return the values per second, by class (or "" where there is one line); {} if none."""
    rows = [s for s in samples if s.get("source") == wanted.source and wanted.key in s]
    lines = KINDS[wanted.kind](rows, wanted.key) if rows else {}
    return {name: line for name, line in lines.items() if line}


def largest(runs: Iterable[Mapping[str, Mapping[int, float]]]) -> Lines:
    """Join several runs: in every second the largest of them."""
    joined: Lines = {}
    for lines in runs:
        for name, line in lines.items():
            own = joined.setdefault(name, {})
            for second, value in line.items():
                _keep_largest(own, second, value)
    return joined


def _at(us: int | None) -> int | None:
    return None if us is None else us // 1_000_000


def _ended(record: RequestRecord) -> str:
    if record.outcome is Outcome.OK:
        return "ok"
    return "refused" if record.outcome in REFUSED else "failed"


def _in_flight(records: Sequence[RequestRecord], last: int) -> Line:
    change: Counter[int] = Counter()
    for r in records:
        if r.dispatched_us is not None:
            change[r.dispatched_us // 1_000_000] += 1
            end = last if r.last_byte_us is None else r.last_byte_us // 1_000_000
            change[end + 1] -= 1
    line, now = {}, 0
    for second in range(last + 1):
        now += change[second]
        line[second] = float(now)
    return line


def counts(records: Sequence[RequestRecord]) -> dict[str, Line]:
    """Return per second how many were offered, ok, refused, failed and in flight, and the tokens.

    A failure whose end was never seen counts in the second for which it was planned. In flight is
    every request that was on its way at any moment of the second. Output is in stream events.
    """
    found: dict[str, Counter[int]] = {k: Counter() for k in ("offered", "ok", "refused", "failed")}
    events: Counter[int] = Counter()
    for r in records:
        found["offered"][r.planned_us // 1_000_000] += 1
        end = _at(r.last_byte_us)
        found[_ended(r)][r.planned_us // 1_000_000 if end is None else end] += 1
        events.update(us // 1_000_000 for us in r.event_us or ())
    last = max((s for line in (*found.values(), events) for s in line), default=0)
    lines = {
        name: {s: float(line[s]) for s in range(last + 1)}
        for name, line in {**found, "output": events}.items()
    }
    return {**lines, "in_flight": _in_flight(records, last)}
