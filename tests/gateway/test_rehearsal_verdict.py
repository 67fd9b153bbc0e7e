"""What a rehearsal is judged by: each threshold, and the record."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.manifest_fields import RecordError
from gateway.rehearsal_facts import (
    Capacity,
    Limits,
    Observed,
    Phase,
    Probe,
    Seen,
    broken_already,
    capacity_fault,
    limits_of,
    phase_of,
)
from gateway.rehearsal_verdict import FAIL, PASS, Judged, judge, sealed, unsealed, with_client
from gateway.thresholds import Metric, Threshold
from gateway.watch import Tally

BEGAN = {Phase.BEFORE: 100.0, Phase.CANARY: 110.0, Phase.FLIP: 120.0, Phase.ROLLBACK: 130.0}
GOOD = Tally(1)
LIMITS = Limits(min_count=5)


def seen(at_s: float, pool: str = "a", counted: Tally = GOOD, **more: Any) -> Seen:
    """A request that arrived then, was sent at once, and took two seconds."""
    plain = Seen(at_s, at_s + 0.01, at_s + 0.1, at_s + 2.0, pool, "completed", counted)
    return plain._replace(**more)


def served() -> list[Seen]:
    """Ten good requests in each phase, each where it belongs; of ten callers."""
    to_b = {Phase.FLIP: range(10), Phase.CANARY: range(5)}
    return [
        seen(begin + n * 0.9, "b" if n in to_b.get(phase, ()) else "a", caller=f"c{n}")
        for phase, begin in BEGAN.items()
        for n in range(10)
    ]


PROBE = Probe("http://e", "short", 512, 0.5, ttft_s=0.1)
WHOLE = Observed("a", "b", BEGAN, served(), probes_after=(PROBE,))


def failed(judged: Judged) -> set[str]:
    return {check.name for check in judged.checks if not check.passed}


def with_seen(*more: Seen) -> Observed:
    return replace(WHOLE, seen=[*served(), *more])


def test_a_rehearsal_in_which_all_went_well_passes_and_shows_every_figure() -> None:
    judged = judge(WHOLE, LIMITS)
    assert (judged.verdict, judged.why) == (PASS, ())
    figures = {check.name: check.value for check in judged.checks}
    assert figures["first request back (s)"] == pytest.approx(0.01)
    assert figures["last affected request ended (s)"] == pytest.approx(0.1)  # arrived 1.9 s before
    assert figures["sent to the candidate after the rollback"] == 0
    assert [row["phase"] for row in judged.phases] == list(map(str, Phase))
    assert judged.phases[2]["by_pool"] == {"b": 10}
    assert judged.phases[2]["ttft_s"] == {"p50": 0.1, "p95": 0.1, "max": 0.1}


LATE, STALLED, ERROR = Tally(1, late=1), Tally(1, stalled=1), Tally(1, errors=1)
REFUSED = Tally(refused=1)
BROKEN: Mapping[str, tuple[Observed, str]] = {
    "stopped": (replace(WHOLE, faults=("stopped by ben",)), "carried out whole"),
    "a phase missing": (
        replace(WHOLE, began_s={p: s for p, s in BEGAN.items() if p is not Phase.CANARY}),
        "carried out whole",
    ),
    "not back": (
        replace(WHOLE, differences=("m/short is not as it was",)), "routes that differ afterwards",
    ),
    "failures": (with_seen(seen(125, "b", ERROR)), "failed, flip"),
    "failures in the canary": (with_seen(seen(115, "b", ERROR)), "failed, canary"),
    "refusals": (with_seen(seen(135, counted=REFUSED)), "refused, rollback"),
    "late": (with_seen(*[seen(125, "b", LATE)] * 2), "first token in time, flip"),
    "stalled": (with_seen(*[seen(125, "b", STALLED)] * 2), "without a long gap, flip"),
    "age": (replace(WHOLE, oldest_age_s={Phase.FLIP: 9.0}), "oldest waiting, flip (s)"),
    "astray": (with_seen(seen(135, "b")), "sent to the candidate after the rollback"),
    "never back": (
        replace(WHOLE, seen=[s for s in served() if s.arrived_s < 130 or s.pool == "b"]),
        "first request back (s)",
    ),
    "late back": (
        replace(WHOLE, seen=[s for s in served() if not 130 <= s.arrived_s < 135.1]),
        "first request back (s)",
    ),
    "hangs on the candidate": (
        with_seen(seen(129, "b", ended_s=None, outcome=None)),
        "last affected request ended (s)",
    ),
    "long on the candidate": (
        with_seen(seen(129, "b", ended_s=130 + 61)), "last affected request ended (s)",
    ),
    "recovers late": (with_seen(seen(141, "a", LATE)), "recovered after (s)"),
    "cut off": (replace(WHOLE, ended=1), "streams cut off by the drain"),
    "cold candidate": (replace(WHOLE, prefill={Phase.FLIP: 0.99}), "prefill room taken, flip (b)"),
    "full baseline": (
        replace(WHOLE, prefill={Phase.ROLLBACK: 0.99}), "prefill room taken, rollback (a)",
    ),
    "slow probe": (
        replace(WHOLE, probes_after=(replace(PROBE, ttft_s=0.6),)),
        "warm probes that failed afterwards",
    ),
    "dead probe": (
        replace(WHOLE, probes_after=(replace(PROBE, ttft_s=None, fault="refused"),)),
        "warm probes that failed afterwards",
    ),
    "no probe": (replace(WHOLE, probes_after=()), "warm probes that failed afterwards"),
    "too few": (
        replace(WHOLE, seen=[s for s in served() if not 120 <= s.arrived_s < 127]),
        "requests, flip (b)",
    ),
    "too few of the candidate": (
        replace(WHOLE, seen=[s for s in served() if not 110 <= s.arrived_s < 110.5]),
        "requests, canary (b)",
    ),
    "refused all the way back": (
        replace(WHOLE, seen=[s._replace(counted=REFUSED, pool=None) if s.arrived_s >= 130 else s
                             for s in served()]),
        "requests, rollback (a)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_condition_fails_and_is_named(name: str) -> None:
    observed, check = BROKEN[name]
    judged = judge(observed, LIMITS)
    assert judged.verdict == FAIL
    assert check in failed(judged)
    assert any(why.startswith((check, "too few")) for why in judged.why)


def test_every_kind_of_check_is_broken_by_one_of_these_cases() -> None:
    kinds = {check.name.split(",")[0] for check in judge(WHOLE, LIMITS).checks}
    assert kinds == {check.split(",")[0] for _, check in BROKEN.values()}


def test_what_waited_in_the_canary_until_the_flip_took_it_along_is_none_of_the_canary_s() -> None:
    """Everybody's requests go to the candidate then, whoever the canary's callers were."""
    waited = [seen(119.0 + n * 0.05, "b", dispatched_s=120.0, caller="c") for n in range(9)]
    others = [s for s in served() if not 110 <= s.arrived_s < 120]
    judged = judge(replace(WHOLE, seen=[*others, *waited]), LIMITS)
    assert judged.verdict == FAIL
    assert judged.why[0].startswith(
        "too few requests in the canary phase: b served 0, at least 5: 0 of 1 callers went to it"
    )


def test_a_canary_that_no_caller_went_to_fails_and_says_what_to_bring() -> None:
    """Callers are hashed whole: half of one caller may be nobody."""
    alone = [seen(110 + n * 0.9, "a", caller="c") for n in range(10)]
    others = [s for s in served() if not 110 <= s.arrived_s < 120]
    judged = judge(replace(WHOLE, seen=[*others, *alone]), LIMITS)
    assert judged.verdict == FAIL
    assert judged.why == (
        "too few requests in the canary phase: b served 0, at least 5: 0 of 1 callers went to it: "
        "bring more callers (a key each), a higher weight or a longer hold",
    )


def test_what_failed_is_told_by_outcome_and_pool() -> None:
    broken = seen(125, "b", ERROR, outcome="upstream_unreachable")
    (why,) = judge(with_seen(broken, broken), LIMITS).why
    assert why.endswith("2 upstream_unreachable on b")


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0, 1))
def test_a_rate_passes_exactly_where_it_is_not_above_its_limit(
    good: int, bad: int, limit: float
) -> None:
    rows = [seen(125, "b")] * good + [seen(125, "b", ERROR)] * bad
    others = [s for s in served() if not 120 <= s.arrived_s < 130]
    judged = judge(
        replace(WHOLE, seen=[*others, *rows]), replace(LIMITS, error_rate=limit, min_count=1)
    )
    wanted = "failed, flip" if good + bad else "requests, flip (b)"
    passes = bad <= limit * (good + bad) if good + bad else False
    assert (wanted not in failed(judged)) == passes or abs(bad - limit * (good + bad)) < 1e-9


@given(st.lists(st.floats(90, 150), max_size=30))
def test_every_request_belongs_to_the_last_phase_that_had_begun(times: list[float]) -> None:
    for at_s in times:
        phase = phase_of(BEGAN, at_s)
        assert phase == max((p for p, s in BEGAN.items() if s <= at_s), key=BEGAN.get, default=None)  # type: ignore[arg-type]


# -- before --------------------------------------------------------------------------------

HAS = Capacity(2, 2, seats=10, busy=3, requests_per_s=4.0, mean_s=1.0,
               prefill_tokens_per_s=1000.0, prefill_needed_per_s=400.0)  # fmt: skip


@pytest.mark.parametrize(
    ("has", "words"),
    [
        (replace(HAS, usable=0), "none of its 2 engines is up"),
        (replace(HAS, busy=10), "are full: 10 of 10 seats"),
        (replace(HAS, mean_s=3.0), "4.0 requests a second that take 3.00 s each need 12 seats"),
        (replace(HAS, prefill_needed_per_s=1200.0), "bring 1200 prompt tokens a second"),
        (replace(HAS, refused=0.2), "it refuses 20.0%"),
    ],
)
def test_a_baseline_that_could_not_take_the_load_back_is_refused_with_figures(
    has: Capacity, words: str
) -> None:
    assert capacity_fault(HAS, LIMITS) is None
    assert words in (capacity_fault(has, LIMITS) or "")


def test_a_phase_is_cut_short_only_for_plain_harm_to_enough_requests() -> None:
    assert broken_already(Tally(4, errors=4), LIMITS) is None  # too few to say
    assert broken_already(Tally(100, errors=4), LIMITS) is None  # above the limit, not by far
    assert broken_already(Tally(100, errors=5), LIMITS) == "5 of 100 requests failed"
    assert broken_already(Tally(50, refused=50), LIMITS) == "50 of 100 requests were refused"


def test_thresholds_are_those_given_then_the_records_then_the_usual() -> None:
    rules = (Threshold(Metric.ERROR_RATE, 0.1), Threshold(Metric.REFUSALS, margin=0.3))
    found = limits_of(rules, {"recovery_s": 3.0, "min_count": 0.0}, contract_s=0.5)
    assert (found.error_rate, found.refusals) == (0.1, Limits().refusals)
    assert (found.recovery_s, found.min_count, found.oldest_age_s) == (3.0, 1, 0.5)
    assert limits_of(rules, {"error_rate": 0.2}).error_rate == 0.2


@pytest.mark.parametrize(
    "given_", [{"eror_rate": 0.1}, {"error_rate": -1.0}, {"recovery_s": float("nan")}]
)
def test_a_threshold_that_can_not_be_is_named(given_: dict[str, float]) -> None:
    with pytest.raises(RecordError, match=next(iter(given_))):
        limits_of((), given_)


# -- the record ----------------------------------------------------------------------------

TOLD = {"id": "r-1", "limits": {"error_rate": 0.02}}


def test_a_record_says_how_cold_the_other_pool_was() -> None:
    slow = [s._replace(first_s=s.arrived_s + 0.3) if s.pool == "b" else s for s in served()]
    peaks = {Phase.BEFORE: 0.1, Phase.FLIP: 0.4}
    record = sealed(TOLD, judge(replace(WHOLE, seen=slow, prefill=peaks), LIMITS))
    assert record["surge"]["flip"] == {"ttft_p95": 3.0, "prefill_peak": 4.0}
    assert record["surge"]["rollback"]["ttft_p95"] == 1.0
    alone = judge(replace(WHOLE, began_s={Phase.ROLLBACK: 130.0}), LIMITS)
    assert sealed(TOLD, alone)["surge"] == {"rollback": {"ttft_p95": None, "prefill_peak": None}}


def test_a_record_is_read_back_whole_and_not_when_a_figure_was_changed() -> None:
    record = sealed(TOLD, judge(WHOLE, LIMITS))
    assert unsealed(record) == record
    with pytest.raises(RecordError, match="changed after it was sealed"):
        unsealed({**record, "verdict": FAIL})
    with pytest.raises(RecordError, match="not the record of a rehearsal"):
        unsealed({**record, "kind": "decision"})


@pytest.mark.parametrize(("failures", "verdict"), [(2, PASS), (3, FAIL)])
def test_failures_that_only_callers_saw_count_as_well(failures: int, verdict: str) -> None:
    record = sealed(TOLD, judge(WHOLE, LIMITS))
    both = with_client(record, {"ended": 100, "failed": failures})
    assert (both["verdict"], both["parent"]) == (verdict, record["digest"])
    assert unsealed(both) == both


@pytest.mark.parametrize("client", [{"failed": "x"}, {"ended": None}, {"failed": 0.5}])
def test_what_a_client_saw_is_counts(client: dict[str, Any]) -> None:
    record = sealed(TOLD, judge(WHOLE, LIMITS))
    with pytest.raises(RecordError, match="must be counts"):
        with_client(record, client)
