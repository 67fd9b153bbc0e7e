"""Keeps what is due when: numbered things with a time each, soonest first.

Things that end early are not searched for: their entries are skipped when they come up, and
swept out as soon as they outnumber the living. Pure: no I/O, no clock.
"""

import heapq
import math
from collections.abc import Callable, Iterable

__all__ = ["Agenda"]

SWEEP_ABOVE = 64


class Agenda:
    """A heap of (time, number).

    Args:
        lives: whether the thing of that number is still due.

    Attributes:
        soonest_s: nothing is due before; infinite while there is nothing.
    """

    def __init__(self, lives: Callable[[int], bool]) -> None:
        self._lives = lives
        self._heap: list[tuple[float, int]] = []
        self._living = 0
        self.soonest_s = math.inf

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at_s: float, number: int) -> None:
        """``number`` is due at ``at_s``."""
        heapq.heappush(self._heap, (at_s, number))
        self.soonest_s = self._heap[0][0]
        if len(self._heap) > 2 * self._living + SWEEP_ABOVE:
            self._heap = [entry for entry in self._heap if self._lives(entry[1])]
            heapq.heapify(self._heap)
            self._living = len(self._heap)
            self._look()

    def restart(self, entries: Iterable[tuple[float, int]]) -> None:
        """Forget everything and take these (time, number) instead."""
        self._heap = list(entries)
        heapq.heapify(self._heap)
        self._living = len(self._heap)
        self._look()

    def pop_due(self, now: float) -> int | None:
        """Take the soonest thing that is due by ``now`` and still lives; None if there is none."""
        while self.soonest_s <= now:
            number = heapq.heappop(self._heap)[1]
            self._look()
            if self._lives(number):
                return number
        return None

    def is_due(self, now: float) -> bool:
        """Whether something that still lives is due by ``now``."""
        due_s = self.next_s() if self.soonest_s <= now else None
        return due_s is not None and due_s <= now

    def next_s(self) -> float | None:
        """When the soonest living thing is due."""
        while self._heap and not self._lives(self._heap[0][1]):
            heapq.heappop(self._heap)
        self._look()
        return self._heap[0][0] if self._heap else None

    def _look(self) -> None:
        self.soonest_s = self._heap[0][0] if self._heap else math.inf
