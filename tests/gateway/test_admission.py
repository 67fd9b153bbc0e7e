"""What the admission core does, told as stories: who goes, who waits, who is refused, and why."""

from dataclasses import replace

import pytest

from gateway.admission import Admission
from gateway.domain import Arm, EngineLimits, FlowKey, MisuseError, Outcome
from gateway.verdicts import Offer, Refusal, RouteView, Topology
from tests.gateway.admission_story import LIMITS, LONG, SHORT, SHORT_SEATS, Gate

SMALL = EngineLimits(slots=4, prefill_tokens=100_000, kv_tokens=10**6)
TWO = {"e0": LIMITS, "e1": LIMITS}

# -- what a short request finds ahead of it ------------------------------------------------


def test_a_short_that_arrives_behind_many_longs_finds_at_most_one_long_in_prefill() -> None:
    gate = Gate()
    assert gate.offer("long-1", "long") == ["long-1 -> e0"]
    assert gate.offer("long-2", "long") == ["long-2 waits"]
    assert gate.offer("long-3", "long") == ["long-3 waits"]
    assert gate.offer("short-1") == ["short-1 -> e0"]
    assert gate.prefilling() == {"long": 1, "short": 1}
    assert gate.first_event("long-1") == ["long-2 -> e0"]
    assert gate.offer("short-2") == ["short-2 -> e0"]
    assert gate.prefilling() == {"long": 1, "short": 2}


def test_a_long_that_waits_for_its_own_class_cap_holds_nothing() -> None:
    gate = Gate()
    gate.offer("long-1", "long")
    gate.offer("long-2", "long")
    assert gate.core.engine_views()[0].held_for is None


def test_an_unanswered_unary_prefill_ends_by_estimate() -> None:
    gate = Gate()
    gate.offer("long-1", "long", streamed=False)
    assert gate.offer("long-2", "long") == ["long-2 waits"]
    estimate_s = 1.25 * 8192 / LIMITS.prefill_tokens_per_s + 0.020
    assert gate.wait(estimate_s - 0.001) == []
    assert gate.wait(0.001) == ["long-2 -> e0"]


def test_an_unanswered_unary_prefill_ends_when_a_later_stream_answers_on_a_first_come_engine() -> (
    None
):
    gate = Gate()
    gate.offer("long-1", "long", streamed=False)
    gate.offer("long-2", "long")
    gate.offer("short-1")
    assert gate.first_event("short-1") == ["long-2 -> e0"]


def test_a_later_stream_says_nothing_about_a_unary_prefill_on_a_priority_engine() -> None:
    gate = Gate(engines={"e0": replace(LIMITS, fcfs=False)})
    gate.offer("long-1", "long", streamed=False)
    gate.offer("long-2", "long")
    gate.offer("short-1")
    assert gate.first_event("short-1") == []


def test_an_answer_ends_its_own_prefill_even_if_no_event_was_seen() -> None:
    gate = Gate()
    gate.offer("long-1", "long")
    gate.offer("long-2", "long")
    assert gate.done("long-1") == ["long-2 -> e0"]


# -- held heads ----------------------------------------------------------------------------


def test_a_held_head_is_passed_only_by_reserved_slots() -> None:
    gate = Gate((SHORT_SEATS, LONG), {"e0": SMALL})
    assert gate.offer("long-1", "long") == ["long-1 -> e0"]
    assert gate.offer("long-2", "long") == ["long-2 -> e0"]
    assert gate.offer("long-3", "long") == ["long-3 waits"]
    assert gate.core.engine_views()[0].held_for == FlowKey("m", "long", "chat")
    assert gate.offer("short-1") == ["short-1 -> e0"]
    assert gate.offer("short-2") == ["short-2 -> e0"]
    assert gate.offer("short-3") == ["short-3 waits"]
    assert gate.done("long-1") == ["long-3 -> e0"]


def test_a_held_head_goes_wherever_it_fits_first() -> None:
    gate = Gate(engines={"e0": replace(SMALL, slots=1), "e1": replace(SMALL, slots=1)})
    gate.offer("a")
    gate.offer("b")
    gate.offer("c")
    held = [v.engine for v in gate.core.engine_views() if v.held_for]
    assert len(held) == 1
    other = "a" if held == ["e1"] else "b"
    assert gate.done(other) == [f"c -> {'e0' if other == 'a' else 'e1'}"]
    assert not any(v.held_for for v in gate.core.engine_views())


