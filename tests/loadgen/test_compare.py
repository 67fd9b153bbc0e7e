import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from loadgen.compare import Contrast, contrast, detectable, rounds_for, spread_of

UNITS, ROUNDS = ("B0", "C1", "C2", "C3", "C4", "C5", "C6"), (1, 2, 3)


def table(values):
    return {u: dict(zip(ROUNDS, row, strict=True)) for u, row in zip(UNITS, values, strict=True)}


numbers = st.lists(st.lists(st.floats(-3, 3), min_size=3, max_size=3), min_size=7, max_size=7).map(
    np.array
)


@given(numbers)
def test_the_error_is_what_least_squares_leaves_over(values):
    design = [
        [1.0, *(u == k for k in range(1, 7)), *(r == k for k in range(1, 3))]
        for u in range(7)
        for r in range(3)
    ]
    matrix, flat = np.array(design, float), values.reshape(-1)
    fitted = matrix @ np.linalg.lstsq(matrix, flat, rcond=None)[0]
    spread = spread_of(table(values.tolist()))
    assert spread.df == 12
    assert spread.mse == pytest.approx(((flat - fitted) ** 2).sum() / 12, abs=1e-9)


@given(numbers)
def test_a_difference_of_rounds_as_a_whole_leaves_no_error_and_no_contrast(values):
    shifted = values + np.array([5.0, -2.0, 1.0])
    one, other = (spread_of(table(v.tolist())) for v in (values, shifted))
    assert one.mse == pytest.approx(other.mse, abs=1e-9)
    pair = [contrast(table(v.tolist()), "C1", "B0", one) for v in (values, shifted)]
    assert pair[0].difference == pytest.approx(pair[1].difference, abs=1e-9)


def test_two_cells_are_a_paired_t_test():
    rng = np.random.default_rng(1)
    base = rng.normal(size=5)
    own = base - 0.1 + rng.normal(0, 0.1, size=5)
    pair = {"B0": dict(enumerate(base.tolist())), "C1": dict(enumerate(own.tolist()))}
    made = contrast(pair, "C1", "B0", spread_of(pair))
    expected = scipy_stats.ttest_rel(own, base, alternative="less")
    assert made.df == 4
    assert made.p_less == pytest.approx(expected.pvalue, rel=1e-9)
    interval = expected.confidence_interval(0.95)
    assert made.high(0.05) == pytest.approx(interval.high, rel=1e-9)


def test_cells_left_out_or_without_every_round_stay_out_of_the_error_and_are_named():
    values = np.random.default_rng(2).normal(size=(7, 3)).tolist()
    made = table(values)
    del made["C2"][3]
    spread = spread_of(made, {"C1"})
    assert spread.left_out == ("C1", "C2")
    assert spread.df == 4 * 2
    # Two rounds are in common, so the difference is less sure.
    found = contrast(made, "C2", "B0", spread)
    assert found.se == pytest.approx(math.sqrt(2 * spread.mse / 2))
    assert found.difference == pytest.approx(
        np.mean([values[2][0] - values[0][0], values[2][1] - values[0][1]])
    )


def test_too_little_to_see_an_error_gives_none():
    assert spread_of({"B0": {1: 0.0, 2: 0.1}}) is None
    assert spread_of({"B0": {1: 0.0}, "C1": {1: 0.0}}) is None
    assert spread_of({}) is None
    spread = spread_of(table(np.eye(7, 3).tolist()))
    assert contrast({"B0": {1: 0.0}}, "C1", "B0", spread) is None


def test_no_error_at_all_decides_by_sign():
    assert Contrast(-0.1, 0.0, 12).p_less == 0.0
    assert Contrast(0.0, 0.0, 12).p_less == 1.0


def test_the_smallest_visible_gain_is_the_one_whose_test_just_succeeds():
    spread = spread_of(table(np.random.default_rng(3).normal(0, 0.1, size=(7, 3)).tolist()))
    gain = detectable(spread, 0.05 / 12)
    at_the_edge = Contrast(math.log(1.0 - gain), spread.se(), spread.df)
    assert at_the_edge.p_less == pytest.approx(0.05 / 12, rel=1e-6)


def test_more_rounds_prove_what_three_could_not():
    spread = spread_of(table(np.random.default_rng(4).normal(0, 0.1, size=(7, 3)).tolist()))
    seen = 0.9 * math.log(1.0 - detectable(spread, 0.05 / 12))
    rounds = rounds_for(spread, seen, 0.05 / 12)
    assert 3 < rounds < 10
    assert rounds_for(spread, -1e-6, 0.05) is None
