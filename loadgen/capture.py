"""Holds what the wire showed of one request, as raw as it came.

Filled in while measuring, read afterwards. Pure: no I/O, no clock.
"""

from dataclasses import dataclass, field

__all__ = ["Capture"]


@dataclass(slots=True)
class Capture:
    """What the wire showed of one request. Times are `time.monotonic_ns`; None is not seen."""

    seq: int
    asked_ns: int | None = None
    sent_ns: int | None = None
    head_ns: int | None = None
    end_ns: int | None = None
    status: int | None = None
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    reads: list[tuple[int, int]] = field(default_factory=list)
    complete: bool = False
    fault: str | None = None
