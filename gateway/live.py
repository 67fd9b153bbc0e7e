"""Decides what the last minute was like: rates and percentiles between two readings of counters.

And for how long what was shown to one who looks is shown to others.

A ``Reading`` is what all counters said at one moment; the difference of two is what happened
between. Percentiles come from a histogram's buckets, straight inside a bucket, so they are as
fine as the buckets are. Keys are (size class, service class). Pure: no I/O, no clock.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["SPAN_S", "Percentiles", "Reading", "Recent", "Shown", "Window", "percentile", "recent"]

SPAN_S = 60.0
STEP_S = 1.0
SHOWN_S = 0.5

Class = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters since the process began. ``outcomes`` are by class and outcome."""

    at_s: float
    outcomes: Mapping[tuple[str, str, str], float]
    ttft: Mapping[Class, Sequence[int]]
    gaps: Mapping[Class, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """How many there were, and seconds that half, 95 and 99 in a hundred did not exceed."""

    count: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class Recent:
    """What happened in ``span_s`` seconds: requests by outcome, times to first token, gaps."""

    span_s: float
    outcomes: Mapping[tuple[str, str, str], int]
    ttft: Mapping[Class, Percentiles]
    gaps: Mapping[Class, Percentiles]


class Window:
    """The readings of the last ``SPAN_S`` seconds and the one before, at most one a second."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()

    def __len__(self) -> int:
        return len(self._readings)

    def add(self, reading: Reading) -> None:
        """Keep a reading, unless one was kept less than a second before it."""
        kept = self._readings
        if kept and reading.at_s - kept[-1].at_s < STEP_S:
            return
        kept.append(reading)
        while len(kept) > 1 and kept[1].at_s <= reading.at_s - SPAN_S:
            kept.popleft()

    def first(self) -> Reading | None:
        """The reading that the present one is to be compared with."""
        return self._readings[0] if self._readings else None


class Shown:
    """The document that all who look are shown: making it keeps the loop for milliseconds."""

    def __init__(self) -> None:
        self._kept: tuple[float, Hashable, bytes] | None = None

    def get(self, state: Hashable, make: Callable[[], bytes], now: float) -> bytes:
        """The one that is there, unless it is ``SHOWN_S`` old or of another ``state``."""
        kept = self._kept
        if kept is None or now - kept[0] >= SHOWN_S or kept[1] != state:
            kept = self._kept = now, state, make()
        return kept[2]


def recent(before: Reading, after: Reading, bounds_s: Sequence[float]) -> Recent:
    """What happened between two readings. ``bounds_s``: the upper bounds of the buckets.

    What counts less than before has begun anew: a reload took its class away and brought it back.
    """
    ended = {key: _more(before.outcomes.get(key, 0), now) for key, now in after.outcomes.items()}
    return Recent(
        after.at_s - before.at_s,
        {key: count for key, count in ended.items() if count},
        _between(before.ttft, after.ttft, bounds_s),
        _between(before.gaps, after.gaps, bounds_s),
    )


def _more(before: float, after: float) -> int:
    return int(after if after < before else after - before)


def percentile(counts: Sequence[int], bounds_s: Sequence[float], share: float) -> float | None:
    """Seconds that ``share`` of the counted did not exceed; None if nothing was counted.

    What is above the last bound counts as that bound.
    """
    left, lower_s = share * sum(counts), 0.0
    if not any(counts):
        return None
    for count, upper_s in zip(counts, bounds_s, strict=False):
        if count and left <= count:
            return lower_s + (upper_s - lower_s) * left / count
        left -= count
        lower_s = upper_s
    return bounds_s[-1]


def _between(
    before: Mapping[Class, Sequence[int]],
    after: Mapping[Class, Sequence[int]],
    bounds_s: Sequence[float],
) -> dict[Class, Percentiles]:
    found = {}
    for key, counts in after.items():
        have = before.get(key) or [0] * len(counts)
        added = [now - then for now, then in zip(counts, have, strict=True)]
        if any(count < 0 for count in added):
            added = list(counts)
        if any(added):
            found[key] = _percentiles(added, bounds_s)
    return found


def _percentiles(counts: Sequence[int], bounds_s: Sequence[float]) -> Percentiles:
    p50_s, p95_s, p99_s = (percentile(counts, bounds_s, share) for share in (0.5, 0.95, 0.99))
    return Percentiles(sum(counts), p50_s, p95_s, p99_s)
