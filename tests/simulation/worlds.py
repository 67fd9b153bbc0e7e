"""Worlds for the virtual-time scenarios: arrivals as data, the core as gate, engines in time."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import loadgen.engine
from gateway.admission import Admission
from gateway.domain import Arm, EngineLimits, FlowKey, FlowSpec
from gateway.verdicts import Offer, RouteView, Topology
from gateway.virtual import VirtualGate
from loadgen.engine.cost import step_cost_from
from loadgen.engine.scheduler import SchedulerConfig
from loadgen.simulate import Action, PassThrough, SimArrival, SimResult, simulate

MODEL = "m"
DATA = Path(loadgen.engine.__file__).parent / "data"
COST = step_cost_from(json.loads((DATA / "cost-h200-graph.json").read_text()))
LIMITS = EngineLimits(
    slots=128, prefill_tokens=40_960, kv_tokens=353_894, max_prefilling=(("long", 1),)
)
UNLIMITED = replace(LIMITS, prefill_tokens=10**9, kv_tokens=10**9)
SHORT = FlowSpec(
    MODEL,
    "short",
    "standard",
    weight=4,
    reserved_slots=16,
    reserved_prefill_tokens=8192,
    largest_prompt_tokens=2048,
    output_estimate_tokens=128,
    principal_share=1.0,
)
LONG = FlowSpec(
    MODEL, "long", "standard", weight=1, output_estimate_tokens=128, principal_share=1.0
)
TABLE_FLOWS = (
    replace(SHORT, max_queued=10**6, max_queued_tokens=10**12, max_queued_bytes=10**12),
    replace(LONG, max_queued=10**6, max_queued_tokens=10**12, max_queued_bytes=10**12),
)


def poisson(seed: int, rate: float, short_share: float, until_s: float) -> list[SimArrival]:
    """The convention of the published table: exponential gaps, then the class of each."""
    rng = random.Random(seed)
    arrivals: list[SimArrival] = []
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        short = rng.random() < short_share
        if now >= until_s:
            return arrivals
        size = ("short", 512) if short else ("long", 8192)
        arrivals.append(SimArrival(len(arrivals), now, size[0], size[1], 128))


def merged(*streams: Sequence[SimArrival]) -> list[SimArrival]:
    """Several streams of arrivals as one, numbered anew in time order."""
    ordered = sorted((a for s in streams for a in s), key=lambda a: a.at_s)
    return [replace(a, seq=i) for i, a in enumerate(ordered)]


class Prioritised(PassThrough):
    """Pass-through to engines that schedule by priority: shorts first."""

    def offer(self, arrival: SimArrival, now: float) -> Sequence[Action]:
        rank = 0 if arrival.size_class == "short" else 1
        return [replace(a, priority=rank) for a in super().offer(arrival, now)]


@dataclass(frozen=True)
class World:
    """Flows, limits and engines of one scenario; ``run`` plays arrivals through the gate."""

    flows: tuple[FlowSpec, ...] = (SHORT, LONG)
    limits: EngineLimits = LIMITS
    engines: int = 1
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    route: RouteView = field(default_factory=lambda: RouteView("pool"))

    def core(self) -> Admission:
        names = [f"engine-{i}" for i in range(self.engines)]
        pools = {"pool": names, "dead": ["dead-engine"]}
        limits = dict.fromkeys([*names, "dead-engine"], self.limits)
        sizes = {s.size_class for s in self.flows}
        routes = {(MODEL, size): self.route for size in sizes}
        core = Admission(self.flows, Topology(limits, pools, routes), 0.0)
        for name in names:
            core.set_engine(name, 0.0, up=True)
        return core

    def gate(self, core: Admission) -> VirtualGate[SimArrival, Action]:
        def classify(a: SimArrival, now: float) -> tuple[int, Offer]:
            every_tenth = self.route.candidate is not None and a.seq % 10 == 0
            arm = Arm.CANDIDATE if every_tenth else Arm.STABLE
            key = FlowKey(MODEL, a.size_class, a.service_class, arm)
            max_tokens = a.output_tokens if a.max_tokens_given else None
            return a.seq, Offer(
                key,
                a.principal,
                a.prompt_tokens,
                now,
                max_tokens=max_tokens,
                body_bytes=4 * a.prompt_tokens,
                streamed=a.streamed,
            )

        names = [f"engine-{i}" for i in range(self.engines)]
        return VirtualGate(
            core, names, classify, Action, lambda seq, word: Action(seq, refused=word)
        )

    def run(self, arrivals: Sequence[SimArrival]) -> list[SimResult]:
        gate = self.gate(self.core())
        return simulate(arrivals, gate, [self.config] * self.engines, COST)


def nearest_rank(values: Sequence[float], p: float) -> float:
    """The convention of the published table: the element at int(p * n) of the sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p * len(ordered)))]


def ttft_ms(results: Sequence[SimResult], size_class: str) -> list[float]:
    """TTFT of the answered requests of a class that arrived in 10..120 s, in ms."""
    return [
        r.ttft_s * 1e3
        for r in results
        if r.arrival.size_class == size_class
        and 10 <= r.arrival.at_s < 120
        and r.ttft_s is not None
    ]
