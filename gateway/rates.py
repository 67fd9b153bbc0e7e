"""Learns from what was seen: how fast a queue is served, an engine prefills, how long answers are.

Each forgets what is old. Pure: no I/O, no clock.
"""

import math
from bisect import bisect_left, insort
from collections import deque

__all__ = ["RecentP95", "ServiceRate", "learnt_prefill_rate", "unstreamed_prefill_s"]

RATE_MEMORY_S = 10.0
RECENT_VALUES = 200
VALUES_FOR_P95 = 59
PREFILL_MEMORY_TOKENS = 200_000.0
PREFILL_LEAST_TOKENS = 256
UNARY_PREFILL_FACTOR = 1.25
UNARY_PREFILL_GRACE_S = 0.020


class ServiceRate:
    """Cost served per second while somebody waited, forgetting over about ten seconds.

    Only time with a non-empty queue counts, so an idle gateway knows nothing rather than
    something wrong; a gap as long as a stall makes it forget everything. What goes in the moment
    in which it came has waited for nothing and tells nothing: hours of it, at no seconds, would
    drown the first minute of an overload.

    ``last_sample_s`` is None until the queue has been served once; ``last_cost`` was served then.
    """

    __slots__ = ("_began_s", "_cost", "_mark_s", "_seconds", "last_cost", "last_sample_s")

    def __init__(self) -> None:
        self._cost = 0.0
        self._seconds = 0.0
        self._mark_s: float | None = None
        self._began_s: float | None = None
        self.last_cost = 0.0
        self.last_sample_s: float | None = None

    @property
    def counts(self) -> bool:
        """Whether time counts now."""
        return self._mark_s is not None

    def waiting(self, now: float) -> None:
        """The queue became non-empty."""
        if self._mark_s is None:
            self._mark_s = self._began_s = now

    def empty(self) -> None:
        """The queue emptied, or nothing can serve it: time stops counting."""
        self._mark_s = None

    def served(self, cost: float, now: float, stall_s: float) -> None:
        """``cost`` left a non-empty queue at ``now``."""
        if self._mark_s is None or now == self._began_s:
            return
        elapsed_s = now - self._mark_s
        self.last_cost = cost
        self._mark_s = now
        if elapsed_s > stall_s:
            self._cost = self._seconds = 0.0
            self.last_sample_s = -math.inf
            return
        keep = math.exp(-elapsed_s / RATE_MEMORY_S)
        self._cost = self._cost * keep + cost
        self._seconds = self._seconds * keep + elapsed_s
        self.last_sample_s = now

    def per_second(self, now: float, stale_s: float) -> float | None:
        """The rate, or None while nothing recent enough is known.

        The time since the last dispatch counts while somebody waits: where little is known, what
        was learnt in a calm hour would hold until the next dispatch, and that may take seconds.
        """
        if self.last_sample_s is None or now - self.last_sample_s > stale_s:
            return None
        if self._seconds <= 0:
            return None
        waited_s = 0.0 if self._mark_s is None else max(0.0, now - self._mark_s)
        return self._cost / (self._seconds + waited_s)


class RecentP95:
    """The p95, by nearest rank, of the last 200 values; None until there are ``least`` of them."""

    __slots__ = ("_least", "_ranked", "_recent", "value")

    def __init__(self, least: int = VALUES_FOR_P95) -> None:
        self._least = least
        self._recent: deque[float] = deque()
        self._ranked: list[float] = []
        self.value: float | None = None

    def add(self, value: float) -> None:
        """Take one more value, and forget the oldest if there are too many."""
        if len(self._recent) == RECENT_VALUES:
            del self._ranked[bisect_left(self._ranked, self._recent.popleft())]
        self._recent.append(value)
        insort(self._ranked, value)
        if len(self._ranked) >= self._least:
            self.value = self._ranked[math.ceil(0.95 * len(self._ranked)) - 1]


def learnt_prefill_rate(rate: float, tokens: int, elapsed_s: float) -> float:
    """Tokens per second, after ``tokens`` were prefilled in ``elapsed_s``; few say nothing."""
    if tokens < PREFILL_LEAST_TOKENS or elapsed_s <= 0:
        return rate
    weight = min(1.0, tokens / PREFILL_MEMORY_TOKENS)
    return 1 / ((1 - weight) / rate + weight * elapsed_s / tokens)


def unstreamed_prefill_s(tokens: int, rate: float) -> float:
    """After how many seconds the prefill of an answer that shows no first byte counts as done."""
    return UNARY_PREFILL_FACTOR * tokens / rate + UNARY_PREFILL_GRACE_S
