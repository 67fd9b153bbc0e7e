import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analyse import analyse_class, client_faults, reduce_run, unit_of
from loadgen.facts import NOT_ACCEPTED
from loadgen.quantiles import quantile
from loadgen.record import BenchError, Outcome, RequestRecord

LIMITS = {"ttft_s": 1.0, "max_stall_s": 0.5, "e2e_s": 5.0}
CALM = {"source": "client", "loop_lag_ms": 1.0, "cpu_share": 0.1}


def record(seq=0, *, ttft_s=0.1, stall_s=0.1, outcome=Outcome.OK, **changes):
    fields = {
        "seq": seq,
        "size_class": "short",
        "phase": "observed",
        "planned_us": 1_000_000,
        "prompt_tokens_planned": 512,
        "completion_tokens_planned": 4,
        "prompt_sha256": "a",
        "connect_wait_us": 0,
        "dispatched_us": 1_000_100,
    }
    if outcome is Outcome.OK:
        first = 1_000_000 + round(ttft_s * 1e6)
        last = first + round(stall_s * 1e6)
        fields |= {"first_event_us": first, "last_byte_us": last, "event_us": (first, last)}
        fields["max_stall_us"] = last - first
    return RequestRecord(**{**fields, **changes}, outcome=outcome)


@given(st.lists(st.integers(0, 50), min_size=1), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_the_smallest_value_that_enough_values_do_not_exceed(values, q):
    found = quantile(values, q)
    enough = [v for v in values if sum(w <= v for w in values) >= q * len(values) - 1e-9]
    assert found == min(enough)


def test_latency_counts_from_the_planned_arrival_not_from_the_dispatch():
    late = record(dispatched_us=1_900_000, ttft_s=1.0)
    figures = analyse_class([late], LIMITS, 1.0)
    assert figures["ttft_s"]["offered"]["p50"] == {"value": 1.0}


def test_a_failed_request_is_unbounded_in_the_offered_view_and_absent_in_the_accepted():
    records = [record(n) for n in range(60)]
    records += [record(n, outcome=Outcome.REJECTED) for n in range(60, 70)]
    ttft = analyse_class(records, LIMITS, 10.0)["ttft_s"]
    assert ttft["offered"]["p95"] == {"value": None, "failed": 10, "above_s": 0.1}
    assert ttft["accepted"]["p95"] == {"value": 0.1}
    assert ttft["accepted"]["n"] == 60


def test_dropping_requests_cannot_make_a_class_look_faster():
    slow = [record(n, ttft_s=9.0) for n in range(10)]
    kept = analyse_class([record(n) for n in range(90)] + slow, LIMITS, 1.0)
    dropped = [record(n, outcome=Outcome.REJECTED) for n in range(10)]
    refused = analyse_class([record(n) for n in range(90)] + dropped, LIMITS, 1.0)
    assert refused["met"] == kept["met"] == 90
    assert refused["attainment"] == kept["attainment"] == 0.9
    assert refused["ttft_s"]["offered"]["p95"]["value"] is None


@pytest.mark.parametrize(("n", "name"), [(58, "p95"), (298, "p99")])
def test_a_quantile_with_too_few_requests_says_so(n, name):
    few = analyse_class([record(k) for k in range(n)], LIMITS, 1.0)["ttft_s"]["offered"]
    assert few[name] == {"too_few": True, "n": n, "needs": n + 1}
    enough = analyse_class([record(k) for k in range(n + 1)], LIMITS, 1.0)["ttft_s"]["offered"]
    assert enough[name] == {"value": 0.1}


@pytest.mark.parametrize(
    "miss",
    [
        {"ttft_s": 1.01},
        {"stall_s": 0.51},
        {"last_byte_us": 6_000_001},
        {"outcome": Outcome.TIMEOUT},
        {"outcome": Outcome.INVALID_RESPONSE},
    ],
)
def test_missing_any_one_limit_is_a_miss(miss):
    figures = analyse_class([record(), record(1, **miss)], LIMITS, 2.0)
    assert figures["met"] == 1
    assert figures["goodput_per_s"] == 0.5


def test_accepted_is_what_was_neither_refused_nor_expired_nor_unsent():
    figures = analyse_class([record(outcome=o) for o in Outcome], LIMITS, 1.0)
    assert figures["offered"] == len(Outcome)
    assert figures["accepted"] == len(Outcome) - len(NOT_ACCEPTED)
    assert sum(figures["outcomes"].values()) == figures["offered"]


def test_a_class_that_was_offered_nothing_has_no_ratio():
    figures = analyse_class([], LIMITS, 1.0)
    assert figures["offered"] == 0
    assert "attainment" not in figures


def test_responses_with_one_event_have_no_stall_and_are_counted():
    figures = analyse_class([record(event_us=(1_100_000,), max_stall_us=None)], LIMITS, 1.0)
    assert figures["stall_absent"] == 1
    assert figures["max_stall_s"]["accepted"]["n"] == 0


def test_a_calm_client_is_not_at_fault():
    assert client_faults([record(n) for n in range(10)], [CALM], 10) == []


@pytest.mark.parametrize(
    ("changed", "samples", "planned", "reason"),
    [
        ({"dispatched_us": 1_005_100}, [CALM], 10, "dispatch lag p99 5.1 ms"),
        ({"dispatched_us": 1_050_100}, [CALM], 10, "dispatch lag max 50.1 ms"),
        ({}, [{**CALM, "loop_lag_ms": 25.1}], 10, "loop lag 25.1 ms"),
        ({}, [{**CALM, "cpu_share": 0.86}], 10, "86% of a core"),
        ({}, [CALM], 11, "offered 10 requests, planned 11"),
        ({"outcome": Outcome.NOT_SENT}, [CALM], 10, "1 requests were not sent"),
        ({}, [], 10, "loop lag inf"),
    ],
)
def test_a_client_that_could_not_keep_up_is_named(changed, samples, planned, reason):
    records = [record(n) for n in range(9)] + [record(9, **changed)]
    assert any(reason in fault for fault in client_faults(records, samples, planned))


def test_waiting_for_a_connection_is_not_the_clients_fault():
    waited = record(dispatched_us=1_900_000, connect_wait_us=899_900)
    assert client_faults([waited], [CALM], 1) == []


def test_a_server_that_fails_everything_never_invalidates():
    crashed = [record(n, outcome=Outcome.ERROR) for n in range(10)]
    gone = {"source": "engine", "engine": 0, "up": False}
    assert client_faults(crashed, [CALM, gone], 10) == []


def test_nothing_measured_at_all_still_ranks():
    assert quantile([math.inf], 0.5) == math.inf


PLAN = {
    "kind": "sweep",
    "contract": {"short": LIMITS},
    "intervals": {"ramp_s": 1.0, "window_s": 10.0},
}
RUN = {"run_id": "r1", "cell_id": "B0", "mix": "80-20", "rate": "near", "repeat": 1}


def test_what_should_hold_and_does_not_is_shown_and_makes_no_run_invalid():
    told = record(prompt_tokens_reported=500, completion_tokens_reported=3)
    engine = {"source": "engine", "engine": 0, "up": True}
    rows = [
        CALM,
        {**engine, "prefix_cache_hits_total": 0.0, "prompt_tokens_total": 0.0},
        {**engine, "prefix_cache_hits_total": 20.0, "prompt_tokens_total": 1000.0},
    ]
    row = reduce_run(RUN, PLAN, 1, [told], rows, {"synthetic_length": True}).row
    assert row["valid"] is True
    assert row["checks"] == [
        "prompt tokens differ from plan: 1 of 1",
        "output tokens differ from plan: 1 of 1",
        "prefix cache served 2.0% of prompt tokens",
    ]
    assert reduce_run(RUN, PLAN, 1, [record()], [CALM]).row["checks"] == []


def test_a_class_without_a_contract_is_refused():
    with pytest.raises(BenchError, match="class long has no contract"):
        reduce_run(RUN, PLAN, 1, [record(size_class="long")], [CALM])


def test_a_run_is_of_its_cell_its_arm_or_its_topology():
    run = {**RUN, "arm": "enforce", "topology": "isolated"}
    assert [unit_of(run, kind) for kind in ("sweep", "arms", "topology")] == [
        "B0",
        "enforce",
        "isolated",
    ]


def test_only_requests_planned_inside_the_observation_count():
    found = reduce_run(RUN, PLAN, 2, [record(phase="ramp"), record(1)], [CALM])
    assert found.classes["short"].offered == 1
