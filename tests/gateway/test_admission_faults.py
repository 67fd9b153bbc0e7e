"""Proof that the properties of the admission core can fail: each catches planted faults."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from gateway import arrival, ring, topology
from gateway.admission import Admission
from gateway.agenda import Agenda
from gateway.domain import FlowKey, FlowSpec, MisuseError
from gateway.flows import Flow, Group, Ticket
from gateway.lease import Lease, Obstacle
from gateway.ledger import EngineLedger
from gateway.ring import Ring
from gateway.topology import Layout
from gateway.traffic import Traffic
from tests.gateway.admission_isolation import first_difference
from tests.gateway.admission_machine import Machine
from tests.gateway.admission_model import Breach
from tests.gateway.admission_rules import ALL, run, seeded_world
from tests.gateway.test_admission_properties import of_model_a, of_stable_arm, two_arms, two_models

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A wrong core, the property that must see it, how many engines it needs, where to begin."""

    name: str
    props: str
    plant: Plant
    engines: int = 1
    first_seed: int = 0


FAULTS: list[Fault] = []


def fault(props: str, engines: int = 1, first_seed: int = 0) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        FAULTS.append(Fault(plant.__name__, props, plant, engines, first_seed))
        return plant

    return register


@fault("P1")
def caps_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(arrival, "caps_outcome", lambda *_: None)


@fault("P1")
def what_is_being_counted_is_not_charged(patch: pytest.MonkeyPatch) -> None:
    real = arrival.caps_outcome

    def uncharged(group: Group, tokens: int, body: int) -> object:
        return real(replace(group, counting=0, counting_bytes=0), tokens, body)

    patch.setattr(arrival, "caps_outcome", uncharged)


@fault("P1")
def bytes_are_given_back_twice(patch: pytest.MonkeyPatch) -> None:
    real = Flow.remove

    def remove(flow: Flow, ticket: Ticket) -> None:
        real(flow, ticket)
        flow.group.queued_bytes -= ticket.body_bytes

    patch.setattr(Flow, "remove", remove)


def hear_of_deadlines(patch: pytest.MonkeyPatch, due: Callable[..., int | None]) -> None:
    """Let the core learn of passed deadlines, and of nothing else, only by ``due``."""
    real = Admission.__init__

    def init(core: Admission, *args: object) -> None:
        real(core, *args)  # type: ignore[arg-type]
        honest = core._traffic.deadlines
        pop_due = honest.pop_due
        patch.setattr(honest, "pop_due", lambda now: due(pop_due, now))

    patch.setattr(Admission, "__init__", init)


@fault("P2")
def nothing_expires(patch: pytest.MonkeyPatch) -> None:
    hear_of_deadlines(patch, lambda _pop_due, _now: None)


@fault("P2")
def expiry_is_late_by_a_second(patch: pytest.MonkeyPatch) -> None:
    hear_of_deadlines(patch, lambda pop_due, now: pop_due(now - 1.0))


@fault("P2")
def the_deadline_is_late_by_the_maximum_age(patch: pytest.MonkeyPatch) -> None:
    real = Admission._ticket

    def ticket(core: Admission, *args: object) -> Ticket:
        made = real(core, *args)  # type: ignore[arg-type]
        made.deadline_s += made.flow.group.spec.max_age_s
        return made

    patch.setattr(Admission, "_ticket", ticket)


@fault("P2")
def the_timer_is_never_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "next_wakeup", lambda _core, _now: None)


@fault("P3")
def deficits_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ring, "_may_go", lambda _ring, _flow: True)


@fault("P3")
def the_turn_starts_anew_at_every_event(patch: pytest.MonkeyPatch) -> None:
    real = Ring.next

    def anew(turns: Ring, now: float) -> object:
        turns._turn, turns._turn_open = 0, False
        return real(turns, now)

    patch.setattr(Ring, "next", anew)


@fault("P3")
def weights_are_ignored(patch: pytest.MonkeyPatch) -> None:
    real = Layout._place

    def place(layout: Layout, key: FlowKey) -> None:
        real(layout, key)
        if key in layout.flows:
            layout.flows[key].weight = 1.0

    patch.setattr(Layout, "_place", place)


