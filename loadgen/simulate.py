"""Runs arrivals, an admission policy and simulated engines in virtual time, without sockets.

The scheduler and the step cost are the ones the simulated engine serves with; the policy is
handed in, because the load generator never imports the gateway. One engine iteration at a time:
it is scheduled, takes what the cost model says, and its tokens go back to policy and caller.
``Delays`` holds what the servers themselves take. A caller that has waited for its ``timeout_s``
or its own ``patience_s`` leaves: what runs is aborted, what waits is withdrawn.

Times are seconds on the arrivals' clock. Pure: no I/O, no clock.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from loadgen.engine.cost import StepCost
from loadgen.engine.scheduler import Emission, Scheduler, SchedulerConfig, Step

__all__ = [
    "Action",
    "Delays",
    "PassThrough",
    "Policy",
    "SimArrival",
    "SimResult",
    "Watch",
    "simulate",
]


@dataclass(frozen=True, slots=True)
class SimArrival:
    """One planned request. ``streamed`` says whether its first token is visible as it comes.

    ``patience_s`` is after how long its caller leaves of its own accord; ``keys`` are those of its
    prompt's full KV blocks, for engines that cache prefixes.
    """

    seq: int
    at_s: float
    size_class: str
    prompt_tokens: int
    output_tokens: int
    streamed: bool = True
    service_class: str = "standard"
    max_tokens_given: bool = True
    principal: str = "caller"
    patience_s: float | None = None
    keys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """What the policy wants done: send ``seq`` to an engine, or refuse it."""

    seq: int
    engine: int | None = None
    refused: str | None = None
    priority: int = 0


class Policy(Protocol):
    """The gate in front of the engines, in virtual time."""

    def offer(self, arrival: SimArrival, now: float) -> Sequence[Action]:
        """A request arrived."""

    def first_event(self, seq: int, now: float) -> Sequence[Action]:
        """Its first token came back, if it is streamed."""

    def finished(self, seq: int, now: float, output_tokens: int) -> Sequence[Action]:
        """Its answer is complete."""

    def cancel(self, seq: int, now: float) -> Sequence[Action]:
        """Its caller left, whether it waited or was sent."""

    def tick(self, now: float) -> Sequence[Action]:
        """Time passed."""

    def next_wakeup(self, now: float) -> float | None:
        """When to tick if nothing else happens."""


@dataclass(slots=True)
class SimResult:
    """What became of one request; times are absolute, None where it did not get that far."""

    arrival: SimArrival
    sent_s: float | None = None
    engine: int | None = None
    first_s: float | None = None
    last_s: float | None = None
    max_stall_s: float = 0.0
    events_s: list[float] = field(default_factory=list)
    done: bool = False
    refused: str | None = None
    refused_s: float | None = None
    timed_out: bool = False
    cancelled: bool = False
    cached_tokens: int = 0

    @property
    def left(self) -> bool:
        """Whether its caller left before it was over."""
        return self.timed_out or self.cancelled

    @property
    def tokens(self) -> int:
        """Output tokens that reached the caller."""
        return len(self.events_s)

    @property
    def ttft_s(self) -> float | None:
        """From the planned arrival to the first token at the caller."""
        return None if self.first_s is None else self.first_s - self.arrival.at_s


@dataclass(frozen=True, slots=True)
class Delays:
    """What the servers take: the way to an engine, reading a prompt there, a token's way back.

    ``per_prompt_token_s`` is what requests need side by side. ``read_token_s`` is an engine's
    tokenizer, which reads one prompt after another before the scheduler sees any. The events of a
    step leave one after another, ``per_event_s`` each.
    """

    to_engine_s: float = 0.002
    back_s: float = 0.001
    per_prompt_token_s: float = 0.0
    read_token_s: float = 0.0
    per_event_s: float = 0.0

    def at_scale(self, time_scale: float) -> "Delays":
        """Return them in recorded seconds, where the engines' clock alone goes faster."""
        return Delays(*(getattr(self, f.name) * time_scale for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Watch:
    """How long callers wait, and who looks at the engines every second until all is over."""

    timeout_s: float | None = None
    second: Callable[[float, Sequence[Scheduler]], None] | None = None


class PassThrough:
    """The baseline: every request goes at once to the engine with the least prefill outstanding."""

    def __init__(self, engines: int) -> None:
        self._prefill = [0] * engines
        self._sent: dict[int, tuple[int, int]] = {}

    def offer(self, arrival: SimArrival, now: float) -> Sequence[Action]:
        """Send it."""
        engine = min(range(len(self._prefill)), key=lambda e: self._prefill[e])
        self._prefill[engine] += arrival.prompt_tokens
        self._sent[arrival.seq] = (engine, arrival.prompt_tokens)
        return [Action(arrival.seq, engine)]

    def first_event(self, seq: int, now: float) -> Sequence[Action]:
        """Its prompt is no longer outstanding."""
        engine, tokens = self._sent.pop(seq, (0, 0))
        self._prefill[engine] -= tokens
        return []

    def finished(self, seq: int, now: float, output_tokens: int) -> Sequence[Action]:
        """An answer without a visible first token ends its prefill here."""
        return self.first_event(seq, now)

    def cancel(self, seq: int, now: float) -> Sequence[Action]:
        """Nothing waits here: what left was sent."""
        return self.first_event(seq, now)

    def tick(self, now: float) -> Sequence[Action]:
        """Nothing is due by time."""
        return []

    def next_wakeup(self, now: float) -> float | None:
        """Never."""
        return None


class _Engine:
    """One scheduler with its clock: at most one step is under way."""

    def __init__(self, config: SchedulerConfig, cost: StepCost) -> None:
        self.scheduler = Scheduler(config)
        self.cost = cost
        self.step: Step | None = None
        self.reading_until_s = 0.0

    def begin(self) -> float | None:
        """Start a step if none is under way and there is work; its duration in seconds."""
        if self.step is not None or not self.scheduler.has_work:
            return None
        step = self.scheduler.step()
        if not step.scheduled:
            return None
        self.step = step
        return self.cost.seconds(step)


class _Run:
    """The event loop: a heap of (time, order, what to do)."""

    def __init__(
        self,
        policy: Policy,
        engines: Sequence[_Engine],
        delays: Delays,
        watch: Watch,
    ) -> None:
        self.policy = policy
        self.engines = engines
        self.delays = delays
        self.watch = watch
        self.open = 0
        self.results: dict[int, SimResult] = {}
        self.heap: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = 0
        self.wake_at: float | None = None

    def at(self, when: float, action: Callable[[float], None]) -> None:
        self.order += 1
        heapq.heappush(self.heap, (when, self.order, action))

    def run(self) -> None:
        while self.heap:
            now, _, action = heapq.heappop(self.heap)
            action(now)
            self.arm(now)

    def arm(self, now: float) -> None:
        due = self.policy.next_wakeup(now)
        if due is not None and (self.wake_at is None or due < self.wake_at):
            self.wake_at = due
            self.at(max(due, now), self.tick)

    def tick(self, now: float) -> None:
        self.wake_at = None
        self.perform(self.policy.tick(now), now)

    def plan(self, arrivals: Sequence[SimArrival]) -> None:
        self.open = len(arrivals)
        for arrival in arrivals:
            self.at(arrival.at_s, self.arrive(arrival))
        if self.watch.second is not None:
            self.at(0.0, self.look)

    def look(self, now: float) -> None:
        if self.watch.second is not None:
            self.watch.second(now, [engine.scheduler for engine in self.engines])
            if self.open:
                self.at(now + 1.0, self.look)

    def arrive(self, arrival: SimArrival) -> Callable[[float], None]:
        def offer(now: float) -> None:
            result = self.results[arrival.seq] = SimResult(arrival)
            self.perform(self.policy.offer(arrival, now), now)
            if result.refused is None:
                self.limit(result)

        return offer

    def limit(self, result: SimResult) -> None:
        at_s, own_s, timeout_s = (
            result.arrival.at_s,
            result.arrival.patience_s,
            self.watch.timeout_s,
        )
        if timeout_s is not None:
            self.at(at_s + timeout_s, lambda t: self.leave(result, t, timed_out=True))
        if own_s is not None:
            self.at(at_s + own_s, lambda t: self.leave(result, t, timed_out=False))

    def leave(self, result: SimResult, now: float, *, timed_out: bool) -> None:
        if result.done or result.left or result.refused is not None:
            return
        result.timed_out, result.cancelled = timed_out, not timed_out
        self.open -= 1
        seq = result.arrival.seq
        if result.engine is not None:
            self.engines[result.engine].scheduler.abort(seq)
        self.perform(self.policy.cancel(seq, now), now)
        if result.engine is not None:
            self.step(result.engine, now)  # what it held may be what another waits for

    def perform(self, actions: Sequence[Action], now: float) -> None:
        for action in actions:
            result = self.results[action.seq]
            if action.engine is None:
                if not result.left:
                    result.refused, result.refused_s = action.refused, now
                    self.open -= 1
                continue
            if result.left:
                self.perform(self.policy.cancel(action.seq, now), now)
                continue
            result.sent_s, result.engine = now, action.engine
            way_s = self.delays.to_engine_s
            way_s += self.delays.per_prompt_token_s * result.arrival.prompt_tokens
            self.at(now + way_s, self.deliver(result, action.engine, action.priority))

    def deliver(self, result: SimResult, index: int, priority: int) -> Callable[[float], None]:
        a, engine = result.arrival, self.engines[index]

        def read(now: float) -> None:
            if result.left:
                return
            took_s = self.delays.read_token_s * a.prompt_tokens
            engine.reading_until_s = max(engine.reading_until_s, now) + took_s
            self.at(engine.reading_until_s, enter)

        def enter(now: float) -> None:
            if result.left:
                return
            engine.scheduler.add(a.seq, a.prompt_tokens, a.output_tokens, priority, now, a.keys)
            self.step(index, now)

        return read

    def step(self, index: int, now: float) -> None:
        duration_s = self.engines[index].begin()
        if duration_s is not None:
            self.at(now + duration_s, lambda t: self.end_step(index, t))

    def end_step(self, index: int, now: float) -> None:
        engine = self.engines[index]
        step, engine.step = engine.step, None
        if step is None:
            return
        for seq, known in step.hits:
            self.results[seq].cached_tokens = known
        emissions = engine.scheduler.complete(step)
        if emissions:
            self.at(now + self.delays.back_s, lambda t: self.emit_all(emissions, t))
        self.step(index, now)

    def emit_all(self, emissions: Sequence[Emission], now: float) -> None:
        for place, emission in enumerate(emissions):
            self.emit(emission, now, now + place * self.delays.per_event_s)

    def emit(self, emission: Emission, now: float, seen_s: float) -> None:
        seq = emission.seq_id
        result = self.results[seq]
        if result.left:
            return
        first = result.first_s is None
        if result.last_s is not None:
            seen_s = max(seen_s, result.last_s)
            result.max_stall_s = max(result.max_stall_s, seen_s - result.last_s)
        result.last_s = seen_s
        result.events_s.append(seen_s)
        if first:
            result.first_s = seen_s
            if result.arrival.streamed:
                self.perform(self.policy.first_event(seq, now), now)
        if emission.finished:
            result.done = True
            self.open -= 1
            self.perform(self.policy.finished(seq, now, result.tokens), now)


def simulate(
    arrivals: Sequence[SimArrival],
    policy: Policy,
    configs: Sequence[SchedulerConfig],
    cost: StepCost,
    delays: Delays | None = None,
    watch: Watch | None = None,
) -> list[SimResult]:
    """Play the arrivals through the policy at engines of these configurations, to the end.

    Returns one result per arrival, in arrival order.
    """
    run = _Run(policy, [_Engine(c, cost) for c in configs], delays or Delays(), watch or Watch())
    run.plan(arrivals)
    run.run()
    return [run.results[a.seq] for a in arrivals]
