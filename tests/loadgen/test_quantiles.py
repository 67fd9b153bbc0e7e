import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.quantiles import NEEDED, quantile, summary
from loadgen.stats import needed


@given(st.lists(st.integers(0, 50), min_size=1), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_the_smallest_value_that_enough_values_do_not_exceed(values, q):
    found = quantile(values, q)
    enough = [v for v in values if sum(w <= v for w in values) >= q * len(values) - 1e-9]
    assert found == min(enough)


def test_a_quantile_prints_from_the_count_that_would_certify_it():
    assert {"p50": 1, "p95": needed(0.95, 0, 0.05), "p99": needed(0.99, 0, 0.05)} == NEEDED


@pytest.mark.parametrize(("failed", "value"), [(5, {"value": 1.0}), (6, None)])
def test_a_quantile_that_lands_on_a_failure_is_measured_and_unbounded(failed, value):
    found = summary([1.0] * (100 - failed) + [math.inf] * failed)["p95"]
    assert found == (value or {"value": None, "failed": 6, "above_s": 1.0})


def test_nothing_but_failures_has_nothing_to_be_above():
    assert summary([math.inf] * 60)["p95"] == {"value": None, "failed": 60}


def test_nothing_measured_is_too_few():
    assert summary([]) == {
        "n": 0,
        **{k: {"too_few": True, "n": 0, "needs": v} for k, v in NEEDED.items()},
    }
