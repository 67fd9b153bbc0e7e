import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.advice import MAX_CALLERS, SHORT_S, Advisor, RetryAfter
from gateway.contract import CONTRACT, Advice
from gateway.domain import Outcome


def flat() -> float:
    return 0.0


def test_advice_is_the_time_the_queue_needs_to_drain() -> None:
    assert RetryAfter(flat).refused(0.0, 5.0) == 5.0


def test_without_a_measured_rate_the_advice_is_the_least() -> None:
    assert RetryAfter(flat).refused(0.0, 0.0) == 1.0


def test_advice_rises_while_refusals_keep_coming_and_falls_when_they_stop() -> None:
    advisor = RetryAfter(flat)
    advice = [advisor.refused(0.1 * tick, 0.0) for tick in range(600)]
    assert advice == sorted(advice)
    assert advice[-1] == 30.0
    assert advisor.refused(60.0 + 300.0, 0.0) == 1.0


def test_one_burst_raises_the_advice_once() -> None:
    advisor = RetryAfter(flat)
    for _ in range(10_000):
        assert advisor.refused(0.0, 0.0) == 1.0
    assert advisor.refused(1.0, 0.0) == 2.0
    assert advisor.refused(1.1, 0.0) == 2.0


def test_a_long_silence_costs_no_time_to_catch_up_with() -> None:
    advisor = RetryAfter(flat)
    for tick in range(100):
        advisor.refused(0.1 * tick, 0.0)
    assert advisor.refused(1e12, 0.0) == 1.0


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e9)), max_size=50),
    st.integers(),
)
def test_advice_always_stays_within_bounds(calls: list[tuple[float, float]], seed: int) -> None:
    advisor = RetryAfter(random.Random(seed).random)
    now = 0.0
    for step, drain_s in calls:
        now += step
        assert 1.0 <= advisor.refused(now, drain_s) <= 30.0


FLOW = ("m", "short", "interactive")
OTHER = ("m", "long", "interactive")
UNSIZED = ("m", "", "interactive")
FIXED = {Advice.CONFIGURED: 9.0, Advice.PROBE_INTERVAL: 0.7}
REMEMBERED = (Advice.QUEUE, Advice.CALLER, Advice.GATEWAY)


def advisor(before: Advisor | None = None) -> Advisor:
    return Advisor(flat, [FLOW, OTHER], FIXED, before)


def hammer(asked: Advisor, rule: Advice, group: tuple[str, str, str] = FLOW) -> float | None:
    """Ten refusals a second of one caller for a minute; the last advice."""
    told = [asked.seconds(rule, None, 0.1 * tick, group, "eager") for tick in range(600)]
    return told[-1]


@pytest.mark.parametrize("rule", REMEMBERED)
def test_the_advice_of_a_bound_rises_while_refusals_keep_coming(rule: Advice) -> None:
    assert hammer(advisor(), rule) == 30.0


@pytest.mark.parametrize("rule", [r for r in Advice if r not in (*REMEMBERED, Advice.NONE)])
def test_what_is_no_bound_of_ours_never_rises(rule: Advice) -> None:
    asked = advisor()
    first = asked.seconds(rule, None, 0.0, FLOW, "eager")
    assert hammer(asked, rule) == first


@pytest.mark.parametrize("hammered", Advice)
@pytest.mark.parametrize("rule", REMEMBERED)
def test_who_meets_another_bound_is_told_nothing_of_it(rule: Advice, hammered: Advice) -> None:
    asked = advisor()
    hammer(asked, hammered)
    told = asked.seconds(rule, None, 60.0, FLOW, "eager")
    assert told == (30.0 if rule is hammered else 1.0)


def test_one_callers_own_bound_is_nothing_to_another_caller() -> None:
    asked = advisor()
    hammer(asked, Advice.CALLER)
    assert asked.seconds(Advice.CALLER, None, 60.0, FLOW, "calm") == 1.0


def test_one_flow_is_nothing_to_another_nor_to_what_may_still_be_in_either() -> None:
    asked = advisor()
    hammer(asked, Advice.QUEUE)
    assert asked.seconds(Advice.QUEUE, None, 60.0, OTHER, "eager") == 1.0
    assert asked.seconds(Advice.QUEUE, None, 60.0, UNSIZED, "eager") == 1.0


def test_a_queue_refusal_before_the_size_is_known_has_a_memory_too() -> None:
    asked = advisor()
    assert hammer(asked, Advice.QUEUE, UNSIZED) == 30.0
    assert asked.seconds(Advice.GATEWAY, None, 60.0, FLOW, "eager") == 1.0


def test_a_flow_that_is_gone_is_advised_as_the_gateway() -> None:
    assert hammer(advisor(), Advice.QUEUE, ("gone", "short", "interactive")) == 30.0


def test_what_the_configuration_says_is_told_as_it_is() -> None:
    asked = Advisor(lambda: 0.9, [FLOW], FIXED)
    assert asked.seconds(Advice.CONFIGURED, None, 0.0, FLOW, "a") == 9.0
    assert asked.seconds(Advice.PROBE_INTERVAL, 4.0, 0.0, FLOW, "a") == 0.7
    assert asked.seconds(Advice.NONE, 4.0, 0.0, FLOW, "a") is None


def test_an_engines_own_figure_is_told_and_else_a_short_time_that_differs() -> None:
    asked = Advisor(random.Random(1).random, [FLOW], FIXED)
    assert asked.seconds(Advice.ENGINE, 17.0, 0.0, FLOW, "a") == 17.0
    for rule in (Advice.ENGINE, Advice.SHORT):
        told = [asked.seconds(rule, None, 0.0, FLOW, "a") for _ in range(100)]
        assert all(seconds is not None and 0.0 <= seconds < SHORT_S for seconds in told)
        assert len(set(told)) > 90


def test_the_seconds_a_bound_needs_are_its_least_advice() -> None:
    asked = advisor()
    for rule in REMEMBERED:
        assert asked.seconds(rule, 12.0, 0.0, FLOW, "a") == 12.0


def test_a_reload_forgets_only_the_flows_it_takes_away() -> None:
    asked = advisor()
    for rule in REMEMBERED:
        hammer(asked, rule)
    after = Advisor(flat, [OTHER], FIXED, asked)
    assert after.seconds(Advice.GATEWAY, None, 60.0, FLOW, "eager") == 30.0
    assert after.seconds(Advice.CALLER, None, 60.0, FLOW, "eager") == 30.0
    assert Advisor(flat, [FLOW], FIXED, after).seconds(Advice.QUEUE, None, 60.0, FLOW, "") == 1.0


def test_callers_that_were_not_refused_for_long_are_forgotten() -> None:
    asked = advisor()
    hammer(asked, Advice.CALLER)
    for number in range(MAX_CALLERS - 1):
        asked.seconds(Advice.CALLER, None, 60.0, FLOW, str(number))
    assert asked.seconds(Advice.CALLER, None, 60.0, FLOW, "eager") == 30.0
    for number in range(MAX_CALLERS):
        asked.seconds(Advice.CALLER, None, 60.0, FLOW, str(number))
    assert len(asked.callers) == MAX_CALLERS
    assert asked.seconds(Advice.CALLER, None, 60.0, FLOW, "eager") == 1.0


def test_every_rule_of_the_contract_is_used_and_429_always_remembers() -> None:
    assert {row.advice for row in CONTRACT.values()} == set(Advice)
    for outcome, row in CONTRACT.items():
        assert (row.advice in REMEMBERED) == (row.status == 429), outcome
    assert CONTRACT[Outcome.PRINCIPAL_LIMIT].advice is Advice.CALLER