def test_a_hold_ends_with_the_caller_who_leaves() -> None:
    gate = Gate((SHORT_SEATS, LONG), {"e0": SMALL})
    for name in ("long-1", "long-2", "long-3"):
        gate.offer(name, "long")
    assert gate.leaves("long-3") == []
    assert gate.core.engine_views()[0].held_for is None


def test_an_exceptional_head_suspends_the_reservations_once_per_maximum_age() -> None:
    gate = Gate((SHORT_SEATS, LONG), {"e0": SMALL})
    gate.offer("long-1", "long")
    assert gate.offer("wide-1", "long", slots=4) == ["wide-1 waits"]
    assert gate.offer("short-1") == ["short-1 waits"], "nobody passes an exceptional head"
    assert gate.done("long-1") == ["wide-1 -> e0"]
    assert gate.done("wide-1") == ["short-1 -> e0"]
    assert gate.ask("wide-2", "long", slots=4) == "predicted_wait"
    gate.done("short-1")
    gate.wait(LONG.max_age_s)
    assert gate.ask("wide-3", "long", slots=4) == "e0"


def test_an_exceptional_head_goes_on_reserved_slots_as_soon_as_a_prefill_ends() -> None:
    seats = replace(SHORT, reserved_slots=4, reserved_prefill_tokens=1024)
    gate = Gate((seats, LONG), {"e0": replace(SMALL, slots=6, prefill_tokens=20_000)})
    gate.offer("long-1", "long", slots=2)
    assert gate.offer("wide", "long", slots=3, prompt_tokens=12_000) == ["wide waits"]
    assert gate.first_event("long-1") == ["wide -> e0"], "no slot but reserved ones was left"


# -- leaving the queue ---------------------------------------------------------------------


def full_gate(**spec: object) -> Gate:
    """One slot, taken; whatever comes now waits."""
    gate = Gate((replace(SHORT, **spec), LONG), {"e0": replace(SMALL, slots=1)})  # type: ignore[arg-type]
    gate.offer("running")
    return gate


def test_who_waits_longer_than_the_maximum_age_expires() -> None:
    gate = full_gate(max_age_s=5.0)
    gate.offer("late")
    assert gate.wait(4.9) == []
    assert gate.wait(0.1) == ["late: queue_expired"]


def test_a_callers_shorter_wait_expires_it_and_a_longer_one_is_not_granted() -> None:
    gate = full_gate(max_age_s=5.0)
    gate.offer("patient", max_wait_s=100.0)
    gate.offer("hasty", max_wait_s=1.0)
    assert gate.wait(1.0) == ["hasty: queue_expired"]
    assert gate.wait(4.0) == ["patient: queue_expired"]


def test_a_caller_who_will_not_wait_starts_at_once_or_is_refused() -> None:
    gate = Gate(engines={"e0": replace(SMALL, slots=1)})
    assert gate.ask("first", max_wait_s=0.0) == "e0"
    assert gate.ask("second", max_wait_s=0.0) == "queue_expired"


def test_an_earlier_deadline_does_not_jump_the_queue() -> None:
    gate = full_gate()
    gate.offer("patient")
    gate.offer("hasty", max_wait_s=1.0)
    assert gate.done("running") == ["patient -> e0"]


def test_a_caller_who_leaves_makes_room_for_the_next() -> None:
    gate = full_gate(max_queued=1)
    gate.offer("waiting")
    assert gate.ask("refused") == "queue_full"
    gate.leaves("waiting")
    assert gate.ask("again") == "waits"


def test_leaving_twice_or_after_dispatch_changes_nothing() -> None:
    gate = Gate()
    gate.offer("a")
    before = gate.core.engine_views()
    assert gate.leaves("a") == []
    assert gate.leaves("a") == []
    assert gate.core.engine_views() == before


# -- refused on arrival --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap", "outcome"),
    [
        ({"max_queued": 1}, "queue_full"),
        ({"max_queued_tokens": 1000}, "queue_tokens_full"),
        ({"max_queued_bytes": 1000}, "queue_bytes_full"),
    ],
)
def test_each_cap_refuses_with_its_own_reason(cap: dict[str, int], outcome: str) -> None:
    gate = full_gate(**cap)
    gate.offer("waits", body_bytes=600)
    assert gate.ask("too-much", body_bytes=600) == outcome


