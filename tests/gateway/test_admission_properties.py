"""The properties of the admission core under generated events.

P1 bounded memory, P2 bounded waiting, P3 shares, P4 bounded overtaking, P5 lateness, P6 exact
ledger, P7 work conservation, P8 same calls same verdicts, isolation of models and arms. The checks
are in ``admission_machine``, ``admission_invariants`` and ``admission_fairness``; their oracle is
``admission_model``. Here they run: in long seeded runs for volume, and under hypothesis for short
counter-examples. ``test_admission_faults`` runs them against planted faults.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gateway.domain import Arm, FlowKey
from gateway.verdicts import RouteView
from tests.gateway import admission_rules as rules
from tests.gateway.admission_isolation import first_difference
from tests.gateway.admission_machine import Machine
from tests.gateway.admission_rules import ALL, SATURATED, Rule, run, seeded_world
from tests.gateway.admission_worlds import World

EVENTS_PER_RUN = 5_250
SEEDS = range(20)

# -- volume --------------------------------------------------------------------------------


def long_run(seed: int) -> Machine:
    """One run in four has one engine, where P3 is the plain bound; the rest two or three."""
    engines = (1, 2, 3, 2)[seed % 4]
    world = seeded_world(seed, engines, models=1 + seed % 3 // 2)
    return run(world, seed, EVENTS_PER_RUN, SATURATED if engines > 1 else ALL)


@pytest.fixture(scope="module")
def runs() -> dict[int, Machine]:
    return {}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_property_holds_after_every_event_of_a_long_run(
    runs: dict[int, Machine], seed: int
) -> None:
    runs[seed] = long_run(seed)
    assert runs[seed].stats["events"] >= EVENTS_PER_RUN


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_long_runs_are_many_and_half_of_them_saturated(runs: dict[int, Machine]) -> None:
    machines = [runs.get(seed) or long_run(seed) for seed in SEEDS]
    stats = sum((m.stats for m in machines), Counter())
    events = stats["events"]
    shares = {k: stats[k] / events for k in ("saturated", "held", "capped", "exceptional")}
    print(f"\n{events} events; " + ", ".join(f"{k} {v:.1%}" for k, v in shares.items()))
    print({k: v for k, v in sorted(stats.items()) if k not in shares})
    worst = max(m.fair.worst for m in machines), max(m.fair.worst_single for m in machines)
    print(f"largest lead, in parts of its bound: {worst[0]:.3f}; on one engine {worst[1]:.3f}")
    assert events >= 100_000
    assert shares["saturated"] >= 0.5
    assert min(shares.values()) > 0
    assert stats["reserved passes"] > 0
    assert stats["exceptional dispatches"] > 0
    assert worst[1] > 0.5  # the bound is neared, so a looser scheduler would be seen


# -- hypothesis ----------------------------------------------------------------------------


class Events(RuleBasedStateMachine):
    """The same rules, drawn and shrunk by hypothesis."""

    machine: Machine

    @initialize(seed=st.integers(0, 200), engines=st.integers(1, 3), models=st.integers(1, 2))
    def build(self, seed: int, engines: int, models: int) -> None:
        self.machine = Machine(seeded_world(seed, engines, models=models))

    @rule(data=st.data(), event=st.sampled_from(list(ALL)))
    def event(self, data: st.DataObject, event: Rule) -> None:
        event(self.machine, lambda n: data.draw(st.integers(0, n - 1)))

    @rule(data=st.data(), count=st.integers(5, 40))
    def burst(self, data: st.DataObject, count: int) -> None:
        chance = random.Random(data.draw(st.integers(0, 1000)))
        for _ in range(count):
            rules.fill(self.machine, chance.randrange)

    def teardown(self) -> None:
        if hasattr(self, "machine"):
            self.machine.finish()


TestEvents = Events.TestCase
TestEvents.settings = settings(
    max_examples=25,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

# -- isolation -----------------------------------------------------------------------------


def of_model_a(key: FlowKey) -> bool:
    return key.model == "a"


def of_stable_arm(key: FlowKey) -> bool:
    return key.arm is Arm.STABLE


def two_models(seed: int) -> Machine:
    """A journal of two models with engines of their own; time moves only by ticks."""
    world = seeded_world(seed, 2, models=2, apart=True)
    weights = SATURATED | {rules.wait: 0, rules.wait_and_tick: 16, rules.wake: 0, rules.health: 3}
    weights |= {rules.reconfigure: 0, rules.reconfigure_wrongly: 0, rules.limits: 0}
    return run(world, seed, 2_500, weights)


def two_arms(seed: int) -> Machine:
    """A journal of a canary whose candidates have the engines that the stable arm does not use.

    The arms share queue caps, the callers' caps and the learnt output length on purpose; here
    those are out of reach, so that what is left must be isolated.
    """
    world = seeded_world(seed, 3)
    specs = [
        replace(
            s, max_queued=10_000, max_queued_tokens=10**9, max_queued_bytes=10**9,
            target_wait_s=None, principal_share=1.0,
        )
        for s in world.specs
    ]  # fmt: skip
    routes = {k: RouteView("first", "rest", 0.3) for k in world.topology.routes}
    world = World(tuple(specs), replace(world.topology, routes=routes))
    weights: dict[Rule, int] = {
        rules.fill: 30, rules.prefill_done: 20, rules.release_untold: 20, rules.wait_and_tick: 16,
        rules.cancel: 3, rules.health: 4, rules.requeue: 3, rules.adapt: 1,
    }  # fmt: skip
    return run(world, seed, 2_500, weights)


@pytest.mark.parametrize("seed", range(4))
def test_what_happens_to_one_model_changes_nothing_for_another(seed: int) -> None:
    machine = two_models(seed)
    assert first_difference(machine.world, machine.journal, of_model_a) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_full_or_dead_candidate_pool_changes_nothing_for_the_stable_arm(seed: int) -> None:
    machine = two_arms(seed)
    assert first_difference(machine.world, machine.journal, of_stable_arm) is None
