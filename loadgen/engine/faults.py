"""Decides when a simulated engine misbehaves on purpose.

A fault is written ``NAME=VALUE``, or ``NAME`` where it takes no value. Counts are data events of
all streams together, the role chunk of a chat stream included and ``[DONE]`` left out:

* ``kill-after=N``: the process dies like one killed by SIGKILL, right after the Nth event.
* ``hang-after=N``: after the Nth event the engine computes no further step; /health stays 200.
* ``error-event-after=N``: the stream that would send event N+1 sends an error event instead.
* ``busy-event=N``: the first N streams get status 200 and then one error event of code 503, as
  native admission answers when it loses a race.
* ``slow-start=S``: the port refuses connections for S seconds after the start.
* ``hang-scheduler``: requests are taken and /health stays 200, but no iteration ends: running
  requests get nothing more and the iteration counter stands still.
* ``reject``: every request is refused by 503, as native admission does above its limit.

A stream that has no event of its own for a fault in its midst (responses) breaks off instead.

Pure: no I/O, no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FaultPlan", "parse_faults"]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What goes wrong and when; None or 0 where nothing does."""

    kill_after: int | None = None
    hang_after: int | None = None
    error_event_after: int | None = None
    busy_event: int = 0
    slow_start_s: float = 0.0
    hang_scheduler: bool = False
    reject: bool = False

    @property
    def counts_events(self) -> bool:
        """Whether any fault depends on the number of events sent."""
        return any(
            value is not None
            for value in (self.kill_after, self.hang_after, self.error_event_after)
        )


def parse_faults(texts: Sequence[str]) -> FaultPlan:
    """Read ``--fault`` values.

    Raises:
        ValueError: A name is unknown, its value is not a number >= 0, or it takes none.
    """
    return FaultPlan(**dict(map(_parsed, texts)))


def _parsed(text: str) -> tuple[str, Any]:
    name, given, value = text.partition("=")
    if name in _SWITCHES:
        if given:
            raise ValueError(f"--fault {text}: {name} takes no value")
        return _SWITCHES[name], True
    if name not in _NUMBERS:
        raise ValueError(f"--fault {text}: unknown fault {name!r}; known are {_KNOWN}")
    try:
        number = float(value) if name == "slow-start" else int(value)
    except ValueError:
        raise ValueError(f"--fault {text}: {value!r} is not a number") from None
    if not 0 <= number < float("inf"):
        raise ValueError(f"--fault {text}: the value must not be negative or infinite")
    return _NUMBERS[name], number


_NUMBERS = {
    "kill-after": "kill_after",
    "hang-after": "hang_after",
    "error-event-after": "error_event_after",
    "busy-event": "busy_event",
    "slow-start": "slow_start_s",
}
_SWITCHES = {"hang-scheduler": "hang_scheduler", "reject": "reject"}
_KNOWN = ", ".join((*_NUMBERS, *_SWITCHES))
