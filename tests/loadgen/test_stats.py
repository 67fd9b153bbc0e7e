import math
import statistics
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from loadgen.record import canonical
from loadgen.stats import at_least, at_most, holm, mean, needed, sd, t_quantile, t_tail

LEVELS = st.floats(1e-6, 1 - 1e-6)
COUNTS = st.integers(1, 20_000)


@given(st.floats(-200, 200), st.integers(1, 500))
def test_the_tail_of_t_agrees_with_scipy(t, df):
    assert t_tail(t, df) == pytest.approx(scipy_stats.t.sf(t, df), rel=1e-9, abs=1e-13)


@given(LEVELS, st.integers(1, 500))
@settings(deadline=None)
def test_the_quantile_of_t_agrees_with_scipy(level, df):
    assert t_quantile(level, df) == pytest.approx(scipy_stats.t.ppf(level, df), rel=1e-9, abs=1e-9)


@given(COUNTS, st.floats(0, 1), st.floats(1e-4, 1 - 1e-4))
@settings(deadline=None)
def test_both_binomial_tails_agree_with_scipy(n, share, p):
    count = round(share * n)
    assert at_most(count, n, p) == pytest.approx(scipy_stats.binom.cdf(count, n, p), abs=1e-9)
    expected = scipy_stats.binom.sf(count - 1, n, p)
    assert at_least(count, n, p) == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 120), st.floats(1e-3, 0.999), st.floats(0, 1))
@settings(deadline=None)
def test_a_binomial_tail_is_the_exact_sum_of_its_terms(n, p, share):
    count, exact = round(share * n), Fraction(p)
    terms = (math.comb(n, k) * exact**k * (1 - exact) ** (n - k) for k in range(count + 1))
    assert at_most(count, n, p) == pytest.approx(float(sum(terms)), rel=1e-10, abs=1e-290)


def test_the_ends_of_a_binomial_are_certain():
    assert (at_most(5, 5, 0.3), at_most(-1, 5, 0.3)) == (1.0, 0.0)
    assert (at_least(0, 5, 0.3), at_least(6, 5, 0.3)) == (1.0, 0.0)
    assert (at_most(0, 5, 0.0), at_least(1, 5, 0.0)) == (1.0, 0.0)
    assert (at_most(4, 5, 1.0), at_least(5, 5, 1.0)) == (0.0, 1.0)


def test_no_difference_is_the_middle_of_t():
    assert t_tail(0.0, 7) == pytest.approx(0.5, abs=1e-15)
    assert t_quantile(0.5, 7) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("level", "misses", "alpha", "n"),
    [
        (0.95, 0, 0.05, 59),
        (0.95, 1, 0.05, 93),
        (0.99, 0, 0.05, 299),
        (0.99, 1, 0.05, 473),
        # Two looks spend less at the first one.
        (0.95, 0, 0.02, 77),
        (0.95, 1, 0.02, 115),
        (0.99, 0, 0.02, 390),
        (0.99, 1, 0.02, 581),
    ],
)
def test_a_quantile_is_certified_from_the_published_counts(level, misses, alpha, n):
    assert needed(level, misses, alpha) == n


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_agrees_with_its_definition(p_values):
    named = {f"{n:02}": p for n, p in enumerate(p_values)}
    ordered = sorted(named, key=lambda k: (named[k], k))
    steps = [(len(named) - rank) * named[name] for rank, name in enumerate(ordered)]
    expected = {name: min(1.0, max(steps[: n + 1])) for n, name in enumerate(ordered)}
    assert holm(named) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.floats(0.01, 0.2))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values, alpha):
    named = {f"{n:02}": p for n, p in enumerate(p_values)}
    rejected = set()
    for rank, name in enumerate(sorted(named, key=lambda k: (named[k], k))):
        if (len(named) - rank) * named[name] > alpha:
            break
        rejected.add(name)
    assert {name for name, p in holm(named).items() if p <= alpha} == rejected


def test_a_test_that_could_not_be_made_still_counts_in_the_family():
    assert holm({"a": 0.01}, family=12) == {"a": 0.12}
    assert holm({}) == {}


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_mean_and_deviation_agree_with_the_standard_library(values):
    assert mean(values) == pytest.approx(statistics.fmean(values), rel=1e-12, abs=1e-9)
    assert sd(values) == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-9)


def test_one_value_has_no_spread():
    assert sd([3.0]) == 0.0


def test_the_encoded_figures_do_not_depend_on_the_last_digits():
    found = [t_quantile(0.95, 12), t_tail(2.1, 12), at_most(3, 115, 0.05)]
    nudged = [math.nextafter(v, math.inf) for v in found]
    other = [
        scipy_stats.t.ppf(0.95, 12),
        scipy_stats.t.sf(2.1, 12),
        scipy_stats.binom.cdf(3, 115, 0.05),
    ]
    assert canonical(found) == canonical(nudged) == canonical([float(v) for v in other])
