"""What waits: queues, their caps' counters, output estimates and service rates."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import FlowKey, FlowSpec
from gateway.flows import Flow, Group, Ticket, share_out

SPEC = FlowSpec("m", "short", "chat", output_estimate_tokens=256)


def make_flow(spec: FlowSpec = SPEC) -> Flow:
    return Flow(FlowKey(spec.model, spec.size_class, spec.service_class), Group(spec), 1.0, 0.3)


def make_ticket(flow: Flow, number: int, tokens: int = 100, arrived_s: float = 0.0) -> Ticket:
    return Ticket(
        number, flow, "p", 1, tokens, 10, 7, True, 0, arrived_s, arrived_s + 60.0, float(tokens),
        tokens + 10,
    )  # fmt: skip


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 9000)), max_size=60))
def test_the_counters_are_the_sums_over_what_waits_and_order_is_of_arrival(
    steps: list[tuple[bool, int, int]],
) -> None:
    flow, waiting = make_flow(), list[Ticket]()
    for number, (leaves, index, tokens) in enumerate(steps):
        if leaves and waiting:
            flow.remove(waiting.pop(index % len(waiting)))
        else:
            waiting.append(make_ticket(flow, number, tokens))
            flow.append(waiting[-1], 0.0)
        group = flow.group
        own = (len(waiting), sum(t.prompt_tokens for t in waiting), 7 * len(waiting))
        assert (group.queued, group.queued_tokens, group.queued_bytes) == own
        assert math.isclose(flow.queued_cost, sum(t.cost for t in waiting), abs_tol=1e-6)
        if waiting:
            assert flow.head is waiting[0]


def test_an_emptied_queue_loses_its_credit_and_keeps_its_debt() -> None:
    for before, after in ((500.0, 0.0), (-500.0, -500.0)):
        flow = make_flow()
        ticket = make_ticket(flow, 1)
        flow.append(ticket, 0.0)
        flow.deficit = before
        flow.remove(ticket)
        assert flow.deficit == after


@pytest.mark.parametrize(
    ("before", "weight", "after"),
    [
        (-2000.0, 0.02, -(20.48 + 588.8)),  # run up on reservations at weight 1
        (-500.0, 0.02, -500.0),  # one dispatch in turn costs as much
        (-2000.0, 1.0, -2000.0),  # a change of something else forgives nothing
        (-2000.0, 4.0, -2000.0),
        (1000.0, 0.02, 20.48),
        (1000.0, 4.0, 1000.0),
    ],
)
def test_another_weight_bounds_credit_and_debt_beside_what_was_given_back(
    before: float, weight: float, after: float
) -> None:
    for given_back in (0.0, 700.0):
        flow = make_flow(replace(SPEC, largest_prompt_tokens=512))
        flow.deficit, flow.given_back = before + given_back, given_back
        flow.weigh(weight, 1024.0)
        assert flow.weight == weight
        assert flow.deficit == pytest.approx(after + given_back)


def test_ages_count_from_the_headers_not_from_the_queue() -> None:
    flow = make_flow()
    assert flow.oldest_age_s(5.0) == 0.0
    flow.append(make_ticket(flow, 1, arrived_s=4.0), 5.0)
    flow.append(make_ticket(flow, 2, arrived_s=1.0), 5.0)
    assert flow.oldest_age_s(6.0) == 5.0


def test_the_output_charge_is_bounded_by_what_the_class_produces() -> None:
    group = Group(SPEC)
    assert group.output_charge(None, 1) == 256
    assert group.output_charge(16, 2) == 32
    assert group.output_charge(10**6, 2) == 512


def test_few_answers_teach_nothing_and_many_teach_their_p95() -> None:
    group = Group(SPEC)
    for tokens in range(58):
        group.completed(tokens)
    assert group.output_charge(None, 1) == 256
    for tokens in range(58, 100):
        group.completed(tokens)
    assert group.output_charge(None, 1) == 94


def test_a_caller_with_nothing_in_flight_is_forgotten() -> None:
    group = Group(SPEC)
    group.enter("p")
    group.enter("p")
    group.leave("p")
    assert group.in_flight == {"p": 1}
    group.leave("p")
    assert group.in_flight == {}


def test_the_target_wait_is_what_the_limit_leaves_beside_the_engines_own_p95() -> None:
    group = Group(replace(SPEC, ttft_limit_s=2.0))
    assert group.target_wait_s == 2.0
    for _ in range(4):
        group.first_event(0.5)
    assert group.target_wait_s == 2.0
    group.first_event(0.5)
    assert group.target_wait_s == 1.5
    for _ in range(200):
        group.first_event(10.0)
    assert group.target_wait_s == 0.5
    for _ in range(200):
        group.first_event(0.1)
    assert group.target_wait_s == 1.9


def test_first_events_before_their_predicted_time_raise_no_target_above_the_limit() -> None:
    group = Group(replace(SPEC, ttft_limit_s=2.0))
    for _ in range(20):
        group.first_event(-1.0)
    assert group.target_wait_s == 2.0


def test_the_flows_of_a_ring_share_its_weights_and_its_rate() -> None:
    flows = [make_flow(SPEC), make_flow(SPEC), make_flow(SPEC)]
    flows[0].weight = 2.0
    rate = share_out(flows)
    assert [f.share for f in flows] == [0.5, 0.25, 0.25]
    rate.waiting(0.0)
    flows[1].append(make_ticket(flows[1], 1), 0.0)
    flows[1].served(10.0, 1.0)
    assert rate.per_second(1.0, 60.0) == flows[1].rate.per_second(1.0, 60.0) == 10.0
    assert flows[0].rate.per_second(1.0, 60.0) is None
    assert flows[0].ring_rate is rate


def test_a_configured_target_wait_stands_and_without_a_limit_there_is_none() -> None:
    assert Group(replace(SPEC, target_wait_s=7.0, ttft_limit_s=2.0)).target_wait_s == 7.0
    assert Group(SPEC).target_wait_s is None
