"""Sets out the policy arms: what the gateway's admission and the engine's priorities each buy.

Four arms (nothing, admission, engine priority, both) on the same traces, the mixes of several
classes at the near rate, one freshly started baseline engine for each arm and round. The order of
arms in a round, and of strata in an arm, is shuffled by the sweep's seed. Pure: no I/O, no clock.
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadgen.record import BenchError
from loadgen.simulate import Action, Policy, SimArrival
from loadgen.sweep_settings import BASELINE, ClassContract, SweepSettings

__all__ = ["ARMS", "BASE", "ENGINE_PRIORITY", "Arm", "Stamped", "arms_plan", "arms_settings"]

Json = dict[str, Any]
RATE = "near"
BASE = "off"
# What the gateway stamps by service class unless its configuration says otherwise.
ENGINE_PRIORITY: Mapping[str, int] = {"interactive": -10, "standard": 0, "batch": 10}


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of treating the same arrivals on the same engine."""

    name: str
    admission: str
    engine_priority: bool

    @property
    def engine_args(self) -> Json:
        """What the arm changes in the baseline engine's arguments."""
        return {"scheduling_policy": "priority"} if self.engine_priority else {}


ARMS = (
    Arm(BASE, "off", engine_priority=False),
    Arm("enforce", "enforce", engine_priority=False),
    Arm("engine-priority", "off", engine_priority=True),
    Arm("both", "enforce", engine_priority=True),
)


def arms_settings(settings: SweepSettings) -> SweepSettings:
    """Return the sweep's settings cut down to what the arms need: B0, mixed classes, near.

    Raises:
        BenchError: the sweep has no mix of several classes, or no near rate.
    """
    mixes = {
        n: m for n, m in settings.mixes.items() if len([s for s in m.shares.values() if s]) > 1
    }
    if not mixes:
        raise BenchError("arms: the sweep file has no mix of several classes")
    if any(n not in settings.rates or settings.rates[n].near <= 0 for n in mixes):
        raise BenchError(f"arms: a rate {RATE!r} is missing for one of {', '.join(mixes)}")
    rates = {n: settings.rates[n] for n in mixes}
    contract = {n: gated(c, [(mix, RATE) for mix in mixes]) for n, c in settings.contract.items()}
    return replace(
        settings, mixes=mixes, rates=rates, contract=contract, strata=(RATE,), cells=(), aa=False
    )


def gated(contract: ClassContract, strata: Sequence[tuple[str, str]]) -> ClassContract:
    """Return the contract with these strata as its gates: the limits stay the sweep's."""
    return replace(contract, gate_strata=tuple(strata))


def _runs(plan: Mapping[str, Any], arms: Sequence[Arm]) -> Iterator[Json]:
    rng = random.Random(f"sluicegate-arms-1:{plan['seed']}")
    planned = {(r["mix"], r["rate"], r["repeat"]): r for r in plan["runs"]}
    strata = [(s["mix"], s["rate"]) for s in plan["strata"]]
    start = order = 0
    for repeat in range(1, plan["rounds"] + 1):
        for arm in rng.sample(arms, len(arms)):
            start += 1
            for mix, rate in rng.sample(strata, len(strata)):
                order += 1
                yield {
                    **planned[mix, rate, repeat],
                    "run_id": f"r{repeat}-{arm.name}-{mix}-{rate}",
                    "arm": arm.name,
                    "admission": arm.admission,
                    "topology": "shared",
                    "engines": 1,
                    "engine_args": arm.engine_args,
                    "start": start,
                    "order": order,
                }


def arms_plan(plan: Mapping[str, Any], only: Collection[str] = ()) -> Json:
    """Return the arms' plan, made of a sweep's plan that was frozen with `arms_settings`.

    Args:
        plan: the sweep's.
        only: names of the arms to compare with off; all of them if there is none.
    """
    arms = [arm for arm in ARMS if not only or arm.name in {BASE, *only}]
    rows = list(_runs(plan, arms))
    return {
        **plan,
        "kind": "arms",
        "cells": [c for c in plan["cells"] if c["cell_id"] == BASELINE],
        "arms": [arm.name for arm in arms],
        "engine_starts": len(arms) * plan["rounds"],
        "runs": rows,
    }


class Stamped:
    """A policy whose dispatches bear an engine priority by service class.

    Args:
        policy: decides when and where.
        priorities: by service class; lower is earlier, 0 where a class is not named.
    """

    def __init__(self, policy: Policy, priorities: Mapping[str, int] = ENGINE_PRIORITY) -> None:
        self._policy = policy
        self._priorities = priorities
        self._service: dict[int, str] = {}

    def _stamp(self, actions: Sequence[Action]) -> Sequence[Action]:
        return [replace(a, priority=self._priority(a.seq)) for a in actions]

    def _priority(self, seq: int) -> int:
        return self._priorities.get(self._service.get(seq, ""), 0)

    def offer(self, arrival: SimArrival, now: float) -> Sequence[Action]:
        """A request arrived."""
        self._service[arrival.seq] = arrival.service_class
        return self._stamp(self._policy.offer(arrival, now))

    def first_event(self, seq: int, now: float) -> Sequence[Action]:
        """Its first token came back."""
        return self._stamp(self._policy.first_event(seq, now))

    def finished(self, seq: int, now: float, output_tokens: int) -> Sequence[Action]:
        """Its answer is complete."""
        self._service.pop(seq, None)
        return self._stamp(self._policy.finished(seq, now, output_tokens))

    def cancel(self, seq: int, now: float) -> Sequence[Action]:
        """Its caller left."""
        self._service.pop(seq, None)
        return self._stamp(self._policy.cancel(seq, now))

    def tick(self, now: float) -> Sequence[Action]:
        """Time passed."""
        return self._stamp(self._policy.tick(now))

    def next_wakeup(self, now: float) -> float | None:
        """When to tick if nothing else happens."""
        return self._policy.next_wakeup(now)
