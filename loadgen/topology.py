"""Sets out shared against isolated engines on equal hardware, and plans the split.

The split follows from the work each class offers: of all ways to divide the engines among the
classes, the one whose busiest pool, over all strata, is the least busy. Every run has the whole
hardware: in the runs of one class alone the other pools idle, so that they show what the class
gets from its own pool. Rates are the sweep's times the engines, or the comparison would be made
at a fraction of the load. Pure: no I/O, no clock.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from loadgen.arms import gated
from loadgen.capacity import Demand, Pool, StepCosts, pool_utilisation
from loadgen.record import BenchError
from loadgen.simulate import Action, PassThrough, SimArrival
from loadgen.sweep_settings import Mix, Rates, SweepSettings

__all__ = [
    "PoolPass",
    "Split",
    "demands_of",
    "plan_split",
    "split_lines",
    "topology_plan",
    "topology_settings",
]

Json = dict[str, Any]
ALONE = "-only-"


@dataclass(frozen=True, slots=True)
class Split:
    """Engines of each class's own pool, and how busy pools are in each stratum at least.

    `utilisation` is by "mix/rate" and then by pool: each class's own, and "shared".
    """

    engines: Mapping[str, int]
    utilisation: Mapping[str, Mapping[str, float]]

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The isolated pools."""
        return tuple(Pool(name, (name,), count) for name, count in self.engines.items())

    @property
    def busiest(self) -> float:
        """The largest utilisation of an isolated pool."""
        return max(u for row in self.utilisation.values() for n, u in row.items() if n != "shared")


def _rates(rates: Rates, factor: int) -> Rates:
    stress = None if rates.stress is None else rates.stress * factor
    return Rates(rates.low * factor, rates.near * factor, stress)


def _alone(mix: str, size_class: str) -> str:
    return f"{mix}{ALONE}{size_class}"


def topology_settings(settings: SweepSettings, engines: int, cell_id: str) -> SweepSettings:
    """Return the sweep's settings for this comparison: one cell, mixed classes, scaled rates.

    Each class's arrivals alone are the mix's trace with the other classes deleted.

    Raises:
        BenchError: fewer engines than classes, no mix of several classes, or no such cell.
    """
    if engines < len(settings.classes):
        raise BenchError(f"topology: {engines} engines cannot be split for each class")
    mixed = {
        n: m for n, m in settings.mixes.items() if len([s for s in m.shares.values() if s]) > 1
    }
    if not mixed:
        raise BenchError("topology: the sweep file has no mix of several classes")
    known = {c.cell_id: c for c in settings.cells}
    if cell_id != "B0" and cell_id not in known:
        raise BenchError(f"topology: --cell {cell_id}: known are B0, {', '.join(known)}")
    mixes = dict(mixed)
    for mix, own in mixed.items():
        for name in own.shares:
            mixes[_alone(mix, name)] = Mix(derived_from=mix, keep=(name,))
    rates = {n: _rates(settings.rates[n], engines) for n in mixed}
    pairs = [(mix, rate) for mix in mixed for rate in settings.strata]
    contract = {n: gated(c, pairs) for n, c in settings.contract.items()}
    cells = tuple(c for c in settings.cells if c.cell_id == cell_id)
    return replace(settings, mixes=mixes, rates=rates, contract=contract, cells=cells, aa=False)


def demands_of(settings: SweepSettings) -> dict[str, dict[str, Demand]]:
    """Return what each class offers in each stratum, by "mix/rate"."""
    return {
        f"{mix}/{rate}": {
            name: Demand(
                settings.rates[mix].named(rate) * share,
                settings.classes[name].prompt_tokens,
                settings.classes[name].output_tokens,
            )
            for name, share in own.shares.items()
        }
        for mix, own in settings.mixes.items()
        if own.shares
        for rate in settings.strata
    }


def _split(
    counts: Mapping[str, int],
    demands: Mapping[str, Mapping[str, Demand]],
    costs: StepCosts,
    budget_tokens: int,
) -> Split:
    shared = Pool("shared", tuple(counts), sum(counts.values()))
    pools = [shared, *(Pool(name, (name,), count) for name, count in counts.items())]
    told = {s: pool_utilisation(pools, own, costs, budget_tokens) for s, own in demands.items()}
    return Split(counts, told)


def plan_split(
    engines: int,
    demands: Mapping[str, Mapping[str, Demand]],
    costs: StepCosts,
    budget_tokens: int,
) -> Split:
    """Return the split of the engines whose busiest pool is the least busy.

    Args:
        engines: how many there are in all; every class gets one at least.
        demands: what each class offers, by stratum.
        costs: of an engine step.
        budget_tokens: the engines' token budget.

    Raises:
        BenchError: fewer engines than classes.
    """
    names = list(dict.fromkeys(name for own in demands.values() for name in own))
    ways = product(range(1, engines), repeat=len(names))
    splits = [
        _split(dict(zip(names, way, strict=True)), demands, costs, budget_tokens)
        for way in ways
        if sum(way) == engines
    ]
    if not splits:
        raise BenchError(f"topology: {engines} engines cannot be split for {', '.join(names)}")
    return min(splits, key=lambda split: split.busiest)