@fault("P3", first_seed=244)  # a debt of reserved passes seldom outlives a canary
def a_debt_stays_as_large_when_the_weight_falls(patch: pytest.MonkeyPatch) -> None:
    def weigh(flow: Flow, weight: float, quantum: float) -> None:
        flow.weight = weight
        flow.deficit = min(flow.deficit, weight * quantum + flow.given_back)

    patch.setattr(Flow, "weigh", weigh)


@fault("P4", engines=2)
def nobody_holds(patch: pytest.MonkeyPatch) -> None:
    real = ring._conclude

    def conclude(flow: Flow) -> None:
        real(flow)
        flow.may_hold = False

    patch.setattr(ring, "_conclude", conclude)


@fault("P4")
def whatever_has_a_reservation_passes_a_hold(patch: pytest.MonkeyPatch) -> None:
    def passes(ledger: EngineLedger, flow: Flow, ticket: Ticket) -> bool:
        hold = ledger.hold
        if hold is None or hold.flow is flow or flow not in ledger.reserved:
            return False
        ledger.hold = None
        found = ledger.obstacle(flow, ticket)
        ledger.hold = hold
        return found is None

    patch.setattr(EngineLedger, "fits_reservation", passes)


@fault("P4")
def a_hold_outlives_its_head(patch: pytest.MonkeyPatch) -> None:
    real = Traffic.leave

    def leave(traffic: Traffic, ticket: Ticket) -> None:
        flow = ticket.flow
        hold, flow.hold = flow.hold, None
        real(traffic, ticket)
        flow.hold = hold

    patch.setattr(Traffic, "leave", leave)


@fault("P4")
def reservations_are_suspended_as_often_as_asked(patch: pytest.MonkeyPatch) -> None:
    real = Ring._place_hold

    def place(turns: Ring, *args: object) -> bool:
        for engine in turns.engines:
            engine.last_exceptional_s = float("-inf")
        return real(turns, *args)  # type: ignore[arg-type]

    patch.setattr(Ring, "_place_hold", place)


@fault("P4 P5")
def who_expires_first_goes_first(patch: pytest.MonkeyPatch) -> None:
    def soonest(real: Callable[..., None]) -> Callable[..., None]:
        def change(flow: Flow, *args: object) -> None:
            real(flow, *args)
            flow.head = min(flow.queue.values(), key=lambda t: t.deadline_s, default=None)

        return change

    patch.setattr(Flow, "append", soonest(Flow.append))
    patch.setattr(Flow, "remove", soonest(Flow.remove))


@fault("P3 P5")
def lateness_is_credit(patch: pytest.MonkeyPatch) -> None:
    real = Ring._may_go

    def may_go(turns: Ring, flow: Flow) -> bool:
        oldest = min(f.head.arrived_s for f in turns.flows if f.head)
        return real(turns, flow) or (flow.head is not None and flow.head.arrived_s <= oldest)

    patch.setattr(Ring, "_may_go", may_go)


@fault("P6")
def a_release_keeps_the_prefill(patch: pytest.MonkeyPatch) -> None:
    real = EngineLedger.release

    def release(ledger: EngineLedger, lease: Lease) -> None:
        lease.prefilling = False
        real(ledger, lease)

    patch.setattr(EngineLedger, "release", release)


@fault("P6")
def a_second_release_passes_unseen(patch: pytest.MonkeyPatch) -> None:
    real = Admission.release

    def release(core: Admission, lease_id: int, now: float, output: int | None = None) -> object:
        try:
            return real(core, lease_id, now, output)
        except MisuseError:
            return []

    patch.setattr(Admission, "release", release)


@fault("P6")
def reservations_of_others_are_ignored(patch: pytest.MonkeyPatch) -> None:
    real = EngineLedger.reserve
    patch.setattr(EngineLedger, "reserve", lambda ledger, _flows, now: real(ledger, (), now))


@fault("P4 P6")
def the_class_cap_is_ignored(patch: pytest.MonkeyPatch) -> None:
    real = EngineLedger._changed

    def changed(ledger: EngineLedger) -> None:
        real(ledger)
        ledger.full = []

    patch.setattr(EngineLedger, "_changed", changed)


