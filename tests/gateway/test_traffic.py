"""What becomes of a request that failed on an engine before its first byte, told as stories."""

from dataclasses import replace

import pytest

from gateway.domain import AdmissionMode, EngineLimits, FlowKey, MisuseError
from gateway.verdicts import RouteView
from tests.gateway.admission_story import LONG, SHORT, Gate

ONE = EngineLimits(slots=1, prefill_tokens=100_000, kv_tokens=10**6)
TWO = {"e0": ONE, "e1": ONE}


def test_what_failed_goes_to_another_engine_at_once() -> None:
    gate = Gate(engines=TWO)
    gate.offer("a")
    assert gate.fails("a") == ["a -> e1"]
    assert [v.slots for v in gate.core.engine_views()] == [0, 1]


def test_it_waits_for_the_other_engine_rather_than_go_where_it_failed() -> None:
    gate = Gate(engines=TWO)
    gate.offer("a")
    gate.offer("b")
    assert gate.fails("a") == ["a waits"]
    assert gate.offer("long", "long") == ["long -> e0"], "other flows have the engine it avoids"
    assert gate.offer("c") == ["c waits"], "its own flow stays in order"
    assert gate.done("b") == ["a -> e1"]


def test_it_goes_where_it_failed_if_the_other_is_lost_meanwhile() -> None:
    gate = Gate(engines=TWO)
    gate.offer("a")
    gate.offer("b")
    gate.fails("a")
    assert gate.engine("e1", up=False) == ["a -> e0"]


def test_a_lone_engine_is_tried_again() -> None:
    gate = Gate(engines={"e0": ONE})
    gate.offer("a")
    assert gate.fails("a") == ["a -> e0"]


def test_a_stale_connection_is_no_reason_to_avoid_the_engine() -> None:
    gate = Gate(engines=TWO)
    gate.offer("a")
    gate.offer("b")
    assert gate.fails("a", avoid=False) == ["a -> e0"]


def test_an_engine_too_small_for_it_is_no_other_engine() -> None:
    gate = Gate(engines={"e0": replace(ONE, slots=4), "e1": ONE})
    gate.offer("wide", slots=2)
    assert gate.fails("wide") == ["wide -> e0"]


def test_it_returns_to_the_front_with_its_deadline() -> None:
    gate = Gate((replace(SHORT, max_age_s=5.0), LONG), engines={"e0": ONE})
    for name in ("a", "b", "c"):
        gate.offer(name)
    gate.wait(1.0)
    assert gate.fails("a") == ["a -> e0"]
    gate.done("a")
    assert gate.wait(4.0) == ["c: queue_expired"]
    assert gate.fails("b") == ["b: queue_expired"], "as old as c, it has no time left"


def test_it_is_not_counted_anew_against_its_callers_cap_nor_the_queues() -> None:
    gate = Gate((replace(SHORT, max_queued=1), LONG), engines={"e0": ONE, "e1": ONE})
    gate.offer("a", principal="p", principal_cap=2)
    gate.offer("b", principal="p", principal_cap=2)
    gate.offer("c")
    assert gate.fails("a") == ["a waits"], "two wait now where one may arrive"
    assert gate.core.groups[SHORT.group].in_flight == {"p": 2, "c": 1}
    assert gate.ask("d") == "queue_full"
    assert gate.done("b") == ["a -> e1", "c -> e0"]


def test_what_its_dispatch_cost_is_given_back_and_taken_once() -> None:
    gate = Gate(engines=TWO)
    gate.offer("a")
    gate.offer("b")
    flow = gate.core.flows[FlowKey("m", "short", "chat")]
    before = flow.deficit
    gate.fails("a")
    assert flow.deficit == pytest.approx(before + 512 + 0.3 * 256)
    assert gate.leaves("a") == []
    assert flow.deficit == pytest.approx(before), (
        "whoever leaves does not leave its credit to others"
    )


def test_it_is_refused_if_it_came_back_too_late_or_the_pool_is_gone() -> None:
    gate = Gate((replace(SHORT, max_age_s=5.0), LONG), engines={"e0": ONE})
    gate.offer("a")
    gate.wait(5.0)
    assert gate.fails("a") == ["a: queue_expired"]
    gate.offer("b")
    gate.engine("e0", up=False)
    gate.wait(5.0)
    assert gate.fails("b") == ["b: no_engine"]


def test_it_waits_while_no_engine_is_there_and_ends_with_no_engine() -> None:
    gate = Gate((replace(SHORT, max_age_s=5.0), LONG), engines={"e0": ONE})
    gate.offer("a")
    gate.engine("e0", up=False)
    assert gate.fails("a") == ["a waits"]
    assert gate.wait(5.0) == ["a: no_engine"]


def test_without_admission_it_starts_at_once_elsewhere_or_not_at_all() -> None:
    gate = Gate(engines=TWO)
    gate.route("all", mode=AdmissionMode.OFF)
    gate.offer("a")
    gate.offer("b")
    assert gate.fails("a") == ["a -> e1"]
    assert gate.fails("a") == ["a: no_engine"]
    assert gate.core.groups[SHORT.group].in_flight == {"b": 1}


def test_a_lease_comes_back_once() -> None:
    gate = Gate(engines=TWO)
    gate.offer("a")
    lease = gate.leases["a"]
    gate.fails("a")
    for misuse in (gate.core.requeue, gate.core.release):
        with pytest.raises(MisuseError, match=str(lease)):
            misuse(lease, 0.0)


def test_what_can_not_fit_any_more_when_it_comes_back_is_refused() -> None:
    gate = Gate(engines={"e0": replace(ONE, slots=4)})
    gate.offer("wide", slots=4)
    gate.limits("e0", ONE)
    assert gate.fails("wide") == ["wide: prompt_too_long"]


def test_a_held_head_that_something_comes_back_before_lends_its_hold() -> None:
    limits = {"e0": replace(ONE, slots=2)}
    gate = Gate(engines=limits, routes={("m", s): RouteView("all") for s in ("short", "long")})
    gate.offer("a")
    gate.offer("b")
    gate.offer("c", slots=2)
    assert gate.core.engine_views()[0].held_for is not None
    assert gate.fails("a") == ["a -> e0"], "it goes where it was, before the one that waited"
    gate.done("a")
    assert gate.done("b") == ["c -> e0"]


def test_an_exceptional_head_keeps_its_turn_when_something_comes_back_before_it() -> None:
    seats = replace(SHORT, reserved_slots=2, reserved_prefill_tokens=1024)
    gate = Gate((seats, LONG), {"e0": replace(ONE, slots=4)})
    gate.offer("long-1", "long")
    assert gate.offer("wide", "long", slots=4) == ["wide waits"]
    assert gate.fails("long-1") == ["long-1 -> e0"]
    assert gate.done("long-1") == ["wide -> e0"]
