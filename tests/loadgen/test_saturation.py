from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.cost import StepCost
from loadgen.engine.scheduler import SchedulerConfig
from loadgen.saturation import (
    class_sequence,
    completions_per_s,
    level_search,
    rates_file,
    rates_from,
)

COST = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8)
SIZES = {"short": (512, 128), "long": (8192, 128)}


def per_s(shares, in_flight, config=None):
    return completions_per_s(shares, SIZES, (config or SchedulerConfig(), COST), in_flight)


@given(st.integers(0, 20), st.integers(1, 5))
def test_the_classes_are_exact_by_count_in_every_block(tenths, blocks):
    share = tenths / 20
    names = list(islice(class_sequence({"short": share, "long": 1 - share}), 20 * blocks))
    for n in range(blocks):
        assert Counter(names[20 * n : 20 * n + 20])["short"] == tenths


def test_one_request_at_a_time_is_completed_as_fast_as_its_steps_allow():
    alone_s = 0.005 + 512 * 2.53e-5 + 127 * 0.005 + 128 * 9.6e-6 + 128 * 576 * 3.6e-8 + 0.004
    assert per_s({"short": 1.0}, 1) == pytest.approx(1 / alone_s, rel=0.03)


def test_the_measured_capacity_of_the_card_is_met_within_a_tenth():
    # Closed loops on one H200: 48 shorts a second, 12.8 of 80/20, 7.2 of 50/50.
    for shares, measured in (
        ({"short": 1.0}, 48.0),
        ({"short": 0.8, "long": 0.2}, 12.8),
        ({"short": 0.5, "long": 0.5}, 7.2),
    ):
        found = level_search(lambda n, own=shares: per_s(own, n))
        assert found.per_s == pytest.approx(measured, rel=0.10)


def test_the_search_ends_where_more_in_flight_brings_no_more():
    asked = []

    def measure(level):
        asked.append(level)
        return min(level, 40)

    found = level_search(measure)
    assert asked == [8, 16, 32, 64, 128]
    assert (found.level, found.per_s) == (64, 40)


def test_the_rates_are_fixed_shares_of_the_completions():
    assert rates_from(12.8) == {"low": 7.68, "near": 9.6, "stress": 10.88}


def test_the_file_says_how_the_rates_were_found():
    found = rates_file({"80-20": level_search(lambda n: min(n, 12.8))}, {"virtual": True})
    assert found["rates"]["80-20"]["near"] == 9.6
    assert found["source"]["completions_per_s"] == {"80-20": 12.8}
    assert found["source"]["in_flight"] == {"80-20": 16}
    assert found["source"]["measured_s"] == 30.0
    assert found["source"]["virtual"] is True
