"""What may end a relayed request before its answer does, and when its steps happened.

The caller may leave, a drain may reach its deadline (both an ``Ending``), or a time limit may
pass. A ``Watch`` turns each into the end of the exchange with the engine. The idle limit counts
what the relay calls progress, not bytes, because a dead engine may go on sending comments.
Seconds of one monotonic clock, which is handed in.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.alarms import Alarms
from gateway.domain import Outcome
from gateway.tallies import BOUNDS_S
from gateway.wire import Disconnected, Exchange, TimedOut

__all__ = ["Ending", "Timeline", "Timeouts", "Watch"]

PROGRESS_EVENTS = 64


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in seconds, from dispatch on.

    ``first_byte_s`` is for a stream's first data event or any other answer's head, ``idle_s``
    for the time between data events or between parts of a body, ``total_s`` for all of it. An
    engine sends the head of a non-streamed answer only when its text is complete.
    """

    first_byte_s: float
    idle_s: float
    total_s: float


@dataclass(slots=True)
class Timeline:
    """When things happened, in seconds of ``clock``; filled while the request runs.

    ``on_first_event`` is called once, when the first good data event of a stream arrives,
    ``on_progress`` with the number of data events each time that it has grown by 64.
    ``max_gap_s`` is the longest time between reads that brought data events, ``gaps`` how many
    of those times fall into each bucket of the metrics.
    """

    clock: Callable[[], float]
    on_first_event: Callable[[], None] | None = None
    on_progress: Callable[[int], None] | None = None
    dispatched_s: float | None = None
    first_event_s: float | None = None
    last_event_s: float | None = None
    max_gap_s: float = 0.0
    gaps: list[int] = field(default_factory=list)
    events: int = 0
    tells_at: int = PROGRESS_EVENTS
    ended_s: float | None = None

    def saw(self, events: int) -> float:
        """Note that the stream now stands at ``events`` data events; returns the time."""
        now = self.clock()
        last_s, self.last_event_s, self.events = self.last_event_s, now, events
        if last_s is None:
            self._began(now)
        else:
            gap_s = now - last_s
            self.gaps[bisect_left(BOUNDS_S, gap_s)] += 1
            self.max_gap_s = max(self.max_gap_s, gap_s)
        if events >= self.tells_at:
            self.tells_at = events - events % PROGRESS_EVENTS + PROGRESS_EVENTS
            if self.on_progress is not None:
                self.on_progress(events)
        return now

    def _began(self, now: float) -> None:
        self.first_event_s = now
        self.gaps = [0] * (len(BOUNDS_S) + 1)
        if self.on_first_event is not None:
            self.on_first_event()

    def broke(self) -> None:
        """The stream ended before its end: the silence before that was a stall too."""
        if self.last_event_s is not None:
            self.max_gap_s = max(self.max_gap_s, self.clock() - self.last_event_s)


class Ending:
    """Why a request must end before its answer does: set once, from outside.

    ``outcome`` is ``CLIENT_CANCELLED`` or ``DRAIN_TERMINATED`` once set, else ``None``.
    """

    __slots__ = ("_watchers", "outcome")

    def __init__(self) -> None:
        self._watchers: list[Callable[[], None]] = []
        self.outcome: Outcome | None = None

    def set(self, outcome: Outcome = Outcome.CLIENT_CANCELLED) -> None:
        """End the request. Only the first reason counts."""
        if self.outcome is None:
            self.outcome = outcome
            for watcher in list(self._watchers):
                watcher()

    def is_set(self) -> bool:
        """Whether the request must end."""
        return self.outcome is not None

    async def wait(self) -> None:
        """Return once the request must end."""
        if self.outcome is None:
            woken = asyncio.Event()
            self.watch(woken.set)
            try:
                await woken.wait()
            finally:
                self.unwatch(woken.set)

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` when the ending is set; at once if it is."""
        self._watchers.append(watcher)
        if self.outcome is not None:
            watcher()

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Forget ``watcher``."""
        self._watchers.remove(watcher)


class Watch:
    """Ends the exchange on an ``Ending`` or a time limit; looks again at each limit that it met.

    ``quiet_from_s``: since when the engine owes the next event or part; ``None`` before the
    first. ``delivering``: the caller is being sent to, so the silence may be its own.
    """

    __slots__ = (
        "_clock",
        "_exchange",
        "_first",
        "_gone",
        "_started_s",
        "_timeouts",
        "_timer",
        "delivering",
        "quiet_from_s",
    )

    def __init__(
        self,
        exchange: Exchange,
        gone: Ending,
        marks: Timeline,
        timeouts: Timeouts,
        alarms: Alarms,
    ) -> None:
        self._exchange, self._gone = exchange, gone
        self._clock, self._timeouts = marks.clock, timeouts
        self._started_s = marks.dispatched_s = marks.clock()
        self.quiet_from_s: float | None = None
        self.delivering = False
        self._timer: asyncio.TimerHandle | None = None  # once the first limit has been met
        self._first = alarms.row(min(timeouts.first_byte_s, timeouts.total_s))
        self._first.add(self._check)
        gone.watch(self._end)

    def close(self) -> None:
        """Stop watching."""
        self._disarm()
        self._gone.unwatch(self._end)

    def heard(self, now_s: float) -> None:
        """The engine has delivered, and the caller has taken it: the idle time starts anew."""
        first, self.quiet_from_s = self.quiet_from_s is None, now_s
        if first and self._timeouts.idle_s < self._timeouts.first_byte_s:
            self._disarm()
            self._check()

    def _disarm(self) -> None:
        self._first.discard(self._check)
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self._exchange.abort(Disconnected("ended from outside"))

    def _due(self) -> tuple[float, str]:
        limits = self._timeouts
        if self.delivering:
            phase = (self._clock() + limits.idle_s, "idle_timeout")
        elif self.quiet_from_s is None:
            phase = (self._started_s + limits.first_byte_s, "first_byte_timeout")
        else:
            phase = (self.quiet_from_s + limits.idle_s, "idle_timeout")
        return min(phase, (self._started_s + limits.total_s, "total_timeout"))

    def _check(self) -> None:
        due_s, word = self._due()
        left_s = due_s - self._clock()
        if left_s <= 0.0:
            self._exchange.abort(TimedOut(word))
        else:
            self._timer = self._exchange.loop.call_later(left_s, self._check)
