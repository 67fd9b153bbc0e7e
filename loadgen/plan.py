"""Sets out the demonstration's runs, as data, before the first one starts.

One trace, the gateway's policy and topology varied on equal hardware, and a control without longs.
Contracts are part of the plan and thereby of its digest: they are written before the runs.
Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from loadgen.capacity import Demand, Pool, StepCosts, pool_utilisation
from loadgen.record import BenchError

__all__ = [
    "CONTROL",
    "DEMO_CONTRACT",
    "DEMO_WAYS",
    "Contract",
    "Intervals",
    "Way",
    "check_intervals",
    "demo_plan",
]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Ramp, window, drain and the client's own timeout, in seconds."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    ramp_s: float
    window_s: float
    drain_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Contract:
    """The limits of a class, in seconds; a request misses if it misses any."""

    ttft_s: float
    max_stall_s: float
    e2e_s: float
    attainment: float = 0.95
    validator: str = "finish reason, usage and forced length"


@dataclass(frozen=True, slots=True)
class Way:
    """One way through the gateway."""

    name: str
    label: str
    admission: str
    topology: str
    trace: str = "mixed"

    @property
    def control(self) -> bool:
        """Whether this is the paired control rather than a way of serving both classes."""
        return self.trace != "mixed"

    def pools(self, classes: Sequence[str], engines: int) -> tuple[Pool, ...]:
        """Return which engines serve which classes."""
        if self.topology == "shared":
            return (Pool("shared", tuple(classes), engines),)
        return tuple(Pool(name, (name,), engines // len(classes)) for name in classes)


# Limits for the 8B-shaped model on one H200 whose step costs the simulated engine uses.
DEMO_CONTRACT = {"short": Contract(2.0, 0.6, 12.0), "long": Contract(2.5, 0.6, 14.0)}
DEMO_WAYS = (
    Way("pass-through-shared", "pass-through, shared", "off", "shared"),
    Way("admission-shared", "admission, shared", "enforce", "shared"),
    Way("admission-isolated", "admission, isolated", "enforce", "isolated"),
)
CONTROL = Way("control-shorts-only", "control: shorts alone", "off", "shared", "shorts-only")


def check_intervals(intervals: Intervals, contract: Mapping[str, Contract]) -> None:
    """Refuse intervals in which the drain could cut off a request that still counts.

    Raises:
        BenchError: unless drain >= timeout >= every limit of the contract.
    """
    if intervals.drain_s < intervals.timeout_s:
        raise BenchError(
            f"plan: the drain of {intervals.drain_s} s is shorter than the timeout of "
            f"{intervals.timeout_s} s, so requests would be cut off undecided"
        )
    for name, limits in contract.items():
        if intervals.timeout_s < max(limits.ttft_s, limits.max_stall_s, limits.e2e_s):
            raise BenchError(f"plan: the timeout is shorter than a limit of contract.{name}")


def _demo_run(
    way: Way,
    trace_sha256: str,
    demands: Mapping[str, Demand],
    costs: StepCosts,
    sizes: tuple[int, int],
) -> dict[str, Any]:
    engines, budget_tokens = sizes
    offered = {n: d for n, d in demands.items() if n == "short" or not way.control}
    pools = way.pools(tuple(offered), engines)
    work = pool_utilisation(pools, offered, costs, budget_tokens)
    return {
        "run_id": f"r1-{way.name}",
        **asdict(way),
        "control": way.control,
        "cell_id": "B0",
        "repeat": 1,
        "trace_sha256": trace_sha256,
        "engines": engines,
        "pools": [{**asdict(p), "offered_work": work[p.name]} for p in pools],
    }


def demo_plan(
    inputs: Mapping[str, Any],
    intervals: Intervals,
    demands: Mapping[str, Demand],
    costs: StepCosts,
    *,
    engines: int = 2,
    budget_tokens: int = 8192,
) -> dict[str, Any]:
    """Return the demonstration's plan: three ways and the control, one round.

    Args:
        inputs: `corpus_sha256` and `traces`, a digest by trace name.
        intervals: of every run.
        demands: what each class offers.
        costs: of an engine step.
        engines: how many in every way.
        budget_tokens: the engines' token budget.
    """
    check_intervals(intervals, DEMO_CONTRACT)
    traces = inputs["traces"]
    sizes = engines, budget_tokens
    return {
        "kind": "demo",
        "synthetic": True,
        **inputs,
        "intervals": asdict(intervals),
        "contract": {name: asdict(c) for name, c in DEMO_CONTRACT.items()},
        "demands": {name: asdict(d) for name, d in demands.items()},
        "rate_per_s": sum(d.rate_per_s for d in demands.values()),
        "rounds": 1,
        "runs": [
            _demo_run(way, traces[way.trace], demands, costs, sizes)
            for way in (*DEMO_WAYS, CONTROL)
        ],
    }
