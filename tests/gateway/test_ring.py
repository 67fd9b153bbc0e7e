"""Turns, shares and holds of one ring, by hand."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import EngineLimits, FlowSpec
from gateway.flows import Flow
from gateway.ledger import EngineLedger
from gateway.ring import Ring
from gateway.topology import rings_of
from tests.gateway.test_flows import make_flow, make_ticket

LIMITS = EngineLimits(slots=1, prefill_tokens=100_000, kv_tokens=10**6, token_budget=512)


def engine(name: str = "e0", limits: EngineLimits = LIMITS) -> EngineLedger:
    made = EngineLedger(name, limits, 0.0)
    made.set_state(0.0, up=True)
    return made


def backlogged(service: str, tokens: int, weight: float, *engines: EngineLedger) -> Flow:
    flow = make_flow(FlowSpec("m", "short", service, largest_prompt_tokens=tokens))
    flow.weight = weight
    flow.use(engines)
    for number in range(300):
        flow.append(make_ticket(flow, 1000 * len(service) + number, tokens), 0.0)
    return flow


def serve(ring: Ring, count: int) -> list[Flow]:
    """Dispatch one at a time; each answer is complete before the next goes."""
    order = []
    for number in range(count):
        choice = ring.next(0.0)
        assert choice is not None
        ticket, target = choice
        target.release(target.take(number, ticket, 0.0))
        order.append(ticket.flow)
    return order


def test_flows_of_equal_requests_are_served_by_weight() -> None:
    one = engine()
    heavy, light = backlogged("a", 512, 3.0, one), backlogged("bb", 512, 1.0, one)
    order = serve(Ring([heavy, light], 1024.0), 200)
    assert abs(order.count(heavy) - 150) <= 6


def test_cost_and_not_count_is_shared() -> None:
    one = engine()
    long, short = backlogged("a", 8192, 1.0, one), backlogged("bb", 512, 1.0, one)
    order = serve(Ring([long, short], 1024.0), 170)
    assert abs(order.count(long) * 8192 - order.count(short) * 512) <= 2 * 1024 + 8192 + 512


def test_a_turn_survives_between_events() -> None:
    one = engine()
    first, second = backlogged("a", 256, 1.0, one), backlogged("bb", 256, 1.0, one)
    order = serve(Ring([first, second], 1024.0), 8)
    assert order == [first] * 4 + [second] * 4


def test_a_quantum_far_below_the_cost_of_a_request_still_moves() -> None:
    one = engine()
    long, other = backlogged("a", 60_000, 0.01, one), backlogged("bb", 60_000, 0.01, one)
    order = serve(Ring([long, other], 1.0), 10)
    assert order.count(long) == 5


def test_an_idle_flow_saves_nothing_up() -> None:
    one = engine()
    busy, late = backlogged("a", 512, 1.0, one), backlogged("bb", 512, 1.0, one)
    waiting = list(late.queue.values())
    for ticket in waiting:
        late.remove(ticket)
    ring = Ring([busy, late], 1024.0)
    serve(ring, 100)
    for ticket in waiting:
        late.append(ticket, 0.0)
    order = serve(ring, 20)
    assert abs(order.count(late) - 10) <= 2


def test_a_head_that_lacks_a_shared_slot_everywhere_holds_the_emptier_engine() -> None:
    full, fuller = engine("e0"), engine("e1")
    other = make_flow(FlowSpec("m", "x", "x"))
    full.take(1, make_ticket(other, 1, tokens=10), 0.0)
    fuller.take(2, make_ticket(other, 2, tokens=5000), 0.0)
    flow = backlogged("a", 512, 1.0, fuller, full)
    ring = Ring([flow], 1024.0)
    assert ring.next(0.0) is None
    assert flow.hold_engine is full
    assert fuller.hold is None


def test_a_dispatch_ends_the_hold() -> None:
    one = engine()
    flow = backlogged("a", 512, 1.0, one)
    ring = Ring([flow], 1024.0)
    choice = ring.next(0.0)
    assert choice is not None
    lease = one.take(1, choice[0], 0.0)
    assert ring.next(0.0) is None
    assert one.hold is not None
    one.release(lease)
    assert ring.next(0.0) is not None
    assert ring.holding == []
    assert flow.hold is None


def test_affinity_prefers_one_engine_and_never_overrides_a_limit() -> None:
    wide = replace(LIMITS, slots=100)
    engines = [engine(f"e{i}", wide) for i in range(4)]
    flow = backlogged("a", 10, 1.0, *engines)
    for ticket in flow.queue.values():
        ticket.affinity = 77
    ring = Ring([flow], 10**6)
    places = []
    for number in range(8):
        choice = ring.next(0.0)
        assert choice is not None
        choice[1].take(number, choice[0], 0.0)
        places.append(choice[1])
    assert len(set(places)) == 1
    places[0].set_limits(replace(wide, slots=8), 0.0)
    choice = ring.next(0.0)
    assert choice is not None
    assert choice[1] is not places[0]


def test_a_ring_that_a_route_change_does_not_touch_keeps_its_turn_and_its_holds() -> None:
    one, other = engine("e0"), engine("e1")
    mine, theirs = backlogged("a", 512, 1.0, one), backlogged("bb", 512, 1.0, other)
    before = {f: r for r in rings_of([mine, theirs], 1024.0, {}) for f in r.flows}
    assert before[mine].next(0.0) is not None
    theirs.weight = 2.0
    after = {f: r for r in rings_of([mine, theirs], 1024.0, before) for f in r.flows}
    assert after[mine] is before[mine]
    assert after[theirs] is not before[theirs]


@given(st.lists(st.sets(st.integers(0, 5), max_size=3), min_size=1, max_size=8))
def test_flows_share_a_ring_exactly_if_engines_connect_them(pools: list[set[int]]) -> None:
    engines = [engine(f"e{i}") for i in range(6)]
    flows = [backlogged("a", 1, 1.0, *(engines[i] for i in sorted(pool))) for pool in pools]
    rings = rings_of(flows, 1024.0, {})
    assert sorted(map(id, flows)) == sorted(id(f) for ring in rings for f in ring.flows)
    ring_of = {id(f): ring for ring in rings for f in ring.flows}
    reach = [{i} for i in range(len(flows))]
    for _ in flows:
        for mine in reach:
            mine |= {j for i in tuple(mine) for j in range(len(flows)) if pools[i] & pools[j]}
    for i, mine in enumerate(reach):
        for j in range(len(flows)):
            assert (ring_of[id(flows[i])] is ring_of[id(flows[j])]) == (j in mine)
