"""Runs the scheduler against the clock: steps, waits as long as the model says, hands out tokens.

One task owns the scheduler. Everybody else submits, cancels and waits on a ticket. Cancellations
are applied between steps, as vLLM's core does, so a slot is free at the next step and not in
the middle of one. An idle core waits on an event and costs nothing.

Times are seconds; those given to the metrics are in the engine's clock, which runs
``time_scale`` times faster than the wall's.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from loadgen.engine.cost import StepCost
from loadgen.engine.metrics import EngineMetrics, Finished
from loadgen.engine.scheduler import Emission, Scheduler, SchedulerConfig, Step

__all__ = ["EngineCore", "Job", "Ticket"]

# The loop's timers have millisecond resolution and other processes steal time: lateness up to
# this many real seconds is taken back in the following steps, so that step times are right on
# average. More is a stall of the machine and is lost, as it would be on a real engine.
CATCH_UP_S = 0.02


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence to compute; ``finish_reason`` is what ends it at ``output_tokens``.

    ``pooled`` ends with the prompt's prefill and yields a result, no token. ``keys`` are those of
    its full KV blocks, where the engine caches prefixes.
    """

    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    max_tokens: int
    priority: int = 0
    n: int = 1
    pooled: bool = False
    keys: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Ticket:
    """A sequence inside the core: its tokens not yet taken, and when things happened to it.

    ``ready`` is shared by all sequences of one request; ``aborted`` means that the engine ended
    it, ``told`` that its caller has seen so.
    """

    seq_id: int
    job: Job
    ready: asyncio.Event
    arrived_s: float
    pending: int = 0
    generated: int = 0
    finished: bool = False
    aborted: bool = False
    told: bool = False
    preemptions: int = 0
    cached_tokens: int = 0
    scheduled_s: float | None = None
    first_token_s: float = 0.0
    last_token_s: float = 0.0

    def take(self) -> int:
        """The number of tokens since the last call."""
        pending, self.pending = self.pending, 0
        return pending


