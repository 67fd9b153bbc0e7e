import pytest

from loadgen.breakdown import pooled_parts, ttft_parts
from loadgen.record import Outcome, RequestRecord


def record(first_us, **changes):
    fields = {
        "seq": 0,
        "size_class": "short",
        "phase": "observed",
        "planned_us": 1_000_000,
        "outcome": Outcome.OK,
        "prompt_tokens_planned": 512,
        "completion_tokens_planned": 4,
        "prompt_sha256": "a",
        "dispatched_us": 1_030_000,
        "connect_wait_us": 20_000,
        "first_event_us": first_us,
    }
    return RequestRecord(**{**fields, **changes})


def test_the_parts_add_up_to_the_time_from_the_planned_arrival():
    parts = ttft_parts([record(1_500_000, queue_ms=100.0)])["mean"]
    assert parts == pytest.approx(
        {"client_s": 0.01, "connection_s": 0.02, "gateway_queue_s": 0.1, "rest_s": 0.37}
    )
    assert sum(parts.values()) == pytest.approx(0.5)


def test_a_part_that_nobody_measured_is_absent():
    assert "gateway_queue_s" not in ttft_parts([record(1_500_000)])["mean"]
    assert ttft_parts([record(None), record(1, dispatched_us=None)]) == {}


def test_the_slowest_twentieth_is_shown_beside_all():
    parts = ttft_parts([record(1_100_000 + n * 10_000) for n in range(100)])
    assert parts["n"] == 100
    assert parts["slowest"]["rest_s"] == pytest.approx(0.07 + 0.97)
    assert parts["mean"]["rest_s"] == pytest.approx(0.07 + 0.495)


def test_runs_are_joined_by_their_number_of_responses():
    one = {"n": 1, "mean": {"rest_s": 1.0}, "slowest": {"rest_s": 1.0}}
    three = {"n": 3, "mean": {"rest_s": 2.0, "client_s": 0.4}, "slowest": {"rest_s": 2.0}}
    joined = pooled_parts([one, three])
    assert joined["mean"] == pytest.approx({"rest_s": 1.75, "client_s": 0.3})
    assert pooled_parts([]) == {}
