"""Says how attainment and goodput fall as the offered rate rises, and where the knee is.

The knee is the highest rate of the ladder up to which every class meets its contract's share of
offered requests. In virtual time, on traces drawn as a plan's are. Pure: no I/O, no clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.analyse import reduce_run
from loadgen.engine.cost import StepCost
from loadgen.expectation import drawn_trace
from loadgen.simulate import PassThrough, Policy
from loadgen.virtual_run import World, cell_args, scheduler_config, virtual_run

__all__ = ["STEPS", "Rung", "knee", "ladder"]

Json = Mapping[str, Any]
# Offered rates as shares of what a closed loop completes per second.
STEPS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.1, 1.2, 1.35, 1.5)


@dataclass(frozen=True, slots=True)
class Rung:
    """One offered rate: each class's share of requests within all limits, and how many a second."""

    rate_per_s: float
    attainment: Mapping[str, float]
    goodput_per_s: Mapping[str, float]


def ladder(
    plan: Json,
    where: tuple[str, str],
    rates_per_s: Sequence[float],
    cost: StepCost,
    policy: Policy | None = None,
) -> Iterator[Rung]:
    """Yield what each offered rate does to a cell.

    Args:
        plan: for arrivals, sizes, limits and intervals.
        where: the cell and the mix.
        rates_per_s: of the whole mix.
        cost: of an engine step.
        policy: in front of the engine; without it everything is passed on at once.
    """
    cell_id, mix = where
    times, args = plan["intervals"], cell_args(plan, cell_id)
    world = World((scheduler_config(args),), cost, times["ramp_s"], times["timeout_s"])
    for rate_per_s in rates_per_s:
        name = f"{rate_per_s:.6g}"
        run = {"run_id": f"{cell_id}-{mix}-{name}", "cell_id": cell_id, "repeat": 1}
        run |= {"mix": mix, "rate": name, "rate_per_s": rate_per_s, "trace": ""}
        asked = {**plan, "rates": {plan["derived_mixes"].get(mix, mix): {name: rate_per_s}}}
        trace = drawn_trace(asked, run)
        made = virtual_run(trace, policy or PassThrough(1), world)
        facts = reduce_run(run, plan, len(trace), made.records, made.samples, {"virtual": True})
        yield Rung(
            rate_per_s,
            {n: c.met / c.offered for n, c in facts.classes.items()},
            {n: c.met / times["window_s"] for n, c in facts.classes.items()},
        )


def knee(rungs: Sequence[Rung], contract: Json) -> float | None:
    """Return the highest rate up to which every class attains its share; None if not even one."""
    found = None
    for rung in sorted(rungs, key=lambda r: r.rate_per_s):
        if any(share < contract[n]["attainment"] for n, share in rung.attainment.items()):
            break
        found = rung.rate_per_s
    return found