@fault("P2 P6")
def the_prefill_of_an_unstreamed_answer_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Traffic, "still_prefilling", lambda _traffic, _lease_id: False)


@fault("P7")
def what_comes_free_serves_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Traffic, "freed", lambda _traffic, _engine, _now: [])


@fault("P4 P7")
def health_and_limits_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Traffic, "dispatch_all", lambda _traffic, _now: [])
    patch.setattr(Traffic, "changed", lambda _traffic, _engine, _now: [])


@fault("P7", engines=2)
def a_held_head_waits_for_its_own_engine(patch: pytest.MonkeyPatch) -> None:
    real = Ring._held_head

    def held_head(turns: Ring, now: float) -> object:
        for flow in turns.holding:
            if flow.hold_engine is not None and flow.obstacles[flow.hold_engine] is not None:
                flow.fits = False
        return real(turns, now)

    patch.setattr(Ring, "_held_head", held_head)


@fault("P8", engines=2)
def the_engine_is_chosen_by_a_counter_of_the_process(patch: pytest.MonkeyPatch) -> None:
    counter = itertools.count()

    def choose(fits: Sequence[EngineLedger], _ticket: Ticket) -> EngineLedger:
        return fits[next(counter) % len(fits)]

    patch.setattr(ring, "_best", choose)


@fault("P8")
def turns_follow_an_order_that_differs_between_processes(patch: pytest.MonkeyPatch) -> None:
    chance, real = random.Random(5), topology.rings_of

    def rings(flows: Iterable[Flow], quantum: float, before: Mapping[Flow, Ring]) -> list[Ring]:
        shuffled = list(flows)
        chance.shuffle(shuffled)
        return real(shuffled, quantum, before)

    patch.setattr(topology, "rings_of", rings)


# -- what comes back -----------------------------------------------------------------------


@fault("P4 P5")
def what_comes_back_waits_at_the_end(patch: pytest.MonkeyPatch) -> None:
    real = Flow.restore

    def restore(flow: Flow, ticket: Ticket, now: float) -> None:
        real(flow, ticket, now)
        flow.queue.move_to_end(ticket.id)
        flow.head = next(iter(flow.queue.values()))

    patch.setattr(Flow, "restore", restore)


@fault("P4 P5")
def what_comes_back_waits_second(patch: pytest.MonkeyPatch) -> None:
    real = Flow.restore

    def restore(flow: Flow, ticket: Ticket, now: float) -> None:
        before = flow.head
        real(flow, ticket, now)
        if before is not None:
            flow.queue.move_to_end(before.id, last=False)
            flow.head = before

    patch.setattr(Flow, "restore", restore)


def give_back(patch: pytest.MonkeyPatch, share: float) -> None:
    """Change how much of a dispatch's charge comes back with what failed."""
    real = Flow.restore

    def restore(flow: Flow, ticket: Ticket, now: float) -> None:
        ticket.charged *= share
        real(flow, ticket, now)

    patch.setattr(Flow, "restore", restore)


@fault("P3", first_seed=6)  # rarely enough at once to pass the bound
def what_comes_back_is_charged_twice(patch: pytest.MonkeyPatch) -> None:
    give_back(patch, 0.0)


@fault("P3")
def the_charge_is_given_back_thrice(patch: pytest.MonkeyPatch) -> None:
    give_back(patch, 3.0)


@fault("P3")
def what_was_given_back_outlives_its_ticket(patch: pytest.MonkeyPatch) -> None:
    real = Flow.remove

    def remove(flow: Flow, ticket: Ticket) -> None:
        flow.deficit += ticket.given_back
        real(flow, ticket)

    patch.setattr(Flow, "remove", remove)


@fault("P2")
def what_comes_back_gets_a_new_deadline(patch: pytest.MonkeyPatch) -> None:
    real = Traffic.wait_in_front

    def wait(traffic: Traffic, ticket: Ticket, now: float) -> None:
        ticket.deadline_s = now + ticket.flow.group.spec.max_age_s
        real(traffic, ticket, now)

    patch.setattr(Traffic, "wait_in_front", wait)


