import json

import numpy as np
import pytest

from loadgen.record import Outcome, RequestRecord
from loadgen.vllm_result import DETAILED, summary_rows, vllm_result
from tests.loadgen.made import PLAIN, records

CONFIG = {
    "effective_args": {"max_num_seqs": 32},
    "model_revision": "m",
    "tokenizer_revision": "t",
}
RUN = {"run_id": "r1", "cell_id": "C1", "mix": "80-20", "rate": "near", "repeat": 1}
RUN["rate_per_s"] = 8.0
# What the serving benchmark of vLLM 0.32 writes for a generation with --save-detailed.
KEYS = """date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness
max_concurrency duration completed failed total_input_tokens total_output_tokens request_throughput
request_goodput output_throughput total_token_throughput input_lens output_lens ttfts itls latencies
start_times queue_times generated_texts errors max_output_tokens_per_s max_concurrent_requests rtfx
mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms
p99_tpot_ms mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms p99_e2el_ms"""


def request(seq, outcome=Outcome.OK, events=(300_000, 400_000, 900_000), phase="observed"):
    shown = {"event_us": events, "first_event_us": events[0]} if events else {}
    return RequestRecord(
        seq=seq,
        size_class="short",
        phase=phase,
        planned_us=100_000,
        outcome=outcome,
        outcome_code="full" if outcome is Outcome.REJECTED else None,
        prompt_tokens_planned=64,
        completion_tokens_planned=3,
        prompt_sha256="",
        dispatched_us=None if outcome is Outcome.NOT_SENT else 200_000,
        last_byte_us=1_000_000 if events else None,
        completion_tokens_reported=3 if outcome is Outcome.OK else None,
        **shown,
    )


def result(made, met=1):
    return vllm_result(RUN, {"synthetic": True}, CONFIG, made, met)


def test_every_key_of_vllm_is_there_and_the_file_is_plain_json():
    found = result(records(RUN, PLAIN, "C1"))
    assert not set(KEYS.split()) - set(found)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_times_count_from_the_sending_as_vllm_has_it_and_the_plan_stands_beside():
    found = result([request(0)])
    assert found["ttfts"] == [0.1]
    assert found["itls"] == [[0.1, 0.5]]
    assert found["latencies"] == [0.7]
    assert found["start_times"] == [0.2]
    assert found["queue_times"] == [0.1]
    assert found["scheduled_times"] == [0.1]
    assert found["mean_tpot_ms"] == pytest.approx(300.0)


def test_a_failure_has_no_latency_and_says_what_it_was():
    made = [request(0), request(1, Outcome.REJECTED, None), request(2, Outcome.NOT_SENT, None)]
    found = result(made)
    assert found["successes"] == [True, False, False]
    assert found["ttfts"] == [0.1, None, None]
    assert found["errors"] == ["", "rejected: full", "not_sent"]
    assert (found["completed"], found["failed"], found["num_prompts"]) == (1, 2, 3)
    assert found["output_lens"] == [3, 0, 0]


def test_only_the_observed_requests_are_told_and_no_text_ever():
    found = result([request(0, phase="ramp"), request(1)])
    assert found["num_prompts"] == 1
    assert found["generated_texts"] == [""]


def test_percentiles_are_numpys():
    found = result(records(RUN, PLAIN, "C1"))
    for name, values in (("ttft", found["ttfts"]), ("e2el", found["latencies"])):
        ms = np.array(values) * 1000
        assert found[f"std_{name}_ms"] == pytest.approx(np.std(ms))
        for percent in (50, 90, 95, 99):
            assert found[f"p{percent}_{name}_ms"] == pytest.approx(np.percentile(ms, percent))


def test_with_no_success_there_are_zeros_and_no_error():
    found = result([request(0, Outcome.TIMEOUT, None)], met=0)
    assert (found["completed"], found["mean_ttft_ms"], found["max_concurrent_requests"]) == (
        0,
        0.0,
        0,
    )


def test_the_busiest_second_counts_whoever_was_active_in_it():
    later = request(1, events=(1_300_000, 1_350_000))
    found = result([request(0), later])
    assert found["max_concurrent_requests"] == 2
    assert found["max_output_tokens_per_s"] == 3.0


def test_the_summary_keeps_scalars_and_the_arguments_of_the_engine():
    (row,) = summary_rows([result([request(0)])])
    assert not DETAILED & set(row)
    assert row["max_num_seqs"] == 32
    assert row["request_rate"] == 8.0
