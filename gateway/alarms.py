"""Calls back what is not over after a time, with one timer of the loop for all of the same delay.

Nearly every request ends long before its limit, and a timer of its own costs it as much as the
head of its answer. Of what has the same delay, what began first is due first: a row of them needs
one timer, for its first.
"""

import asyncio
from collections.abc import Callable
from itertools import takewhile

__all__ = ["Alarms", "Row"]

Ring = Callable[[], None]


class Row:
    """What is due one same delay after it began.

    Args:
        loop: calls back.
        delay_s: the delay.
    """

    __slots__ = ("_delay_s", "_due_s", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._due_s: dict[Ring, float] = {}  # the first is due first
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due_s)

    def add(self, ring: Ring) -> None:
        """Call ``ring`` after the delay, unless it is discarded before."""
        self._due_s[ring] = self._loop.time() + self._delay_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._delay_s, self._look)

    def discard(self, ring: Ring) -> None:
        """It is over, or has rung."""
        self._due_s.pop(ring, None)

    def _look(self) -> None:
        """Ring what is due, and sleep until the next is; the timer rests when there is none."""
        self._timer, now = None, self._loop.time()
        due = [ring for ring, _ in takewhile(lambda one: one[1] <= now, self._due_s.items())]
        try:
            for ring in due:  # one may discard another
                if self._due_s.pop(ring, None) is not None:
                    ring()
        finally:
            self._sleep(now)

    def _sleep(self, now: float) -> None:
        """Until the first is due, whatever was added or has failed in the meantime."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for next_s in self._due_s.values():
            self._timer = self._loop.call_later(max(0.0, next_s - now), self._look)
            break


class Alarms:
    """The rows of one loop, by their delay; as many as delays are configured."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rows: dict[float, Row] = {}

    def row(self, delay_s: float) -> Row:
        """What is due ``delay_s`` seconds after it began."""
        found = self._rows.get(delay_s)
        if found is None:
            found = self._rows[delay_s] = Row(self._loop, delay_s)
        return found
