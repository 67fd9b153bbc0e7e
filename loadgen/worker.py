"""Replays one worker's share of a trace open-loop and keeps what the wire showed.

The schedule is absolute (start + planned offset), never relative sleeps, never gated by
completions. An alarm of the kernel wakes the loop; spinning before the instant would be a few
hundredths of a millisecond more exact and would keep arriving bytes from being stamped meanwhile.
What is unfinished at the drain deadline is recorded as such and then cancelled. A client that runs
into its own cap does not send, says so, and thereby invalidates the run.
"""

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.alarm import new_alarm
from loadgen.capture import Capture
from loadgen.job import Job
from loadgen.record import Outcome
from loadgen.records import Seen
from loadgen.stream import Pool
from loadgen.trace import Arrival

__all__ = ["Replay", "spare_connections"]

HEARTBEAT_S = 0.02
MAX_SPARE = 256
OPENING_NS = 500_000_000
# After a failure to connect ahead of need: hammering a server that is down would not help it.
RETRY_NS = 1_000_000_000
# Responses are kept whole until the end of the run; beyond this the client protects its machine.
MAX_HELD_BYTES = 2 << 30
Row = dict[str, Any]
Emit = Callable[[Row], None]


def spare_connections(job: Job, trace: Sequence[Arrival]) -> int:
    """Return how many idle connections to hold: the most arrivals while new ones are opened."""
    due = [job.due_ns(a) for a in trace]
    busiest = max((bisect_left(due, at + OPENING_NS) - n for n, at in enumerate(due)), default=0)
    return min(MAX_SPARE, busiest + 4)


@dataclass(slots=True)
class _Second:
    """What the client itself did since the last row."""

    wall_ns: int
    cpu_ns: int
    dispatch_lag_ns: int = 0
    loop_lag_ns: int = 0


@dataclass(slots=True)
class _Tally:
    """Running counts per class, for the eye only: outcomes are decided after the run."""

    offered: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def finish(self, name: str, capture: Capture) -> None:
        """Count a finished request by what its head shows."""
        if capture.status == 200 and capture.complete:
            self.done[name] += 1
        elif capture.status in {429, 503}:
            self.refused[name] += 1
        else:
            self.failed[name] += 1