def test_one_caller_cannot_fill_a_flow() -> None:
    gate = full_gate(max_queued=7, principal_share=0.25)
    told = [gate.ask(f"greedy-{i}", principal="greedy") for i in range(4)]
    assert told == ["waits", "waits", *["principal_limit"] * 2]
    assert gate.ask("other") == "waits"


def test_a_callers_own_cap_counts_what_runs_and_what_waits() -> None:
    gate = full_gate()
    assert gate.ask("second", principal="running", principal_cap=1) == "principal_limit"
    gate.done("running")
    assert gate.ask("third", principal="running", principal_cap=1) == "e0"


def test_a_callers_rate_is_refused_and_recovers() -> None:
    gate = Gate((replace(SHORT, principal_requests_per_minute=2), LONG))
    told = [gate.ask(f"r{i}", principal="p") for i in range(3)]
    assert told == ["e0", "e0", "principal_limit"]
    gate.wait(30.0)
    assert gate.ask("r3", principal="p") == "e0"


def test_a_refused_request_costs_its_caller_no_rate() -> None:
    gate = full_gate(max_queued=1, principal_requests_per_minute=2, principal_share=9)
    gate.offer("waits", principal="p")
    for i in range(5):
        assert gate.ask(f"refused-{i}", principal="p") == "queue_full"
    gate.leaves("waits")
    assert gate.ask("again", principal="p") == "waits"


def test_what_no_engine_could_ever_take_is_refused_at_once() -> None:
    gate = Gate()
    assert gate.ask("huge", "long", prompt_tokens=60_001) == "prompt_too_long"
    assert gate.ask("wide", slots=129) == "prompt_too_long"


def test_a_pool_without_an_engine_refuses_after_two_seconds() -> None:
    gate = Gate()
    gate.engine("e0", up=False)
    gate.wait(1.9)
    assert gate.ask("hopeful") == "waits"
    gate.wait(0.1)
    assert gate.ask("late") == "no_engine"
    assert gate.engine("e0", up=True) == ["hopeful -> e0"]


def test_who_expires_before_a_dead_pool_is_told_that_there_was_no_engine() -> None:
    gate = Gate()
    gate.engine("e0", up=False)
    gate.offer("hopeful", max_wait_s=1.0)
    assert gate.wait(1.0) == ["hopeful: no_engine"]


def test_a_draining_engine_takes_nothing_new_and_keeps_what_it_has() -> None:
    gate = Gate(engines=TWO)
    gate.offer("a")
    gate.engine("e0", draining=True)
    assert [gate.ask(f"b{i}") for i in range(3)] == ["e1"] * 3
    assert gate.done("a") == []


def test_a_paused_flow_refuses_and_what_waits_still_goes() -> None:
    gate = full_gate()
    gate.offer("waits")
    gate.core.pause(SHORT.group, paused=True)
    assert gate.ask("new") == "paused"
    assert gate.done("running") == ["waits -> e0"]
    gate.core.pause(SHORT.group, paused=False)
    assert gate.ask("newer") == "waits"


# -- predicted waits -----------------------------------------------------------------------


def test_a_cold_gateway_refuses_nothing_by_prediction() -> None:
    gate = full_gate(target_wait_s=0.001, max_queued=100)
    assert {gate.ask(f"r{i}") for i in range(40)} == {"waits"}


def test_a_queue_that_drains_slower_than_its_target_refuses_by_prediction() -> None:
    gate = full_gate(target_wait_s=0.5, max_queued=100)
    slow = replace(SMALL, slots=1, prefill_tokens_per_s=100.0)
    gate.limits("e0", slow)
    gate.names[gate.tickets["running"]] = "running"
    waiting = [f"r{i}" for i in range(6)]
    for name in waiting:
        gate.offer(name)
    last = "running"
    for name in waiting[:4]:
        gate.now += 0.4
        assert gate.done(last) == [f"{name} -> e0"]
        last = name
    assert gate.ask("one-too-many") == "predicted_wait"


# -- routes --------------------------------------------------------------------------------


