"""Prints what a decision of the admission core costs: 10,000 queued, 12 flows, 8 engines.

Goals: at most 20 us per decision and 2 KB per queued ticket beyond its body. Run it alone:
``python tests/bench/bench_admission.py [rounds]``.
"""

import gc
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.admission import Admission
from gateway.domain import EngineLimits, FlowKey, FlowSpec
from gateway.verdicts import Dispatched, Offer, RouteView, Topology, Verdict

QUEUED = 10_000
ENGINES = 8
SIZES = {"short": 512, "medium": 2048, "long": 8192}
SERVICES = ("interactive", "standard", "batch", "free")


def build() -> Admission:
    """Eight engines like an H200's, twelve flows of different weights."""
    specs = [
        FlowSpec(
            "m", size, service, weight=4.0 / (1 + i),
            reserved_slots=4 if size == "short" and i == 0 else 0,
            reserved_prefill_tokens=2048 if size == "short" and i == 0 else 0,
            max_queued=2 * QUEUED, max_queued_tokens=10**9, max_queued_bytes=10**10,
            max_age_s=10**6, principal_share=1.0, largest_prompt_tokens=tokens,
        )
        for size, tokens in SIZES.items()
        for i, service in enumerate(SERVICES)
    ]  # fmt: skip
    limits = EngineLimits(128, 60_000, 1_500_000, (("long", 1),))
    names = tuple(f"engine-{i}" for i in range(ENGINES))
    routes = {("m", size): RouteView("all") for size in SIZES}
    core = Admission(specs, Topology(dict.fromkeys(names, limits), {"all": names}, routes), 0.0)
    for name in names:
        core.set_engine(name, 0.0, up=True)
    return core


@dataclass
class Bench:
    """Keeps ``QUEUED`` waiting while it times each kind of call."""

    core: Admission
    now: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    running: list[int] = field(default_factory=list)
    prefilling: list[int] = field(default_factory=list)
    taken_s: dict[str, list[float]] = field(default_factory=dict)
    decided: dict[str, int] = field(default_factory=dict)

    def timed(self, name: str, call: Callable[[], list[Verdict]]) -> None:
        before = time.perf_counter()
        verdicts = call()
        self.taken_s.setdefault(name, []).append(time.perf_counter() - before)
        self.decided[name] = self.decided.get(name, 0) + max(1, len(verdicts))
        for verdict in verdicts:
            if isinstance(verdict, Dispatched):
                self.running.append(verdict.lease_id)
                self.prefilling.append(verdict.lease_id)

    def offer(self) -> None:
        size, number = self.chance.choice([*SIZES]), self.chance.randrange(1000)
        offer = Offer(
            FlowKey("m", size, self.chance.choice(SERVICES)), f"caller-{number}", SIZES[size],
            self.now, max_tokens=128, body_bytes=4000, streamed=number % 4 > 0, affinity=number,
        )  # fmt: skip
        self.timed("offer", lambda: self.core.offer(offer, self.now)[1])

    def first_event(self) -> None:
        lease = self.prefilling.pop(self.chance.randrange(len(self.prefilling)))
        self.timed("prefill_done", lambda: self.core.prefill_done(lease, self.now))

    def release(self) -> None:
        lease = self.running.pop(self.chance.randrange(len(self.running)))
        if lease in self.prefilling:
            self.prefilling.remove(lease)
        self.timed("release", lambda: self.core.release(lease, self.now, 100))

    def cancel(self) -> None:
        ticket = next(iter(self.core._traffic.tickets))
        self.timed("cancel", lambda: self.core.cancel(ticket, self.now))

    def tick(self) -> None:
        self.timed("tick", lambda: self.core.tick(self.now))

    def fill(self) -> None:
        while len(self.core._traffic.tickets) < QUEUED:
            self.offer()


def report(bench: Bench) -> None:
    print(f"{'call':<14}{'calls':>8}{'us/call':>10}{'p99 us':>10}{'us/decision':>14}")
    for name, taken in bench.taken_s.items():
        ranked = sorted(taken)
        total_us = 1e6 * sum(taken)
        p99_us = 1e6 * ranked[int(0.99 * len(ranked))]
        print(
            f"{name:<14}{len(taken):>8}{total_us / len(taken):>10.1f}{p99_us:>10.1f}"
            f"{total_us / bench.decided[name]:>14.1f}"
        )
    total = sum(map(sum, bench.taken_s.values())) * 1e6 / sum(bench.decided.values())
    print(f"{total:.1f} us per decision over all (goal: 20)")


def bytes_per_ticket() -> float:
    """What traced memory grows by for each of the queued requests."""
    bench = Bench(build())
    while not bench.core._traffic.tickets:
        bench.offer()
    gc.collect()
    tracemalloc.start()
    bench.fill()
    bench.taken_s.clear()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return grown / len(bench.core._traffic.tickets)


def main(rounds: int) -> None:
    print(f"{bytes_per_ticket():.0f} bytes per queued ticket (goal: 2,048)")
    bench = Bench(build())
    bench.fill()
    bench.taken_s.clear()
    bench.decided.clear()
    for step in range(rounds):
        bench.now += 0.001
        bench.release()
        if bench.prefilling:
            bench.first_event()
        bench.offer()
        if step % 10 == 0:
            bench.cancel()
            bench.tick()
        bench.fill()
    print(
        f"{len(bench.core._traffic.tickets)} queued in {len(bench.core.flows)} flows, "
        f"{ENGINES} engines"
    )
    report(bench)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000)