class Replay:
    """One share of a replay on a running loop; `seen` is what came of it.

    Args:
        job: the run.
        trace: this worker's arrivals, in time order.
        requests: the bytes of each.
        pool: connections to the server.
        emit: takes one row per second of recorded time.
    """

    def __init__(
        self,
        job: Job,
        trace: Sequence[Arrival],
        requests: Mapping[int, bytes],
        pool: Pool,
        emit: Emit,
    ) -> None:
        self._job, self._trace, self._requests = job, trace, requests
        self._pool, self._emit = pool, emit
        self._loop = asyncio.get_running_loop()
        self._alarm = new_alarm(self._loop, self._dispatch)
        self._over = asyncio.Event()
        self._next = 0
        self._by_seq = {a.seq: a for a in trace}
        self._in_flight: dict[int, Capture] = {}
        self._tally = _Tally()
        self._second = _Second(0, 0)
        self._tick = 0
        self._held_bytes = 0
        self._beat_ns = 0
        self._beat: asyncio.TimerHandle | None = None
        self._refill: asyncio.Task[None] | None = None
        self._refill_from_ns = 0
        self._crash: BaseException | None = None
        self.t0_ns = 0
        self._captures: dict[int, Capture] = {}
        self._ended: dict[int, Outcome] = {}
        self.seen = Seen(self._captures, self._ended)
        self.refill_failures = 0
        self._loop.set_exception_handler(self._crashed)

    async def run(self, t0_ns: int) -> None:
        """Replay from an instant of the monotonic clock, until nothing flies or the deadline."""
        self.t0_ns = t0_ns
        self._second = _Second(t0_ns, time.process_time_ns())
        self._arm()
        self._beat_ns = time.monotonic_ns()
        self._beat = self._loop.call_later(HEARTBEAT_S, self._heartbeat)
        self._end_if_over()
        left_s = (t0_ns - time.monotonic_ns()) / 1e9 + self._job.limit_s
        with contextlib.suppress(TimeoutError):  # the deadline is one of the two ways to end
            await asyncio.wait_for(self._over.wait(), left_s)
        self._beat.cancel()  # the one that is due: each sets the next
        self._alarm.close()
        self._end_all(Outcome.UNFINISHED)
        self._emit(self._row(time.monotonic_ns()))
        if self._crash is not None:
            raise self._crash

    def _crashed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault in a callback would otherwise only be printed, and the run go on without it."""
        self._crash = context.get("exception") or RuntimeError(context["message"])
        self._over.set()

    def interrupt(self) -> None:
        """Stop on request: what is in flight is cancelled, the rest is never sent."""
        self._alarm.close()
        self._next = len(self._trace)
        self._end_all(Outcome.CANCELLED)
        self._over.set()

    def _end_all(self, outcome: Outcome) -> None:
        for seq in list(self._in_flight):
            self._end(seq, outcome)

    def _end(self, seq: int, outcome: Outcome) -> None:
        # A request whose connection is still being opened stays in flight: its first end counts.
        self._ended.setdefault(seq, outcome)
        self._pool.cancel(seq)

    def _arm(self) -> None:
        if self._next < len(self._trace):
            self._alarm.set(self.t0_ns + self._job.due_ns(self._trace[self._next]))

    def _dispatch(self) -> None:
        now_ns = time.monotonic_ns()
        while self._next < len(self._trace):
            arrival = self._trace[self._next]
            due_ns = self.t0_ns + self._job.due_ns(arrival)
            if due_ns > now_ns:
                break
            self._next += 1
            self._send(arrival)
            now_ns = time.monotonic_ns()
            self._second.dispatch_lag_ns = max(self._second.dispatch_lag_ns, now_ns - due_ns)
        self._arm()

    def _send(self, arrival: Arrival) -> None:
        self._tally.offered[arrival.size_class] += 1
        if self._pool.full or self._held_bytes > MAX_HELD_BYTES:
            self._ended[arrival.seq] = Outcome.NOT_SENT
            self._tally.failed[arrival.size_class] += 1
            self._end_if_over()
            return
        capture = Capture(arrival.seq)
        self._captures[arrival.seq] = self._in_flight[arrival.seq] = capture
        self._pool.send(capture, self._requests[arrival.seq], self._done)

    def _done(self, capture: Capture) -> None:
        self._in_flight.pop(capture.seq, None)
        self._held_bytes += len(capture.body)
        self._tally.finish(self._by_seq[capture.seq].size_class, capture)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._next == len(self._trace) and not self._in_flight:
            self._over.set()

    def _heartbeat(self) -> None:
        now_ns = time.monotonic_ns()
        lag_ns = now_ns - self._beat_ns - int(HEARTBEAT_S * 1e9)
        if now_ns >= self.t0_ns:
            self._second.loop_lag_ns = max(self._second.loop_lag_ns, lag_ns)
        self._beat_ns = now_ns
        self._beat = self._loop.call_later(HEARTBEAT_S, self._heartbeat)
        self._time_out(now_ns)
        self._refill_if_short(now_ns)
        if self._recorded_s(now_ns) >= self._tick + 1:
            self._next_second(now_ns)

    def _recorded_s(self, now_ns: int) -> float:
        return (now_ns - self.t0_ns) / 1e9 * self._job.time_scale

    def _next_second(self, now_ns: int) -> None:
        self._tick = int(self._recorded_s(now_ns))
        self._emit({"tick": self._tick, **self._row(now_ns)})
        self._second = _Second(now_ns, time.process_time_ns())

    def _refill_if_short(self, now_ns: int) -> None:
        rests = self._refill is None or self._refill.done()
        due = now_ns >= self._refill_from_ns and self._next < len(self._trace)
        if rests and due and self._pool.short:
            self._refill = self._loop.create_task(self._refill_pool())

    async def _refill_pool(self) -> None:
        try:
            await self._pool.fill()
        except OSError:
            self.refill_failures += 1  # the requests themselves show what is wrong
            self._refill_from_ns = time.monotonic_ns() + RETRY_NS

    def _time_out(self, now_ns: int) -> None:
        oldest_us = (self._recorded_s(now_ns) - self._job.timeout_s) * 1e6
        for seq in list(self._in_flight):  # in planned order: the first young one ends the walk
            if self._by_seq[seq].offset_us > oldest_us:
                break
            self._end(seq, Outcome.TIMEOUT)

    def _oldest_s(self, now_s: float) -> dict[str, float]:
        oldest: dict[str, float] = {}
        for seq, capture in self._in_flight.items():
            arrival = self._by_seq[seq]
            if not capture.reads and arrival.size_class not in oldest:
                oldest[arrival.size_class] = round(now_s - arrival.offset_us / 1e6, 3)
        return oldest

    def _row(self, now_ns: int) -> Row:
        now_s, scale, last = self._recorded_s(now_ns), self._job.time_scale, self._second
        # The last slice is short: its share is of a whole second, or any burst would look full.
        wall_ns = max(now_ns - last.wall_ns, int(9e8 / scale))
        in_flight = Counter(self._by_seq[seq].size_class for seq in self._in_flight)
        return {
            "t_s": round(now_s, 3),
            "offered": dict(self._tally.offered),
            "done": dict(self._tally.done),
            "refused": dict(self._tally.refused),
            "failed": dict(self._tally.failed),
            "in_flight": dict(in_flight),
            "oldest_unanswered_s": self._oldest_s(now_s),
            "dispatch_lag_ms": round(last.dispatch_lag_ns / 1e6 * scale, 3),
            "loop_lag_ms": round(max(0, last.loop_lag_ns) / 1e6 * scale, 3),
            "cpu_share": round((time.process_time_ns() - last.cpu_ns) / wall_ns, 4),
        }
