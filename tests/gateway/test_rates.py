"""What is learnt from what was seen, and what is forgotten."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.rates import RecentP95, ServiceRate, learnt_prefill_rate, unstreamed_prefill_s


def test_a_service_rate_counts_only_time_in_which_somebody_waited() -> None:
    rate = ServiceRate()
    rate.waiting(0.0)
    rate.served(100.0, 1.0, 15.0)
    rate.empty()
    rate.waiting(1000.0)
    rate.served(100.0, 1001.0, 15.0)
    assert math.isclose(rate.per_second(1001.0, 60.0) or 0.0, 100.0)


def test_a_service_rate_forgets_after_a_stall_and_goes_stale() -> None:
    rate = ServiceRate()
    rate.waiting(0.0)
    rate.served(100.0, 1.0, 15.0)
    assert rate.per_second(61.0, 60.0) is not None
    assert rate.per_second(61.1, 60.0) is None
    rate.served(100.0, 30.0, 15.0)
    assert rate.per_second(30.0, 60.0) is None


def test_what_goes_the_moment_it_comes_teaches_nothing() -> None:
    rate = ServiceRate()
    for second in range(1000):
        rate.waiting(float(second))
        rate.served(100.0, float(second), 15.0)
        rate.empty()
    assert rate.per_second(1000.0, 60.0) is None
    assert rate.last_sample_s is None
    rate.waiting(1000.0)
    rate.served(100.0, 1000.5, 15.0)
    rate.served(100.0, 1000.5, 15.0)
    assert rate.per_second(1000.5, 60.0) == pytest.approx(400.0)


def test_the_time_that_passes_while_somebody_waits_lowers_the_rate_before_the_next_dispatch() -> (
    None
):
    rate = ServiceRate()
    rate.waiting(0.0)
    rate.served(100.0, 1.0, 15.0)
    assert rate.per_second(5.0, 60.0) == pytest.approx(20.0)
    rate.empty()
    assert rate.per_second(5.0, 60.0) == pytest.approx(100.0)


def test_a_queue_that_was_never_served_and_one_that_forgot_are_told_apart() -> None:
    rate = ServiceRate()
    assert rate.last_sample_s is None
    rate.waiting(0.0)
    rate.served(100.0, 1.0, 15.0)
    assert rate.last_sample_s == 1.0
    rate.served(30.0, 30.0, 15.0)
    assert rate.last_sample_s == -math.inf
    assert rate.last_cost == 30.0


def test_a_recent_rate_outweighs_an_old_one() -> None:
    rate = ServiceRate()
    rate.waiting(0.0)
    for second in range(1, 31):
        rate.served(10.0, float(second), 15.0)
    for second in range(31, 61):
        rate.served(1000.0, float(second), 15.0)
    assert (rate.per_second(60.0, 60.0) or 0.0) > 900.0


@given(st.lists(st.integers(0, 500), max_size=600))
def test_the_p95_is_the_nearest_rank_of_the_last_200_once_there_are_59(values: list[int]) -> None:
    recent = RecentP95()
    for value in values:
        recent.add(value)
    last = sorted(values[-200:])
    expected = last[math.ceil(0.95 * len(last)) - 1] if len(last) >= 59 else None
    assert recent.value == expected


def test_how_many_values_a_p95_needs_can_be_chosen() -> None:
    recent = RecentP95(least=2)
    recent.add(1.0)
    assert recent.value is None
    recent.add(3.0)
    assert recent.value == 3.0


def test_a_prefill_rate_moves_towards_what_was_seen_and_few_tokens_teach_nothing() -> None:
    assert learnt_prefill_rate(1000.0, 255, 1.0) == 1000.0
    assert learnt_prefill_rate(1000.0, 8192, 0.0) == 1000.0
    assert learnt_prefill_rate(1000.0, 200_000, 10.0) == pytest.approx(20_000.0)
    assert 1000.0 < learnt_prefill_rate(1000.0, 8192, 1.0) < 8192.0
    rate = 1000.0
    for _ in range(400):
        rate = learnt_prefill_rate(rate, 8192, 1.0)
    assert rate == pytest.approx(8192.0, rel=0.01)


def test_an_unstreamed_prefill_counts_as_done_a_quarter_later_than_the_rate_says() -> None:
    assert unstreamed_prefill_s(39_000, 39_000.0) == pytest.approx(1.27)
