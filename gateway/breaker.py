"""Decides whether an engine's connections are trusted: the breaker of one engine.

Closed, it counts transport failures of relayed requests that follow one another within a window;
enough of them open it, and the engine gets nothing. After a time a good probe makes it half-open:
requests go again, few at first, and the first one decides. What an engine answers, errors
included, never opens it. Pure: no I/O, no clock.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["Breaker", "BreakerRule", "BreakerState", "after_failure", "after_probe", "after_reply"]


class BreakerState(StrEnum):
    """``OPEN`` keeps the engine out of use."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerRule:
    """``failures`` in a row within ``window_s`` open it, for at least ``open_s``."""

    failures: int = 5
    window_s: float = 10.0
    open_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """``since_s`` is the first failure in a row while closed, else when the state began."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    since_s: float = 0.0


def after_failure(before: Breaker, now: float, rule: BreakerRule) -> Breaker:
    """A relayed request failed in transport."""
    if before.state is BreakerState.OPEN:
        return before
    if before.state is BreakerState.HALF_OPEN:
        return Breaker(BreakerState.OPEN, before.failures + 1, now)
    if not before.failures or now - before.since_s > rule.window_s:
        before = Breaker(since_s=now)
    failures = before.failures + 1
    if failures >= rule.failures:
        return Breaker(BreakerState.OPEN, failures, now)
    return replace(before, failures=failures)


def after_reply(before: Breaker) -> Breaker:
    """The engine answered a relayed request, with whatever: what is not open closes.

    A late answer to what was sent before it opened proves nothing about now.
    """
    return before if before.state is BreakerState.OPEN else Breaker()


def after_probe(before: Breaker, now: float, rule: BreakerRule) -> Breaker:
    """The engine answered a health check well."""
    if before.state is BreakerState.OPEN and now - before.since_s >= rule.open_s:
        return Breaker(BreakerState.HALF_OPEN, before.failures, now)
    return before