def split_lines(split: Split) -> list[str]:
    """Say the split and its utilisation; a pool above 100 % cannot carry its load."""
    parts = " + ".join(f"{count} {name}" for name, count in split.engines.items())
    lines = [f"split: {parts} (of {sum(split.engines.values())} engines)"]
    for stratum, row in split.utilisation.items():
        pools = ", ".join(f"{name} {value:.0%}" for name, value in row.items())
        over = [name for name, value in row.items() if value > 1]
        said = f"; cannot carry it: {', '.join(over)}" if over else ""
        lines.append(f"  {stratum}: {pools}{said}")
    return lines


def _pools(pools: Sequence[Pool], work: Mapping[str, float]) -> list[Json]:
    return [{**asdict(p), "classes": list(p.classes), "offered_work": work[p.name]} for p in pools]


def _ways(mix: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return (topology, mix of the trace) of every run that a stratum needs."""
    alone = [(f"alone-{name}", _alone(mix, name)) for name in names]
    return [("shared", mix), ("isolated", mix), *alone]


def _runs(plan: Mapping[str, Any], split: Split, cell_id: str) -> Iterator[Json]:
    rng = random.Random(f"sluicegate-topology-1:{plan['seed']}")
    own = [r for r in plan["runs"] if r["cell_id"] == cell_id]
    planned = {(r["mix"], r["rate"], r["repeat"]): r for r in own}
    strata = [(s["mix"], s["rate"]) for s in plan["strata"] if ALONE not in s["mix"]]
    names = list(split.engines)
    shared = Pool("shared", tuple(names), sum(split.engines.values()))
    start = order = 0
    for repeat in range(1, plan["rounds"] + 1):
        ways = ["shared", "isolated", *(f"alone-{name}" for name in names)]
        for topology in rng.sample(ways, len(ways)):
            start += 1
            for mix, rate in rng.sample(strata, len(strata)):
                order += 1
                trace_mix = dict(_ways(mix, names))[topology]
                pools = (shared,) if topology == "shared" else split.pools
                yield {
                    **planned[trace_mix, rate, repeat],
                    "run_id": f"r{repeat}-{topology}-{mix}-{rate}",
                    "mix": mix,
                    "gate": True,
                    "topology": topology,
                    "admission": plan["gateway"].get("admission", "off"),
                    "engines": shared.engines,
                    "engine_args": {},
                    "pools": _pools(pools, split.utilisation[f"{mix}/{rate}"]),
                    "start": start,
                    "order": order,
                }


def topology_plan(plan: Mapping[str, Any], split: Split, cell_id: str) -> Json:
    """Return the topologies' plan, made of a sweep's plan frozen with `topology_settings`."""
    return {
        **plan,
        "kind": "topology",
        "cells": [c for c in plan["cells"] if c["cell_id"] == cell_id],
        "strata": [s for s in plan["strata"] if ALONE not in s["mix"]],
        "mixes": {n: m for n, m in plan["mixes"].items() if ALONE not in n},
        "derived_mixes": {},
        "split": dict(split.engines),
        "split_utilisation": {s: dict(row) for s, row in split.utilisation.items()},
        "engine_starts": (2 + len(split.engines)) * plan["rounds"],
        "runs": list(_runs(plan, split, cell_id)),
    }


class PoolPass:
    """Passes every request on, each class to the engines of its own pool.

    Args:
        pools: in the order of the engines: the first pool has the first engines.
    """

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._of_class: dict[str, tuple[int, PassThrough]] = {}
        self._of_seq: dict[int, tuple[int, PassThrough]] = {}
        first = 0
        for pool in pools:
            own = first, PassThrough(pool.engines)
            self._of_class |= dict.fromkeys(pool.classes, own)
            first += pool.engines

    def offer(self, arrival: SimArrival, now: float) -> Sequence[Action]:
        """Send it to its pool."""
        first, policy = self._of_seq[arrival.seq] = self._of_class[arrival.size_class]
        actions = policy.offer(arrival, now)
        return [replace(a, engine=first + (a.engine or 0)) for a in actions]

    def first_event(self, seq: int, now: float) -> Sequence[Action]:
        """Its prompt is no longer outstanding."""
        return self._of_seq[seq][1].first_event(seq, now)

    def finished(self, seq: int, now: float, output_tokens: int) -> Sequence[Action]:
        """Its answer is complete."""
        return self._of_seq.pop(seq)[1].finished(seq, now, output_tokens)

    def cancel(self, seq: int, now: float) -> Sequence[Action]:
        """Its caller left."""
        return self._of_seq.pop(seq)[1].cancel(seq, now)

    def tick(self, now: float) -> Sequence[Action]:
        """Nothing is due by time."""
        return []

    def next_wakeup(self, now: float) -> float | None:
        """Never."""
        return None
