"""What a canary's watch decides: on evidence, of both arms, over the last seconds only."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import Arm, Outcome
from gateway.finished import Finished
from gateway.thresholds import Metric, Threshold, defaults
from gateway.watch import (
    Contract,
    Judgement,
    Now,
    Tally,
    Verdict,
    Watch,
    least_difference,
    least_rate,
    tally,
)
from tests.simulation.watch_errors import MARGIN_ALONE, USUAL, Traffic, aborts

CONTRACT = Contract(1.0, 2.0)
CANDIDATE, STABLE = Arm.CANDIDATE, Arm.STABLE
RATES = (Metric.ERROR_RATE, Metric.REFUSALS, Metric.TTFT_ATTAINMENT, Metric.STALL_ATTAINMENT)
counts = st.integers(0, 400)
thresholds = st.builds(
    Threshold,
    st.sampled_from(RATES),
    st.floats(0.0, 0.5),
    st.none() | st.floats(0.0, 0.3),
    st.just(60.0),
    st.integers(1, 100),
)


def finished(outcome: Outcome = Outcome.COMPLETED, **more: object) -> Finished:
    plain = Finished(outcome, "id", None, 100.0, 100.5, first_event_s=100.2, dispatched_s=100.1)
    return replace(plain, **more)  # type: ignore[arg-type]


def judged(watch: Watch, candidate: Tally, stable: Tally, at_s: float = 1000.0) -> Judgement:
    watch.add(CANDIDATE, candidate, at_s)
    watch.add(STABLE, stable, at_s)
    return watch.judge(at_s)


def errors(count: int, bad: int) -> Tally:
    return Tally(count, bad, bad, bad)


# -- what a request counts for -------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "counted"),
    [
        (finished(), Tally(1)),
        (finished(first_event_s=101.5, ended_s=102.0), Tally(1, late=1)),
        (finished(first_event_s=None, ended_s=101.5), Tally(1, late=1)),
        (finished(max_stall_s=2.5), Tally(1, stalled=1)),
        (finished(Outcome.STREAM_INTERRUPTED), Tally(1, 1, 0, 1)),
        (finished(Outcome.UPSTREAM_UNREACHABLE, first_event_s=None), Tally(1, 1, 1, 1)),
        (finished(Outcome.ENGINE_ERROR, first_event_s=None, status=404), Tally(1, 1, 1, 1)),
        (finished(Outcome.PREDICTED_WAIT, first_event_s=None), Tally(refused=1)),
        (finished(Outcome.CLIENT_CANCELLED), Tally()),
        (finished(Outcome.CLIENT_CANCELLED, first_event_s=None, ended_s=105.0), Tally(1, late=1)),
        (finished(Outcome.BAD_REQUEST, first_event_s=None), Tally()),
        (finished(Outcome.DRAINING, first_event_s=None), Tally()),
        (finished(Outcome.DRAIN_TERMINATED), Tally()),
        (finished(Outcome.PAUSED, first_event_s=None), Tally()),
    ],
)
def test_a_request_counts_for_what_its_arm_did(request_: Finished, counted: Tally) -> None:
    assert tally(request_, CONTRACT) == counted


# -- evidence ------------------------------------------------------------------------------


@given(thresholds, st.data())
def test_nothing_is_decided_below_the_least_count(
    threshold: Threshold, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, threshold.min_count - 1))
    other = data.draw(counts)
    found = judged(Watch((threshold,), CONTRACT), errors(count, count), errors(other, 0))
    assert found.verdict is Verdict.HOLD
    assert f"too little data: {count} of {threshold.min_count} on candidate" in found.why


@given(
    st.lists(thresholds, min_size=1, max_size=4, unique_by=lambda t: t.metric),
    st.tuples(counts, counts, counts),
    st.tuples(counts, counts),
    st.integers(1, 50),
    st.booleans(),
)
def test_more_errors_of_the_candidate_never_turn_a_breach_into_anything_else(
    asked: list[Threshold],
    candidate: tuple[int, int, int],
    stable: tuple[int, int],
    more: int,
    in_place: bool,
) -> None:
    good, bad, refused = candidate
    if in_place:  # of the same requests more fail
        more = min(more, good)
        left = good - more
    else:  # more requests, and all of them fail; refusals are a part of all
        left, refused = good, 0
    beside = errors(sum(stable), stable[1])
    had = errors(good + bad, bad)._replace(refused=refused)
    has = errors(left + bad + more, bad + more)._replace(refused=refused)
    if judged(Watch(asked, CONTRACT), had, beside).verdict is Verdict.BREACH:
        assert judged(Watch(asked, CONTRACT), has, beside).verdict is Verdict.BREACH


@given(counts, counts, st.integers(0, 400), st.integers(0, 400))
def test_the_lower_ends_lie_below_what_was_seen(
    count: int, bad: int, other_count: int, other_bad: int
) -> None:
    count, other_count = count + bad, other_count + other_bad
    if count:
        assert 0.0 <= least_rate(bad, count) <= bad / count
    if count and other_count:
        seen = bad / count - other_bad / other_count
        assert least_difference(bad, count, other_bad, other_count) <= seen + 1e-9


def test_one_error_of_three_is_no_evidence_even_where_three_requests_are_enough() -> None:
    threshold = Threshold(Metric.ERROR_RATE, 0.02, min_count=3)
    found = judged(Watch((threshold,), CONTRACT), errors(3, 1), errors(100, 0))
    assert found.verdict is Verdict.FINE


def test_a_clear_fault_is_a_breach_that_shows_both_arms() -> None:
    found = judged(Watch((USUAL,), CONTRACT), errors(60, 20), errors(500, 3))
    assert found.verdict is Verdict.BREACH
    assert found.why == (
        "error_rate: 20 of 60 bad on candidate, 3 of 500 bad on stable: above 0.02 and worse than "
        "stable by more than 0.01"
    )
    (finding,) = found.findings
    assert (finding.candidate.value, finding.stable.value) == (0.333333, 0.006)


# -- both arms -----------------------------------------------------------------------------


def test_a_fault_of_both_arms_is_not_the_candidates_alone() -> None:
    both, alone = (Threshold(Metric.ERROR_RATE, 0.02, margin) for margin in (0.01, None))
    counted = (errors(200, 100), errors(2000, 1000))
    assert judged(Watch((both,), CONTRACT), *counted).verdict is Verdict.FINE
    assert judged(Watch((alone,), CONTRACT), *counted).verdict is Verdict.BREACH


def test_without_a_stable_arm_to_compare_with_the_limit_decides_alone() -> None:
    found = judged(Watch((USUAL,), CONTRACT), errors(200, 100), errors(10, 0))
    assert found.verdict is Verdict.BREACH
    assert found.why.endswith("too few on stable to compare")
    held = judged(Watch((MARGIN_ALONE,), CONTRACT), errors(200, 100), errors(10, 0))
    assert held.verdict is Verdict.HOLD
    assert "10 of 50 on stable" in held.why


def test_arms_that_are_alike_are_told_apart_in_no_more_watches_than_is_stated() -> None:
    # watch_errors prints 0.00 to 0.01 of a watch of an hour; these are 40 of five minutes.
    for bad in (0.01, 0.2):
        traffic = Traffic(candidate_bad=bad, stable_bad=bad)
        assert len(aborts(MARGIN_ALONE, traffic, 20, 300)) <= 1
    # And the rule is not blind: a candidate that fails one in ten is found each time.
    faulty = Traffic(candidate_bad=0.1, stable_bad=0.005)
    assert len(aborts(USUAL, faulty, 10, 200)) == 10


# -- time and memory -----------------------------------------------------------------------


def test_what_is_older_than_the_window_is_forgotten() -> None:
    watch = Watch((USUAL,), CONTRACT)
    assert judged(watch, errors(100, 50), errors(500, 0), 1000.0).verdict is Verdict.BREACH
    assert judged(watch, errors(100, 0), errors(500, 0), 1061.0).verdict is Verdict.FINE


@given(st.lists(st.floats(0.0, 5.0), max_size=300), st.floats(2.0, 20.0))
def test_memory_is_bounded_by_the_windows(gaps_s: list[float], window_s: float) -> None:
    watch, now = Watch((replace(USUAL, window_s=window_s),), CONTRACT), 0.0
    for gap_s in gaps_s:
        now += gap_s
        watch.add(CANDIDATE, Tally(1), now)
    assert len(watch.state(now)["candidate"]) <= 22


def test_a_watch_goes_on_with_what_it_had_counted() -> None:
    watch = Watch(defaults(1.0), CONTRACT)
    before = judged(watch, errors(60, 20), errors(500, 3), 1000.0)
    again = Watch(defaults(1.0), CONTRACT)
    again.resume(watch.state(1010.0), 77.0)
    assert again.judge(77.0).why == before.why
    assert again.judge(77.0 + 51.0).verdict is Verdict.HOLD


# -- what has not ended --------------------------------------------------------------------


def test_an_engine_that_hangs_ends_nothing_and_is_seen_all_the_same() -> None:
    threshold = Threshold(Metric.TTFT_ATTAINMENT, 0.95, min_count=20)
    watch = Watch((threshold,), CONTRACT)
    watch.sample(Now(), Now(late=30))
    assert watch.judge(5.0).verdict is Verdict.BREACH
    watch.sample(Now(), Now())
    assert watch.judge(6.0).verdict is Verdict.HOLD


def test_an_age_counts_when_it_is_seen_several_times_one_after_another() -> None:
    threshold = Threshold(Metric.OLDEST_AGE, 10.0, 5.0, min_count=3)
    watch = Watch((threshold,), CONTRACT)
    old, young, as_old = Now(12.0), Now(1.0), Now(9.0)
    for stable, candidate in ((young, old), (young, old), (as_old, old), (young, old)):
        watch.sample(stable, candidate)
        assert watch.judge(0.0).verdict is Verdict.FINE
    watch.sample(young, old)
    assert watch.judge(0.0).verdict is Verdict.FINE
    watch.sample(young, old)
    found = watch.judge(0.0)
    assert found.verdict is Verdict.BREACH
    assert "12.0 s on candidate, 1.0 s on stable" in found.why
