"""Counts who of each size class is in prefill on one engine, against the cap of the class.

A request takes a seat of its class at dispatch and leaves it once: when its prefill ends, or when
most of the time has passed that prefills of its class take there. The next prompt of the class is
then in the engine's queue when the first one is done; if it came only after the first token's way
to the gateway and back, every capped prompt would cost a step in which none is computed.

A quarter of what was seen may have been found in the engine's prefix cache three times over and
changes nothing: the pace is an upper quartile. Pure: no I/O, no clock.
"""

from collections.abc import Iterable

from gateway.lease import Lease
from gateway.rates import RecentQuantile

__all__ = ["Seats"]

# Chosen in virtual time on the step costs of an H200: at 0.8 short prompts wait as with seats kept
# until the first token, at 0.7 longer; at 0.9 long ones wait longer than at 0.8.
LEAVE_AT_SHARE = 0.8
PACE_SHARE, PACE_LEAST, PACE_MOST = 0.75, 8, 64


class Seats:
    """The seats of one engine.

    Args:
        caps: (size class, seats); a class that is absent has no cap, one with 0 never comes here.

    Attributes:
        taken: seats by size class.
        full: classes of which nobody can be seated now.
    """

    __slots__ = ("_paces", "caps", "full", "taken")

    def __init__(self, caps: Iterable[tuple[str, int]]) -> None:
        self.taken: dict[str, int] = {}
        self._paces: dict[str, RecentQuantile] = {}
        self.recap(caps)

    def recap(self, caps: Iterable[tuple[str, int]]) -> None:
        """Put other caps in force; who is seated stays."""
        self.caps = dict(caps)
        self._note_full()

    def forget(self) -> None:
        """Another engine, or another epoch of it: how fast it was says nothing."""
        self._paces.clear()

    def pace(self, size_class: str) -> float | None:
        """Seconds that a prompt token of this class takes, those ahead included, if known."""
        found = self._paces.get(size_class)
        return None if found is None else found.value

    def take(self, lease: Lease) -> None:
        """Seat a lease; a stream of a capped class gets a time to leave its seat."""
        size_class = lease.flow.size_class
        self._change(size_class, 1)
        if size_class in self.caps and lease.ticket.streamed:
            pace = self.pace(size_class)
            if pace is not None:
                tokens = lease.prefill_ahead_tokens + lease.ticket.prompt_tokens
                lease.prefill_until_s = lease.dispatched_s + LEAVE_AT_SHARE * tokens * pace

    def leave(self, lease: Lease) -> None:
        """Give the seat of a lease back; a second call changes nothing."""
        seated, lease.seated = lease.seated, False
        if seated:
            self._change(lease.flow.size_class, -1)

    def learn(self, lease: Lease, now: float) -> None:
        """The prefill of a streamed lease has ended now."""
        size_class = lease.flow.size_class
        if size_class in self.caps:
            tokens = lease.prefill_ahead_tokens + lease.ticket.prompt_tokens
            fresh = RecentQuantile(PACE_SHARE, PACE_LEAST, PACE_MOST)
            self._paces.setdefault(size_class, fresh).add((now - lease.dispatched_s) / tokens)

    def _change(self, size_class: str, more: int) -> None:
        self.taken[size_class] = self.taken.get(size_class, 0) + more
        if size_class in self.caps:
            self._note_full()

    def _note_full(self) -> None:
        found = self.taken.get
        self.full: list[str] = [s for s, cap in self.caps.items() if found(s, 0) >= cap]
