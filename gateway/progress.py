"""Decides whether an engine makes progress: a healthy answer does not show a hung scheduler.

An engine that has requests running and counts no further step for ``stall_s`` is stalled, until
a step is counted or nothing runs any more. Without the count of steps nothing is known, and
nobody is judged. Pure: no I/O, no clock.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Pace", "PriorityState", "Progress", "after_figures"]


class Pace(StrEnum):
    """What the count of steps says."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    ADVANCING = "advancing"
    STALLED = "stalled"


class PriorityState(StrEnum):
    """What is known of an engine's priorities; ``NOT_ASKED``: none are expected of it."""

    NOT_ASKED = "not_asked"
    VERIFIED = "verified"
    CONTRADICTED = "contradicted"
    UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class Progress:
    """``since_s`` is when the engine last stepped, or last had nothing to do."""

    pace: Pace = Pace.UNKNOWN
    iterations: float | None = None
    since_s: float = 0.0


def after_figures(
    before: Progress, iterations: float | None, running: float | None, now: float, stall_s: float
) -> Progress:
    """The next state from the two figures of a metrics page; ``None``: the page has no such."""
    if iterations is None or running is None:
        return Progress()
    if running <= 0:
        return Progress(Pace.IDLE, iterations, now)
    # A lower count is another process: it has begun anew.
    if before.iterations is None or iterations != before.iterations:
        return Progress(Pace.ADVANCING, iterations, now)
    if now - before.since_s >= stall_s:
        return Progress(Pace.STALLED, iterations, before.since_s)
    pace = Pace.STALLED if before.pace is Pace.STALLED else Pace.ADVANCING
    return Progress(pace, iterations, before.since_s)
