"""The last minute from counters: differences, rates, percentiles from buckets."""

from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.live import SHOWN_S, SPAN_S, Reading, Shown, Window, percentile, recent
from gateway.tallies import BOUNDS_S

SHORT = ("short", "interactive")


def counted(values: list[float]) -> list[int]:
    counts = [0] * (len(BOUNDS_S) + 1)
    for value in values:
        counts[bisect_left(BOUNDS_S, value)] += 1
    return counts


def reading(at_s: float, served: int = 0, ttft: list[float] | None = None) -> Reading:
    spread = {} if ttft is None else {SHORT: counted(ttft)}
    return Reading(at_s, {(*SHORT, "completed"): served}, spread, spread)


@given(st.lists(st.floats(0.0005, 599.0), min_size=1), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    found = percentile(counted(values), BOUNDS_S, share)
    # The true one: so many of the values, rounded up, do not exceed it.
    rank = next(n for n in range(1, len(values) + 1) if n >= share * len(values))
    true = sorted(values)[rank - 1]
    lower, upper = next(
        (low, high) for low, high in pairwise([0.0, *BOUNDS_S]) if low < true <= high
    )
    assert found is not None
    assert lower <= found <= upper + 1e-12


def test_nothing_counted_has_no_percentile() -> None:
    assert percentile(counted([]), BOUNDS_S, 0.5) is None


def test_what_is_beyond_all_buckets_counts_as_the_last_bound() -> None:
    assert percentile(counted([1000.0, 2000.0]), BOUNDS_S, 0.5) == BOUNDS_S[-1]


def test_only_what_happened_between_two_readings_counts() -> None:
    before = reading(10.0, 5, [0.02] * 50)
    found = recent(before, reading(40.0, 9, [0.02] * 50 + [0.9] * 4), BOUNDS_S)
    assert found.span_s == 30.0
    assert found.outcomes == {(*SHORT, "completed"): 4}
    assert found.ttft[SHORT].count == 4
    assert found.ttft[SHORT].p50_s == pytest.approx(0.875)  # half of the bucket from 0.75 to 1
    assert found.gaps == found.ttft


def test_a_class_that_did_nothing_is_absent() -> None:
    still = reading(10.0, 5, [0.02])
    found = recent(still, still, BOUNDS_S)
    assert (found.outcomes, found.ttft, found.gaps) == ({}, {}, {})


def test_a_class_that_is_new_counts_from_zero() -> None:
    found = recent(reading(10.0), reading(20.0, 3, [0.02] * 3), BOUNDS_S)
    assert found.ttft[SHORT].count == 3
    assert found.outcomes == {(*SHORT, "completed"): 3}


@given(st.lists(st.floats(0.01, 30.0), min_size=1, max_size=200))
def test_a_window_reaches_a_minute_back_and_is_bounded(steps: list[float]) -> None:
    window, now, taken = Window(), 0.0, [0.0]
    window.add(reading(0.0))
    for step in steps:
        now += step
        window.add(reading(now))
        taken.append(now)
        first = window.first()
        assert first is not None
        span_s = now - first.at_s
        assert span_s >= min(SPAN_S, now) - 1.0
        assert span_s <= SPAN_S + 31.0
        assert len(window) <= SPAN_S + 2


def test_a_window_without_readings_begins_nowhere() -> None:
    assert Window().first() is None


@given(st.lists(st.tuples(st.floats(0, 0.7), st.integers(0, 1)), min_size=1, max_size=30))
def test_many_who_look_are_shown_one_document_of_now(looks: list[tuple[float, int]]) -> None:
    shown, made, now = Shown(), list[tuple[float, int]](), 0.0
    for later_s, state in looks:
        now += later_s

        def make(at: tuple[float, int] = (now, state)) -> bytes:
            made.append(at)
            return repr(at).encode()

        found = shown.get(state, make, now)
        assert found == repr(made[-1]).encode()
        assert made[-1][1] == state
        assert now - made[-1][0] < SHOWN_S
    for (before_s, old), (after_s, new) in pairwise(made):
        assert old != new or after_s - before_s >= SHOWN_S


def test_a_class_that_a_reload_took_away_and_brought_back_counts_from_0() -> None:
    before = reading(10.0, 50, [0.02] * 50)
    found = recent(before, reading(40.0, 2, [0.02] * 2), BOUNDS_S)
    assert found.outcomes == {(*SHORT, "completed"): 2}
    assert found.ttft[SHORT].count == 2