@fault("P2")
def what_comes_back_has_no_deadline(patch: pytest.MonkeyPatch) -> None:
    real = Traffic.wait_in_front

    def wait(traffic: Traffic, ticket: Ticket, now: float) -> None:
        deadlines, traffic.deadlines = traffic.deadlines, Agenda(lambda _: False)
        real(traffic, ticket, now)
        traffic.deadlines = deadlines

    patch.setattr(Traffic, "wait_in_front", wait)


@fault("P6")
def what_comes_back_keeps_its_lease(patch: pytest.MonkeyPatch) -> None:
    real, real_requeue = EngineLedger.release, Admission.requeue
    failing: list[bool] = []

    def requeue(core: Admission, *args: object, **kwargs: object) -> object:
        failing.append(True)
        return real_requeue(core, *args, **kwargs)  # type: ignore[arg-type]

    def release(ledger: EngineLedger, lease: Lease) -> None:
        if not failing:
            real(ledger, lease)
        failing.clear()

    patch.setattr(Admission, "requeue", requeue)
    patch.setattr(EngineLedger, "release", release)


@fault("P6")
def what_comes_back_counts_its_caller_twice(patch: pytest.MonkeyPatch) -> None:
    real = Traffic.wait_in_front

    def wait(traffic: Traffic, ticket: Ticket, now: float) -> None:
        ticket.flow.group.enter(ticket.principal)
        real(traffic, ticket, now)

    patch.setattr(Traffic, "wait_in_front", wait)


@fault("P6", engines=2)
def the_engine_that_failed_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ring, "_shunned", lambda _flow, _ticket: ())


@fault("P7 P4", engines=2)
def the_engine_that_failed_is_avoided_though_no_other_could_take_it(
    patch: pytest.MonkeyPatch,
) -> None:
    patch.setattr(ring, "_shunned", lambda _flow, ticket: ticket.avoids)


@fault("P6 P7 P4", engines=2)
def an_outage_elsewhere_does_not_reopen_the_engine_that_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ring, "look_again", lambda _ring: None)


# -- another configuration -----------------------------------------------------------------


@fault("P6")
def an_engine_that_is_gone_is_dropped_with_its_leases(patch: pytest.MonkeyPatch) -> None:
    real = Layout.settle

    def settle(layout: Layout) -> None:
        for name in [n for n, e in layout.engines.items() if e.retired]:
            layout.engines[name].slots_by_flow.clear()
        real(layout)

    patch.setattr(Layout, "settle", settle)


@fault("P6", engines=2)
def an_engine_that_is_gone_goes_on_taking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EngineLedger, "retire", lambda _ledger, _now: None)


@fault("P6")
def what_is_gone_is_never_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Layout, "settle", lambda _layout: None)


@fault("P1")
def a_flow_that_is_gone_goes_on_accepting(patch: pytest.MonkeyPatch) -> None:
    real = Layout._dismiss

    def dismiss(layout: Layout, flow: Flow) -> None:
        real(layout, flow)
        flow.accepts = bool(flow.queue or flow.running)

    patch.setattr(Layout, "_dismiss", dismiss)


@fault("P2")
def a_new_maximum_age_does_not_reach_who_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agenda, "restart", lambda _agenda, _entries: None)


@fault("P2")
def a_new_configuration_begins_every_wait_anew(patch: pytest.MonkeyPatch) -> None:
    real = Admission.reconfigure

    def reconfigure(core: Admission, specs: object, topo: object, now: float) -> object:
        for ticket in core._traffic.tickets.values():
            ticket.deadline_s += 3600.0
        return real(core, specs, topo, now)  # type: ignore[arg-type]

    patch.setattr(Admission, "reconfigure", reconfigure)


@fault("P6")
def a_wrong_configuration_is_taken_by_halves(patch: pytest.MonkeyPatch) -> None:
    real = Layout.replace

    def replace_first(layout: Layout, specs: Sequence[FlowSpec], *args: object) -> None:
        for spec in specs:
            layout.groups.setdefault(spec.group, Group(spec)).spec = spec
        for engine in layout.engines.values():
            engine.set_limits(replace(engine.configured, slots=1), 0.0)
        real(layout, specs, *args)  # type: ignore[arg-type]

    patch.setattr(Layout, "replace", replace_first)


