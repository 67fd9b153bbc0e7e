"""Estimates how long the rest of a sweep takes from what was done so far.

All times are real seconds. Pure: no I/O, no clock.
"""

from dataclasses import dataclass

__all__ = ["Pace", "clock_text"]


@dataclass(slots=True)
class Pace:
    """Mean durations so far; until there are any, the plan's own figures."""

    run_s: float
    start_s: float
    runs: int = 0
    starts: int = 0
    runs_s: float = 0.0
    starts_s: float = 0.0

    def ran(self, seconds: float) -> None:
        """Count one run, reruns included."""
        self.runs, self.runs_s = self.runs + 1, self.runs_s + seconds

    def started(self, seconds: float) -> None:
        """Count one engine start, warm-up included."""
        self.starts, self.starts_s = self.starts + 1, self.starts_s + seconds

    def left_s(self, runs: int, starts: int) -> float:
        """Return the seconds that so many runs on so many starts take."""
        run_s = self.runs_s / self.runs if self.runs else self.run_s
        start_s = self.starts_s / self.starts if self.starts else self.start_s
        return runs * run_s + starts * start_s


def clock_text(seconds: float) -> str:
    """Write a duration as 1 h 05 min, 12 min or 40 s."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
