"""A caller's rates, checked against a count over the last minute."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import FlowSpec
from gateway.principals import PrincipalRates

FREE = FlowSpec("m", "short", "chat")
SPEC = replace(FREE, principal_requests_per_minute=3, principal_tokens_per_minute=1000)


def test_without_rates_nobody_waits_and_nothing_is_kept() -> None:
    rates = PrincipalRates()
    for i in range(100):
        assert rates.wait_s(FREE, f"p{i}", 10**9, 0.0) == 0
        rates.charge(FREE, f"p{i}", 10**9, 0.0)
    assert not rates._buckets


def test_a_minutes_worth_goes_at_once_and_the_next_waits_for_its_part_of_a_minute() -> None:
    rates = PrincipalRates()
    for _ in range(3):
        assert rates.wait_s(SPEC, "p", 10, 0.0) == 0
        rates.charge(SPEC, "p", 10, 0.0)
    assert rates.wait_s(SPEC, "p", 10, 0.0) == 20.0
    assert rates.wait_s(SPEC, "p", 10, 20.0) == 0


def test_the_scarcer_of_the_two_rates_decides() -> None:
    rates = PrincipalRates()
    rates.charge(SPEC, "p", 900, 0.0)
    assert rates.wait_s(SPEC, "p", 100, 0.0) == 0
    assert rates.wait_s(SPEC, "p", 200, 0.0) == 6.0


def test_a_request_larger_than_a_minutes_tokens_goes_when_the_bucket_is_full() -> None:
    rates = PrincipalRates()
    assert rates.wait_s(SPEC, "p", 5000, 0.0) == 0
    rates.charge(SPEC, "p", 5000, 0.0)
    assert rates.wait_s(SPEC, "p", 1, 239.0) > 0
    assert rates.wait_s(SPEC, "p", 1, 241.0) == 0


def test_callers_and_flows_have_buckets_of_their_own() -> None:
    rates = PrincipalRates()
    for _ in range(3):
        rates.charge(SPEC, "p", 1, 0.0)
    assert rates.wait_s(SPEC, "p", 1, 0.0) > 0
    assert rates.wait_s(SPEC, "q", 1, 0.0) == 0
    assert rates.wait_s(replace(SPEC, size_class="long"), "p", 1, 0.0) == 0


def test_memory_is_bounded_by_who_called_lately() -> None:
    rates = PrincipalRates()
    for i in range(5_000):
        rates.charge(SPEC, f"p{i}", 1, float(i))
    assert len(rates._buckets) < 2 * (60 + 1024)


@given(st.lists(st.floats(0.0, 30.0), max_size=40))
def test_in_any_minute_a_caller_gets_at_most_two_minutes_worth(gaps_s: list[float]) -> None:
    """A token bucket's bound: what it holds, and what a minute adds."""
    rates, now, admitted = PrincipalRates(), 0.0, []
    for gap_s in gaps_s:
        now += gap_s
        if rates.wait_s(SPEC, "p", 1, now) <= 0:
            rates.charge(SPEC, "p", 1, now)
            admitted.append(now)
    for start in admitted:
        assert sum(start <= t < start + 60.0 for t in admitted) <= 6
