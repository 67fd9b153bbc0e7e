from dataclasses import asdict, replace

import orjson
import pytest

from loadgen.job import job_from, payloads, share_of, worker_count
from loadgen.record import BenchError, Prompt
from loadgen.trace import Arrival
from tests.loadgen.jobs import job

JOB = job(url="http://h:1", ramp_s=1.0, window_s=8.0, drain_s=3.0)
PROMPTS = {"p": Prompt("short", 16, 4, "text", "p")}


def evenly(rate, seconds=10):
    return tuple(
        Arrival(n, "short", int(n / rate * 1e6), 16, 4, "p") for n in range(rate * seconds)
    )


def body(job):
    return orjson.loads(payloads(job, evenly(1, 1), PROMPTS)[0].split(b"\r\n\r\n")[1])


def test_a_job_survives_its_encoding():
    assert job_from(orjson.dumps(asdict(JOB))) == JOB


@pytest.mark.parametrize("data", [b"{}", b"[", orjson.dumps({**asdict(JOB), "spin": 1}), b'"a"'])
def test_a_job_that_is_none_is_refused(data):
    with pytest.raises(BenchError, match="job"):
        job_from(data)


def test_a_time_scale_that_stops_time_is_refused():
    with pytest.raises(BenchError, match="time_scale 0"):
        job_from(orjson.dumps({**asdict(JOB), "time_scale": 0}))


def test_a_prompt_that_the_corpus_lacks_is_named():
    with pytest.raises(BenchError, match="prompt of request 0 is not in the corpus"):
        payloads(JOB, evenly(1, 1), {})


def test_a_class_with_a_key_calls_with_it_and_one_without_calls_without():
    assert b"Authorization: Bearer key-1" in payloads(JOB, evenly(1, 1), PROMPTS)[0]
    assert b"Authorization" not in payloads(replace(JOB, keys={}), evenly(1, 1), PROMPTS)[0]


def test_a_length_is_forced_only_where_it_is_synthetic():
    assert {"ignore_eos": True, "min_tokens": 4, "max_tokens": 4}.items() <= body(JOB).items()
    free = body(replace(JOB, synthetic_length=False))
    assert free["max_tokens"] == 4
    assert not {"ignore_eos", "min_tokens"} & free.keys()


def test_the_request_names_host_run_and_number():
    head = payloads(JOB, evenly(1, 1), PROMPTS)[0].split(b"\r\n\r\n")[0].splitlines()
    assert {b"Host: h:1", b"X-Request-Id: r-0"} <= set(head)


@pytest.mark.parametrize(
    ("rate", "changes", "count"),
    [
        (50, {}, 1),
        (200, {}, 2),
        (50, {"time_scale": 3.0}, 2),
        (200, {"workers": 3}, 3),
    ],
)
def test_workers_follow_the_rate_unless_told(rate, changes, count):
    assert worker_count(replace(JOB, **changes), evenly(rate)) == count


def test_a_trace_without_arrivals_has_one_worker():
    assert worker_count(JOB, ()) == 1


def test_request_i_is_worker_i_mod_ns_whatever_its_number():
    trace = tuple(replace(a, seq=3 * a.seq) for a in evenly(7, 1))
    shares = [share_of(trace, n, 3) for n in range(3)]
    assert [a.seq for a in shares[1]] == [3, 12]
    assert sorted(a.seq for s in shares for a in s) == [a.seq for a in trace]


def test_recorded_time_is_divided_by_the_scale():
    job = replace(JOB, time_scale=4.0)
    assert job.due_ns(Arrival(0, "short", 1000, 1, 1, "p")) == 250_000
    assert job.limit_s == 3.0