@fault("P4")
def what_can_never_go_any_more_waits_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Traffic, "refuse_misfits", lambda _traffic: [])


@fault("P6")
def a_restart_keeps_what_was_learnt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EngineLedger, "restarted", lambda _ledger, _now: None)


@fault("P6")
def a_restart_does_not_ramp(patch: pytest.MonkeyPatch) -> None:
    real = EngineLedger.restarted

    def restarted(ledger: EngineLedger, now: float) -> None:
        real(ledger, now)
        ledger.ramp_from_s = None
        ledger.ramp(now)

    patch.setattr(EngineLedger, "restarted", restarted)


@fault("P6")
def a_restart_ends_the_leases(patch: pytest.MonkeyPatch) -> None:
    real = EngineLedger.restarted

    def restarted(ledger: EngineLedger, now: float) -> None:
        real(ledger, now)
        ledger.slots_used = ledger.prefill_used = ledger.kv_used = 0
        ledger._changed()

    patch.setattr(EngineLedger, "restarted", restarted)


@fault("P1 P2 P4 P6 P7 isolation")
def a_cap_of_0_is_no_cap(patch: pytest.MonkeyPatch) -> None:
    real = EngineLedger._changed

    def changed(ledger: EngineLedger) -> None:
        ledger.caps = {size: cap for size, cap in ledger.caps.items() if cap}
        real(ledger)

    patch.setattr(EngineLedger, "_changed", changed)


@fault("P1 P2 P4")
def a_cap_of_0_is_a_full_class(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EngineLedger, "takes", lambda _ledger, _size: True)


@fault("P6")
def a_limit_that_stops_a_head_does_not_say_so(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "gate_bound", lambda _core, _engine: False)


@fault("P4 P6 P7")
def a_head_larger_than_a_ramp_holds_the_engine(patch: pytest.MonkeyPatch) -> None:
    real = EngineLedger.obstacle

    def obstacle(ledger: EngineLedger, flow: Flow, ticket: Ticket) -> Obstacle | None:
        found = real(ledger, flow, ticket)
        return Obstacle.SHARED if found is Obstacle.TOO_LARGE else found

    patch.setattr(EngineLedger, "obstacle", obstacle)


def a_dozen_runs(engines: int, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 12):
        run(seeded_world(seed, engines), seed, 2_000, ALL)


@pytest.mark.parametrize("wrong", FAULTS, ids=lambda f: f.name)
def test_a_planted_fault_is_caught(wrong: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong.plant(monkeypatch)
    with pytest.raises(Breach) as breach:
        a_dozen_runs(wrong.engines, wrong.first_seed)
    assert breach.value.prop in wrong.props.split(), breach.value


def one_class_cap_for_all_engines(patch: pytest.MonkeyPatch) -> None:
    real, shared = EngineLedger.__init__, Counter[str]()

    def init(ledger: EngineLedger, *args: object) -> None:
        if args[0] == "e0":
            shared.clear()
        real(ledger, *args)  # type: ignore[arg-type]
        ledger.prefilling = shared

    patch.setattr(EngineLedger, "__init__", init)


def one_ring_for_everybody(patch: pytest.MonkeyPatch) -> None:
    def rings(flows: Iterable[Flow], quantum: float, before: Mapping[Flow, Ring]) -> list[Ring]:
        together = list(flows)
        for flow in together:
            if flow.hold is not None:
                before[flow].end_hold(flow)
        return [Ring(together, quantum)]

    patch.setattr(topology, "rings_of", rings)


@pytest.mark.parametrize("plant", [one_class_cap_for_all_engines, one_ring_for_everybody])
@pytest.mark.parametrize(("journal", "kept"), [(two_models, of_model_a), (two_arms, of_stable_arm)])
def test_a_planted_leak_between_models_or_arms_is_caught(
    plant: Plant,
    journal: Callable[[int], Machine],
    kept: Callable[[FlowKey], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines = [journal(seed) for seed in (2, 3)]
    plant(monkeypatch)
    assert any(first_difference(m.world, m.journal, kept) for m in machines)
