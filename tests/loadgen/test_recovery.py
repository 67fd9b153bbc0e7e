import pytest

from loadgen.record import Outcome, RequestRecord
from loadgen.recovery import recovery_s


def record(second, ttft_s, outcome=Outcome.OK):
    planned_us = round(second * 1e6)
    return RequestRecord(
        seq=round(second * 10),
        size_class="short",
        phase="observed",
        planned_us=planned_us,
        outcome=outcome,
        prompt_tokens_planned=1,
        completion_tokens_planned=1,
        prompt_sha256="p",
        first_event_us=planned_us + round(ttft_s * 1e6),
    )


def run(slow_until_s, end_s=30.0):
    return [
        record(n / 10, 2.0 if 10 <= n / 10 < slow_until_s else 0.1) for n in range(int(end_s * 10))
    ]


def test_recovery_counts_from_the_end_of_the_burst_to_the_first_usual_answer():
    assert recovery_s(run(18.0), (10.0, 15.0), "short") == 3.0
    assert recovery_s(run(15.0), (10.0, 15.0), "short") == 0.0


def test_one_lucky_answer_is_no_recovery():
    records = [record(16.0, 0.1) if r.planned_us == 16_000_000 else r for r in run(20.0)]
    assert recovery_s(records, (10.0, 15.0), "short") == 5.0


def test_a_failed_request_is_not_recovered():
    records = run(15.0)
    records[190] = record(19.0, 0.1, Outcome.TIMEOUT)
    assert recovery_s(records, (10.0, 15.0), "short") == 0.0
    records[190] = record(19.0, 0.1)
    records[160] = record(16.0, 0.1, Outcome.TIMEOUT)
    assert recovery_s(records, (10.0, 15.0), "short") == pytest.approx(1.1)


def test_what_never_recovers_or_was_never_seen_has_no_time():
    assert recovery_s(run(30.0), (10.0, 15.0), "short") is None
    assert recovery_s(run(12.0), (10.0, 15.0), "long") is None
