"""An overload in virtual time: four flows, Poisson arrivals, and what became of each flow.

Two size classes times two service classes share two engines of few sequences, with the limits of
the soak: what the soak measures on a busy machine is decided here without one.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.admission import Admission
from gateway.domain import EngineLimits, FlowSpec
from gateway.verdicts import RouteView, Topology
from loadgen.engine.scheduler import SchedulerConfig
from loadgen.simulate import SimArrival, SimResult, simulate
from tests.simulation.worlds import COST, MODEL, World

__all__ = ["CAPACITY", "FLOWS", "Figures", "arrivals", "figures", "play"]

# Requests per second of this mix that both engines together can serve.
CAPACITY = 18.0
# Per size class: first token, longest stall, end.
LIMITS_S = {"short": (0.5, 0.5, 30.0), "long": (5.0, 1.0, 120.0)}
LARGEST = {"short": 1024, "long": 10_000}
MAX_AGE_S = {
    ("short", "interactive"): 10.0,
    ("short", "batch"): 20.0,
    ("long", "interactive"): 30.0,
    ("long", "batch"): 60.0,
}
WEIGHT = {"interactive": 4.0, "batch": 1.0}
FLOWS = tuple(MAX_AGE_S)
ENGINES = 2
LIMITS = EngineLimits(
    slots=16, prefill_tokens=40_960, kv_tokens=393_216, max_prefilling=(("long", 1),)
)
LONG_SHARE = 0.2
STREAMED_SHARE = 0.7


def arrivals(
    rate: float, until_s: float, seed: int = 1, from_s: float = 0.0, first: int = 0
) -> list[SimArrival]:
    """A Poisson process of the soak's mix, numbered from ``first``."""
    rng = random.Random(seed)
    found: list[SimArrival] = []
    now = from_s
    while (now := now + rng.expovariate(rate)) < until_s:
        size = "long" if rng.random() < LONG_SHARE else "short"
        service = rng.choice(("interactive", "batch"))
        tokens = 8010 if size == "long" else rng.randint(70, 720)
        found.append(
            SimArrival(
                first + len(found), now, size, tokens, rng.randint(64, 128),
                streamed=rng.random() < STREAMED_SHARE, service_class=service,
                principal=f"{service}-{rng.randrange(4)}",
            )
        )  # fmt: skip
    return found


def play(offered: Sequence[SimArrival], quantum: float = 1024.0) -> list[SimResult]:
    """Through the admission core to the engines, to the end."""
    specs = [
        FlowSpec(
            MODEL, size, service,
            weight=WEIGHT[service], max_age_s=age_s, ttft_limit_s=LIMITS_S[size][0],
            largest_prompt_tokens=LARGEST[size],
        )
        for (size, service), age_s in MAX_AGE_S.items()
    ]  # fmt: skip
    names = [f"engine-{i}" for i in range(ENGINES)]
    routes = {(MODEL, size): RouteView("pool") for size in LIMITS_S}
    topology = Topology(dict.fromkeys(names, LIMITS), {"pool": names}, routes)
    core = Admission(specs, topology, 0.0, quantum=quantum)
    for name in names:
        core.set_engine(name, 0.0, up=True)
    gate = World(engines=ENGINES).gate(core)
    return simulate(offered, gate, [SchedulerConfig(max_num_seqs=16)] * ENGINES, COST)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one flow: what was offered, admitted, refused by prediction, and within its contract.

    Admitted is what was not refused on arrival: what expired in the queue, too.
    """

    offered: int
    admitted: int
    predicted: int
    met: int
    met_tokens: int

    @property
    def attainment(self) -> float:
        """The part of the admitted that met its contract; 1 where nothing was admitted."""
        return self.met / self.admitted if self.admitted else 1.0


def figures(
    results: Sequence[SimResult], from_s: float, until_s: float
) -> dict[tuple[str, str], Figures]:
    """Per flow, of what arrived in between."""
    rows: dict[tuple[str, str], list[SimResult]] = {flow: [] for flow in FLOWS}
    for r in results:
        if from_s <= r.arrival.at_s < until_s:
            rows[r.arrival.size_class, r.arrival.service_class].append(r)
    return {flow: _figures(row) for flow, row in rows.items()}


def _figures(row: Sequence[SimResult]) -> Figures:
    met = [r for r in row if _met(r)]
    return Figures(
        offered=len(row),
        admitted=sum(r.refused in {None, "queue_expired"} for r in row),
        predicted=sum(r.refused == "predicted_wait" for r in row),
        met=len(met),
        met_tokens=sum(r.arrival.prompt_tokens for r in met),
    )


def _met(result: SimResult) -> bool:
    first_s, stall_s, end_s = LIMITS_S[result.arrival.size_class]
    if result.ttft_s is None or result.last_s is None:
        return False
    lasted_s = result.last_s - result.arrival.at_s
    return result.ttft_s <= first_s and result.max_stall_s <= stall_s and lasted_s <= end_s
