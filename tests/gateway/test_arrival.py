"""Refusals on arrival: the order of the reasons, and the predicted wait."""

from dataclasses import replace

import pytest

from gateway.arrival import (
    caps_outcome,
    refusal_on_arrival,
    refusal_to_wait,
    refusal_uncounted,
    wait_s,
)
from gateway.domain import AdmissionMode, EngineLimits, FlowSpec, Outcome
from gateway.flows import Flow, Ticket
from gateway.ledger import EngineLedger
from gateway.principals import PrincipalRates
from tests.gateway.test_flows import make_flow, make_ticket

LIMITS = EngineLimits(slots=4, prefill_tokens=10_000, kv_tokens=50_000)
SPEC = FlowSpec("m", "short", "chat", max_queued=2, max_queued_tokens=1000, max_queued_bytes=20)


def ready(spec: FlowSpec = SPEC) -> Flow:
    flow = make_flow(spec)
    engine = EngineLedger("e0", LIMITS, 0.0)
    engine.set_state(0.0, up=True)
    flow.use((engine,))
    return flow


def outcome(ticket: Ticket, cap: int | None = None, now: float = 0.0) -> Outcome | None:
    refusal = refusal_on_arrival(ticket, cap, PrincipalRates(), now)
    return refusal.outcome if refusal else None


def test_a_request_that_may_wait_is_not_refused() -> None:
    assert outcome(make_ticket(ready(), 1)) is None


def test_the_reasons_come_in_the_order_of_the_contract() -> None:
    """Everything is wrong at once; each reason is taken away in its turn."""
    flow = ready()
    flow.group.paused = True
    flow.group.enter("p")
    for number in range(2):
        flow.append(make_ticket(flow, number, tokens=500), 0.0)
    engine = flow.engines[0]
    engine.set_state(0.0, up=False)
    ticket = make_ticket(flow, 9, tokens=10_001)
    assert outcome(ticket, 1, 100.0) is Outcome.PROMPT_TOO_LONG
    ticket = make_ticket(flow, 9, tokens=500)
    assert outcome(ticket, 1, 100.0) is Outcome.PAUSED
    flow.group.paused = False
    assert outcome(ticket, 1, 100.0) is Outcome.PRINCIPAL_LIMIT
    assert outcome(ticket, 9, 100.0) is Outcome.NO_ENGINE
    engine.set_state(100.0, up=True)
    assert outcome(ticket, 9, 100.0) is Outcome.QUEUE_FULL
    flow.remove(flow.queue[0])
    assert outcome(ticket, 9, 100.0) is Outcome.QUEUE_EXPIRED
    assert outcome(ticket, 9, 1.0) is None


def test_a_cap_is_reached_before_it_is_passed() -> None:
    group = ready().group
    assert caps_outcome(group, 1000, 20) is None
    assert caps_outcome(group, 1001, 20) is Outcome.QUEUE_TOKENS_FULL
    assert caps_outcome(group, 1000, 21) is Outcome.QUEUE_BYTES_FULL


def test_what_is_being_counted_takes_room_in_the_queue() -> None:
    group = ready().group
    group.counting, group.counting_bytes = 1, 15
    assert caps_outcome(group, 1, 5) is None
    assert caps_outcome(group, 1, 6) is Outcome.QUEUE_BYTES_FULL
    group.counting = 2
    assert caps_outcome(group, 1, 0) is Outcome.QUEUE_FULL


def test_off_keeps_only_the_callers_own_cap_and_the_need_of_an_engine() -> None:
    flow = ready()
    flow.mode = AdmissionMode.OFF
    huge = make_ticket(flow, 1, tokens=10**9)
    assert outcome(huge) is None
    flow.group.enter("p")
    assert outcome(huge, 1) is Outcome.PRINCIPAL_LIMIT
    flow.engines[0].set_state(0.0, up=False)
    assert outcome(huge, None, 5.0) is Outcome.NO_ENGINE