class EngineCore:
    """The engine behind the API. ``run`` must be running for anything to happen.

    Mutable state: the scheduler, the tickets by sequence id, and the cancellations to apply.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cost: StepCost,
        metrics: EngineMetrics,
        time_scale: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = Scheduler(config)
        self.metrics = metrics
        self.halted = False
        self._cost = cost
        self._scale = time_scale
        self._clock = clock
        self._tickets: dict[int, Ticket] = {}
        self._cancelled: list[int] = []
        self._next_id = 0
        self._wake = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()

    @property
    def unfinished(self) -> int:
        """Sequences waiting or running."""
        return len(self._tickets)

    @property
    def prefill_tokens_queued(self) -> int:
        """Prompt tokens of sequences without a first token, computed chunks not subtracted."""
        return sum(t.job.prompt_tokens for t in self._tickets.values() if not t.generated)

    def submit(self, job: Job, ready: asyncio.Event) -> Ticket:
        """Queue one sequence; ``ready`` is set whenever it has new tokens."""
        self._next_id += 1
        ticket = Ticket(self._next_id, job, ready, self._clock())
        self.scheduler.add(
            ticket.seq_id,
            job.prompt_tokens,
            job.output_tokens,
            job.priority,
            ticket.arrived_s,
            job.keys,
        )
        self._tickets[ticket.seq_id] = ticket
        self._wake.set()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Give a sequence's seat back before the next step; harmless when it has finished."""
        if self._tickets.pop(ticket.seq_id, None) is not None:
            self._cancelled.append(ticket.seq_id)
            self._wake.set()

    def abort_all(self) -> None:
        """End every sequence at once, as an engine does that may not wait longer."""
        for ticket in list(self._tickets.values()):
            self.cancel(ticket)
            ticket.finished = ticket.aborted = True
            ticket.ready.set()

    def halt(self) -> None:
        """Stop stepping, as an engine that was killed or hangs."""
        self.halted = True
        self._thawed.clear()

    def freeze(self) -> None:
        """Let no step end any more: requests are still seated, but nothing comes of them."""
        self._thawed.clear()

    def resume(self) -> None:
        """End a halt or a freeze."""
        self.halted = False
        self._thawed.set()
        self._wake.set()

    async def run(self) -> None:
        """Step for ever; ends only by cancellation."""
        due_s = self._clock()
        while True:
            self._apply_cancellations()
            if self.halted or not self.scheduler.has_work:
                self._wake.clear()
                await self._wake.wait()
                due_s = self._clock()
                continue
            step = self.scheduler.step()
            self._note_scheduled(step)
            now = self._clock()
            due_s = max(due_s, now - CATCH_UP_S) + self._cost.seconds(step) / self._scale
            await asyncio.sleep(max(0.0, due_s - now))
            await self._thawed.wait()
            self._hand_out(step)

    def _apply_cancellations(self) -> None:
        for seq_id in self._cancelled:
            self.scheduler.abort(seq_id)
        self._cancelled.clear()

    def _note_scheduled(self, step: Step) -> None:
        """Stamp first admissions (only steps that prefill have any) and count preemptions."""
        if step.prefill_requests:
            now = self._clock()
            for seq_id, _ in step.scheduled:
                ticket = self._tickets.get(seq_id)
                if ticket is not None and ticket.scheduled_s is None:
                    ticket.scheduled_s = now
        self._note_hits(step)
        if step.preempted:
            self.metrics.preempted(len(step.preempted))
            for seq_id in step.preempted:
                if seq_id in self._tickets:
                    self._tickets[seq_id].preemptions += 1

    def _note_hits(self, step: Step) -> None:
        for seq_id, known in step.hits:
            ticket = self._tickets.get(seq_id)
            if ticket is not None:
                ticket.cached_tokens = known
                self.metrics.looked_up(ticket.job.prompt_tokens, known)

    def _hand_out(self, step: Step) -> None:
        now = self._clock()
        emissions = self.scheduler.complete(step)
        pooled = 0
        for emission in emissions:
            ticket = self._tickets.get(emission.seq_id)
            if ticket is not None:
                pooled += ticket.job.pooled
                self._deliver(ticket, emission, now)
        if step.scheduled:
            self.metrics.step_tokens(step.prefill_tokens + step.decode_sequences)
            self.metrics.generated(len(emissions) - pooled)

    def _deliver(self, ticket: Ticket, emission: Emission, now: float) -> None:
        if ticket.generated:
            self.metrics.next_token((now - ticket.last_token_s) * self._scale)
        else:
            ticket.first_token_s = now
            self.metrics.first_token((now - ticket.arrived_s) * self._scale)
            self.metrics.prefilled(ticket.job.prompt_tokens, ticket.cached_tokens)
        ticket.last_token_s = now
        ticket.generated += 1
        ticket.pending += 1
        if emission.finished:
            ticket.finished = True
            del self._tickets[ticket.seq_id]
            self.metrics.finished(self._life(ticket))
        ticket.ready.set()

    def _life(self, ticket: Ticket) -> Finished:
        scheduled_s = ticket.arrived_s if ticket.scheduled_s is None else ticket.scheduled_s
        return Finished(
            reason=ticket.job.finish_reason,
            queue_s=(scheduled_s - ticket.arrived_s) * self._scale,
            prefill_s=(ticket.first_token_s - scheduled_s) * self._scale,
            decode_s=(ticket.last_token_s - ticket.first_token_s) * self._scale,
            prompt_tokens=ticket.job.prompt_tokens,
            cached_tokens=ticket.cached_tokens,
            generated_tokens=0 if ticket.job.pooled else ticket.generated,
            max_tokens=ticket.job.max_tokens,
            n=ticket.job.n,
            preemptions=ticket.preemptions,
        )
