"""Decides when a simulated engine misbehaves on purpose.

A fault is written ``NAME=VALUE``. Counts are data events of all streams together, the role
chunk of a chat stream included and ``[DONE]`` left out:

* ``kill-after=N``: the process dies like one killed by SIGKILL, right after the Nth event.
* ``hang-after=N``: after the Nth event the engine computes no further step; /health stays 200.
* ``error-event-after=N``: the stream that would send event N+1 sends an error event instead.
* ``busy-event=N``: the first N streams get status 200 and then one error event of code 503, as
  native admission answers when it loses a race.
* ``slow-start=S``: the port refuses connections for S seconds after the start.

Pure: no I/O, no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FaultPlan", "parse_faults"]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What goes wrong and when; None or 0 where nothing does."""

    kill_after: int | None = None
    hang_after: int | None = None
    error_event_after: int | None = None
    busy_event: int = 0
    slow_start_s: float = 0.0

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
        ValueError: A name is unknown or its value is not a number >= 0.
    """
    values: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in _NAMES:
            raise ValueError(f"--fault {text}: unknown fault {name!r}; known are {_KNOWN}")
        try:
            number = float(value) if name == "slow-start" else int(value)
        except ValueError:
            raise ValueError(f"--fault {text}: {value!r} is not a number") from None
        if not 0 <= number < float("inf"):
            raise ValueError(f"--fault {text}: the value must not be negative or infinite")
        values[_NAMES[name]] = number
    return FaultPlan(**values)  # type: ignore[arg-type] # ints by name above, float for slow-start


_NAMES = {
    "kill-after": "kill_after",
    "hang-after": "hang_after",
    "error-event-after": "error_event_after",
    "busy-event": "busy_event",
    "slow-start": "slow_start_s",
}
_KNOWN = ", ".join(_NAMES)