def test_the_wait_is_unknown_and_zero_until_the_queue_has_been_served() -> None:
    flow = ready()
    assert wait_s(flow, 10**9, 0.0) == 0.0


def test_the_wait_is_the_cost_ahead_over_the_rate() -> None:
    flow = ready()
    slow = replace(LIMITS, prefill_tokens_per_s=1.0)
    flow.engines[0].set_limits(slow, 0.0)
    flow.rate.waiting(0.0)
    flow.rate.served(200.0, 1.0, 15.0)
    assert wait_s(flow, 1000.0, 1.0) == 5.0


def test_the_rate_is_never_below_a_quarter_of_the_configured_share() -> None:
    flow = ready()
    flow.share = 0.5
    flow.rate.waiting(0.0)
    flow.rate.served(1.0, 1.0, 15.0)
    assert wait_s(flow, 39_000.0, 1.0) == 8.0


def never_served(share: float) -> Flow:
    """Its ring is served 1,000 a second, others of it."""
    flow = ready(replace(SPEC, target_wait_s=1.0, max_queued=100, max_queued_bytes=10**6))
    flow.engines[0].set_limits(replace(LIMITS, prefill_tokens_per_s=1.0), 0.0)
    flow.share = share
    flow.ring_rate.waiting(0.0)
    flow.ring_rate.served(1000.0, 1.0, 15.0)
    return flow


def test_a_flow_that_was_never_served_is_judged_by_its_share_of_what_its_ring_is() -> None:
    flow = never_served(0.5)
    assert wait_s(flow, 1000.0, 1.0) == 2.0
    assert wait_s(flow, 1000.0, 11.5) == 0.0


def test_a_flow_is_never_judged_by_less_than_its_share() -> None:
    flow = never_served(0.5)
    flow.rate.waiting(0.0)
    flow.rate.served(1.0, 1.0, 15.0)
    assert wait_s(flow, 1000.0, 1.0) == 2.0
    flow.rate.served(1999.0, 1.0, 15.0)
    assert wait_s(flow, 1000.0, 1.0) == 0.5


def test_a_flow_that_forgot_after_a_stall_is_not_judged_by_its_ring() -> None:
    flow = never_served(0.5)
    flow.rate.waiting(-100.0)
    flow.rate.served(1.0, 1.0, 15.0)
    assert wait_s(flow, 1000.0, 1.0) == 0.0


def test_a_wait_counts_what_was_sent_last_and_with_nobody_ahead_the_time_since() -> None:
    flow = never_served(1.0)
    flow.rate.waiting(0.0)
    flow.rate.served(1000.0, 1.0, 15.0)
    flow.rate.empty()
    ticket = make_ticket(flow, 1, tokens=10)
    assert refusal_to_wait(ticket, 0.0, 1.0) is None
    assert ticket.due_s == 2.0
    behind = refusal_to_wait(ticket, 500.0, 1.0)
    assert behind is not None
    assert (behind.outcome, behind.wait_s) == (Outcome.PREDICTED_WAIT, 0.5)
    assert ticket.due_s == 2.5
    assert refusal_to_wait(ticket, 0.0, 5.0) is None
    assert ticket.due_s == 5.0


def test_a_body_is_refused_uncounted_only_behind_others_and_as_the_count_would() -> None:
    flow = never_served(1.0)
    flow.rate.waiting(0.0)
    flow.rate.served(1000.0, 1.0, 15.0)
    assert refusal_uncounted(flow, 10, 1.0) is None
    flow.append(make_ticket(flow, 1, tokens=500), 1.0)
    assert refusal_uncounted(flow, 10, 1.0) == (
        Outcome.PREDICTED_WAIT,
        pytest.approx(flow.queued_cost / 1000.0),
    )
    flow.group.spec = replace(flow.group.spec, target_wait_s=None)
    assert refusal_uncounted(flow, 10, 1.0) is None
    flow.group.spec = replace(flow.group.spec, max_queued=1)
    assert refusal_uncounted(flow, 10, 1.0) == (Outcome.QUEUE_FULL, flow.queued_cost / 1000.0)
