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


def full_again_s(rates: PrincipalRates, per_minute: float, now: float) -> float:
    spec = replace(FREE, principal_tokens_per_minute=per_minute)
    return rates.wait_s(spec, "p", 10**9, now)


def test_a_raised_rate_holds_at_once_and_locks_nobody_out() -> None:
    rates = PrincipalRates()
    rates.charge(replace(FREE, principal_tokens_per_minute=5_000.0), "p", 8_192, 0.0)
    raised = replace(FREE, principal_tokens_per_minute=100_000.0)
    assert rates.wait_s(raised, "p", 8_192, 0.0) == 0
    assert full_again_s(rates, 100_000.0, 86_400.0) == 0


def test_a_lowered_rate_gives_nobody_more_than_a_minutes_worth_of_it() -> None:
    rates = PrincipalRates()
    rates.charge(replace(FREE, principal_tokens_per_minute=100_000.0), "p", 10_000, 0.0)
    lowered = replace(FREE, principal_tokens_per_minute=5_000.0)
    assert rates.wait_s(lowered, "p", 4_500, 0.0) == 0
    rates.charge(lowered, "p", 4_500, 0.0)
    assert rates.wait_s(lowered, "p", 4_500, 0.0) > 0
    assert full_again_s(rates, 5_000.0, 0.0) == 60.0


PER_MINUTE = st.sampled_from([60.0, 1_000.0, 5_000.0, 100_000.0])
CALLS = st.lists(st.tuples(PER_MINUTE, st.floats(0.0, 90.0), st.integers(1, 10_000)), max_size=30)


@given(CALLS)
def test_another_rate_keeps_its_bound_and_makes_nobody_wait_longer_for_a_full_bucket(
    calls: list[tuple[float, float, int]],
) -> None:
    rates, now, spent_at = PrincipalRates(), 0.0, 60.0
    admitted: list[tuple[float, float, float]] = []
    for per_minute, gap_s, tokens in calls:
        now += gap_s
        limit_s = full_again_s(rates, spent_at, now)
        assert full_again_s(rates, per_minute, now) <= limit_s + 1e-6
        spec = replace(FREE, principal_tokens_per_minute=per_minute)
        wait_s = rates.wait_s(spec, "p", tokens, now)
        assert rates.wait_s(spec, "p", tokens, now + wait_s + 1e-3) <= 0
        if wait_s <= 0:
            if per_minute != spent_at:
                admitted, spent_at = [], per_minute
            rates.charge(spec, "p", tokens, now)
            admitted.append((now, now + 60.0, min(tokens, per_minute)))
        for start, end, _ in admitted:
            minute = [size for at, _, size in admitted if start <= at < end]
            assert sum(minute) <= 2 * spent_at + 1e-3