def two_pools() -> Gate:
    pools = {"blue": ("e0",), "green": ("e1",)}
    routes = {("m", size): RouteView("blue") for size in ("short", "long")}
    return Gate(engines=TWO, routes=routes, pools=pools)


def test_a_flip_remaps_what_waits_and_leaves_what_runs() -> None:
    gate = two_pools()
    gate.offer("long-1", "long")
    gate.offer("long-2", "long")
    assert gate.route("green") == ["long-2 -> e1"]
    assert [v.slots for v in gate.core.engine_views()] == [1, 1]
    assert gate.done("long-1") == []


def test_an_aborted_canary_sends_its_waiting_requests_to_the_stable_pool() -> None:
    gate = two_pools()
    gate.route("blue", "green", 0.1)
    gate.engine("e1", up=False)
    assert gate.ask("canary", arm=Arm.CANDIDATE) == "waits"
    assert gate.route("blue") == ["canary -> e0"]


def test_an_aborted_canary_reserves_nothing_beside_the_stable_arm() -> None:
    pools = {"blue": ("e0",), "green": ("e1",)}
    routes = {("m", "short"): RouteView("blue", "green", 0.1), ("m", "long"): RouteView("blue")}
    gate = Gate((SHORT_SEATS, LONG), {"e0": SMALL, "e1": SMALL}, routes, pools)
    gate.reroute({k: RouteView("blue") for k in routes})
    assert gate.ask("long-1", "long") == "e0"
    assert gate.ask("long-2", "long") == "e0"


# -- misuse --------------------------------------------------------------------------------


def test_a_lease_is_released_once_and_a_second_release_changes_nothing() -> None:
    gate = Gate()
    gate.offer("a")
    gate.offer("b")
    lease = gate.leases["b"]
    gate.core.release(lease, 0.0)
    before = gate.core.engine_views()
    for misuse in (gate.core.release, gate.core.prefill_done):
        with pytest.raises(MisuseError, match=str(lease)):
            misuse(lease, 0.0)
    assert gate.core.engine_views() == before


def test_a_flow_that_is_not_configured_is_not_found() -> None:
    gate = Gate()
    assert gate.ask("a", model="nowhere") == "not_found"
    assert gate.core.begin_counting([("nowhere", "short", "chat")], 100, 0.0) == ("not_found", 0.0)
    assert gate.ask("b") == "e0"


def test_refusals_name_how_long_the_queue_needs_once_it_is_known() -> None:
    gate = full_gate(max_queued=2)
    gate.offer("w1")
    gate.offer("w2")
    gate.now = 1.0
    gate.done("running")
    gate.offer("w3")
    _, verdicts = gate.core.offer(Offer(FlowKey("m", "short", "chat"), "p", 512, 1.0), 1.0)
    assert isinstance(verdicts[-1], Refusal)
    assert verdicts[-1].outcome is Outcome.QUEUE_FULL
    assert verdicts[-1].wait_s is not None
    assert verdicts[-1].wait_s > 0


# -- shares over several engines -----------------------------------------------------------


def test_equal_requests_share_four_engines_by_weight() -> None:
    heavy, light = replace(SHORT, service_class="heavy", weight=3.0), replace(SHORT, weight=1.0)
    engines = {f"e{i}": replace(SMALL, slots=1) for i in range(4)}
    core = Admission(
        (heavy, light),
        Topology(engines, {"all": tuple(engines)}, {("m", "short"): RouteView("all")}),
        0.0,
    )
    for engine in engines:
        core.set_engine(engine, 0.0, up=True)
    flow_of, running = {}, []
    for i in range(400):
        key = FlowKey("m", "short", ("heavy", "chat")[i % 2])
        ticket, verdicts = core.offer(Offer(key, f"p{i}", 512, 0.0), 0.0)
        flow_of[ticket] = key.service_class
        running += [v.lease_id for v in verdicts if hasattr(v, "lease_id")]
    served = {"heavy": 0, "chat": 0}
    for step in range(200):
        for verdict in core.release(running.pop(0), step / 100):
            served[flow_of[verdict.ticket_id]] += 1
            running.append(verdict.lease_id)  # type: ignore[union-attr]
    assert abs(served["heavy"] - 150) <= 8
    assert sum(served.values()) == 200
