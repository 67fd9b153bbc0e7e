from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals import KINDS, TraceSpec, change_of, draw
from loadgen.record import BenchError

MIX = (("short", 0.8), ("long", 0.2))


def spec(kind, seed=1, **more):
    return TraceSpec(kind, seed, 50.0, MIX, 10.0, 60.0, **more)


def rate_between(drawn, begin_s, end_s):
    return sum(begin_s <= at / 1e6 < end_s for at, _ in drawn) / (end_s - begin_s)


@given(st.sampled_from(KINDS), st.integers(0, 50))
def test_every_kind_draws_the_same_in_time_order_inside_its_interval(kind, seed):
    drawn = draw(spec(kind, seed))
    assert drawn == draw(spec(kind, seed))
    assert all(a[0] <= b[0] for a, b in pairwise(drawn))
    assert all(0 <= at < 70_000_000 for at, _ in drawn)
    assert {name for _, name in drawn} == {"short", "long"}


def coefficient_of_variation(drawn):
    gaps = [b[0] - a[0] for a, b in pairwise(drawn)]
    mean = sum(gaps) / len(gaps)
    return (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5 / mean


def test_gamma_gaps_vary_as_their_burstiness_says_at_the_same_rate():
    for burstiness, expected in ((0.25, 2.0), (1.0, 1.0), (4.0, 0.5)):
        drawn = draw(spec("gamma", burstiness=burstiness))
        assert coefficient_of_variation(drawn) == pytest.approx(expected, rel=0.15)
        assert rate_between(drawn, 0, 70) == pytest.approx(50, rel=0.15)


def test_a_step_changes_the_rate_once_and_for_good():
    drawn = draw(spec("step", factor=3.0, at_s=40.0))
    assert rate_between(drawn, 0, 40) == pytest.approx(50, rel=0.1)
    assert rate_between(drawn, 40, 70) == pytest.approx(150, rel=0.1)


def test_a_burst_ends_and_the_rate_is_as_before():
    one = spec("burst", factor=4.0, at_s=30.0, for_s=10.0)
    drawn = draw(one)
    assert change_of(one) == (30.0, 40.0)
    assert rate_between(drawn, 30, 40) == pytest.approx(200, rel=0.1)
    assert rate_between(drawn, 40, 70) == pytest.approx(50, rel=0.12)


def test_a_ramp_rises_steadily_over_the_window():
    drawn = draw(spec("ramp", factor=5.0))
    rates = [rate_between(drawn, at, at + 10) for at in range(0, 70, 10)]
    assert rates[0] == pytest.approx(50, rel=0.15)
    for third, expected in ((1, 67), (3, 133), (6, 233)):
        assert rates[third] == pytest.approx(expected, rel=0.15)


def test_a_change_is_by_default_in_the_middle_third_of_the_window():
    assert change_of(spec("burst")) == (30.0, 50.0)
    assert change_of(spec("step")) == (30.0, 70.0)
    assert change_of(spec("poisson")) is None


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"at_s": 80.0}, "not inside the 70 s"),
        ({"at_s": 60.0, "for_s": 20.0}, "not inside the 70 s"),
        ({"factor": 0.0}, "factor must be positive"),
    ],
)
def test_a_change_outside_the_trace_is_refused(more, reason):
    with pytest.raises(BenchError, match=reason):
        spec("burst", **more)
