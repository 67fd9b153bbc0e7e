"""Counts who of each size class is in prefill on one engine, against the cap of the class.

A request takes a seat of its class at dispatch and leaves it once: when its prefill ends, or when
it takes longer than was to be expected. The engine has all but finished it then, and the next
prompt of the class follows it without a step in between in which the engine computes no long
prompt. Pure: no I/O, no clock.
"""

from collections.abc import Iterable

from gateway.lease import Lease

__all__ = ["Seats"]


class Seats:
    """The seats of one engine.

    Args:
        caps: (size class, seats); a class that is absent has no cap, one with 0 never comes here.

    Attributes:
        taken: seats by size class.
        full: classes of which nobody can be seated now.
    """

    __slots__ = ("caps", "full", "taken")

    def __init__(self, caps: Iterable[tuple[str, int]]) -> None:
        self.taken: dict[str, int] = {}
        self.recap(caps)

    def recap(self, caps: Iterable[tuple[str, int]]) -> None:
        """Put other caps in force; who is seated stays."""
        self.caps = dict(caps)
        self._note_full()

    def take(self, size_class: str) -> None:
        """One more of this class is in prefill."""
        self._change(size_class, 1)

    def leave(self, lease: Lease) -> None:
        """Give the seat of a lease back; a second call changes nothing."""
        seated, lease.seated = lease.seated, False
        if seated:
            self._change(lease.flow.size_class, -1)

    def _change(self, size_class: str, more: int) -> None:
        self.taken[size_class] = self.taken.get(size_class, 0) + more
        if size_class in self.caps:
            self._note_full()

    def _note_full(self) -> None:
        found = self.taken.get
        self.full: list[str] = [s for s, cap in self.caps.items() if found(s, 0) >= cap]
