"""An engine's account: what fits, and that everything taken is given back."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import EngineLimits, FlowSpec
from gateway.flows import Flow
from gateway.lease import Hold, Lease, Obstacle
from gateway.ledger import EngineLedger
from tests.gateway.test_flows import make_flow, make_ticket

LIMITS = EngineLimits(
    slots=10, prefill_tokens=10_000, kv_tokens=20_000, max_prefilling=(("long", 1),)
)
SHORT = FlowSpec("m", "short", "chat", reserved_slots=3, reserved_prefill_tokens=1536)
LONG = FlowSpec("m", "long", "chat")


def engine_for(*flows: Flow, limits: EngineLimits = LIMITS) -> EngineLedger:
    engine = EngineLedger("e0", limits, 0.0)
    engine.reserve(flows, 0.0)
    engine.set_state(0.0, up=True)
    return engine


def counters(engine: EngineLedger) -> tuple[object, ...]:
    seats = {c: n for c, n in engine.prefilling.items() if n}
    return (engine.slots_used, engine.prefill_used, engine.kv_used, seats, engine.unused_slots,
            engine.unused_prefill, engine.slots_by_flow, engine.prefill_by_flow)  # fmt: skip


def test_an_engine_is_unusable_until_it_is_told_to_be_up() -> None:
    flow = make_flow(LONG)
    engine = EngineLedger("e0", LIMITS, 0.0)
    assert engine.obstacle(flow, make_ticket(flow, 1)) is Obstacle.UNUSABLE
    for change in ({"up": True}, {"paused": True}, {"paused": False, "draining": True}):
        engine.set_state(0.0, **change)
        usable = change == {"up": True}
        assert (engine.obstacle(flow, make_ticket(flow, 1)) is None) == usable


@pytest.mark.parametrize(
    "limits",
    [
        replace(LIMITS, slots=3),
        replace(LIMITS, prefill_tokens=1600),
        replace(LIMITS, kv_tokens=199),
    ],
)
def test_each_resource_that_others_consume_is_an_obstacle(limits: EngineLimits) -> None:
    short, long = make_flow(SHORT), make_flow(replace(LONG, size_class="medium"))
    engine = engine_for(short, long, limits=limits)
    engine.take(1, make_ticket(long, 1), 0.0)
    assert engine.obstacle(long, make_ticket(long, 2)) is Obstacle.SHARED
    assert engine.bound == (limits.kv_tokens == LIMITS.kv_tokens)


@pytest.mark.parametrize("limits", [replace(LIMITS, slots=1), replace(LIMITS, prefill_tokens=99)])
def test_a_head_larger_than_the_limits_of_the_moment_lacks_nothing_that_others_consume(
    limits: EngineLimits,
) -> None:
    long = make_flow(LONG)
    engine = engine_for(long)
    engine.adapt(limits, 0.0)
    ticket = make_ticket(long, 1)
    ticket.slots = 2
    assert engine.obstacle(long, ticket) is Obstacle.TOO_LARGE
    assert engine.could_fit(ticket)
    assert not engine.bound


def test_a_class_whose_cap_is_0_never_comes_here() -> None:
    long = make_flow(LONG)
    engine = engine_for(long, limits=replace(LIMITS, max_prefilling=(("long", 0), ("short", 0))))
    assert not engine.takes("long")
    assert not engine.could_fit(make_ticket(long, 1))
    long.use((engine,))
    assert long.engines == ()


def test_unused_reservations_are_kept_from_others_and_not_from_their_owner() -> None:
    short, long = make_flow(SHORT), make_flow(LONG)
    engine = engine_for(short, long, limits=replace(LIMITS, slots=3))
    assert engine.obstacle(short, make_ticket(short, 1)) is None
    assert engine.obstacle(long, make_ticket(long, 2)) is Obstacle.SHARED


def test_the_class_cap_counts_prefills_and_not_answers() -> None:
    long = make_flow(LONG)
    engine = engine_for(long)
    lease = engine.take(1, make_ticket(long, 1), 0.0)
    assert engine.obstacle(long, make_ticket(long, 2)) is Obstacle.CLASS_CAP
    engine.prefill_done(lease, 1.0)
    assert engine.obstacle(long, make_ticket(long, 2)) is None


def test_beside_a_hold_only_what_is_reserved_goes() -> None:
    short, long = make_flow(SHORT), make_flow(LONG)
    engine = engine_for(short, long)
    engine.hold_for(Hold(long, make_ticket(long, 7), 0.0, exceptional=False))
    assert engine.obstacle(short, make_ticket(short, 1)) is Obstacle.HELD
    assert engine.fits_reservation(short, make_ticket(short, 1, tokens=1536))
    assert not engine.fits_reservation(short, make_ticket(short, 1, tokens=1537))
    assert not engine.fits_reservation(long, make_ticket(long, 7))
    engine.hold_for(Hold(long, make_ticket(long, 7), 0.0, exceptional=True))
    assert not engine.fits_reservation(short, make_ticket(short, 1))


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "prefill", "release", "grow"]), st.integers(0, 9)),
    max_size=60,
)


@given(STEPS)
def test_everything_that_is_taken_is_given_back(steps: list[tuple[str, int]]) -> None:
    flows = [make_flow(SHORT), make_flow(LONG)]
    engine = engine_for(*flows)
    at_rest = counters(engine)
    leases: list[Lease] = []
    for number, (step, which) in enumerate(steps):
        if step == "take":
            flow = flows[which % 2]
            ticket = make_ticket(flow, number, tokens=100 + which)
            ticket.streamed = which > 4
            leases.append(engine.take(number, ticket, float(number)))
        elif leases:
            lease = leases[which % len(leases)]
            if step == "prefill":
                engine.prefill_done(lease, float(number))
            elif step == "grow":
                engine.grow(lease, 5 * which)
            else:
                engine.release(leases.pop(which % len(leases)))
        assert engine.slots_used == len(leases)
        assert engine.prefill_used == sum(x.ticket.prompt_tokens for x in leases if x.prefilling)
        assert engine.kv_used == sum(x.kv_tokens for x in leases)
    for lease in leases:
        engine.release(lease)
    assert counters(engine) == at_rest
    assert not engine.unary


def test_the_prefill_rate_is_learnt_from_streams_alone() -> None:
    long = make_flow(LONG)
    engine = engine_for(long)
    before = engine.rate
    unary = make_ticket(long, 1, tokens=8192)
    unary.streamed = False
    engine.prefill_done(engine.take(1, unary, 0.0), 10.0)
    assert engine.rate == before
    engine.prefill_done(engine.take(2, make_ticket(long, 2, tokens=8192), 0.0), 10.0)
    assert engine.rate < before


def test_a_recovered_engine_ramps_from_its_floor_to_its_limit_in_thirty_seconds() -> None:
    short = make_flow(SHORT)
    engine = engine_for(short, limits=replace(LIMITS, slots=40))
    engine.set_state(10.0, up=False)
    engine.set_state(20.0, up=True, ramp=True)
    assert engine.slot_limit == 3 + 10
    engine.ramp(35.0)
    assert 13 < engine.slot_limit < 40
    engine.ramp(50.0)
    assert engine.slot_limit == 40
    assert engine.ramp_from_s is None


def test_a_shrink_cancels_nothing_and_lets_nothing_in_until_it_fits() -> None:
    long = make_flow(LONG)
    engine = engine_for(long, limits=replace(LIMITS, max_prefilling=()))
    leases = [engine.take(i, make_ticket(long, i), 0.0) for i in range(5)]
    engine.set_limits(replace(LIMITS, slots=4, max_prefilling=()), 0.0)
    assert engine.slots_used == 5
    engine.release(leases.pop())
    assert engine.obstacle(long, make_ticket(long, 9)) is Obstacle.SHARED
    engine.release(leases.pop())
    assert engine.obstacle(long, make_ticket(long, 9)) is None
