import asyncio
import contextlib
import json
import sys
from dataclasses import asdict, replace
from subprocess import run

import orjson
import pytest

from loadgen.corpus import Corpus
from loadgen.files import write_bytes
from loadgen.record import BenchError, Outcome, Prompt, canonical, decode_requests, digest
from loadgen.records import records
from loadgen.replay import Job, Replay, job_from, payloads
from loadgen.stream import Pool
from loadgen.trace import Arrival, encode_trace
from tests.loadgen.truth import truth_server

TEXT = "a prompt that must never be in a record"
SHA = digest(TEXT.encode())
CORPUS = Corpus((Prompt("short", 16, 4, TEXT, SHA),), "c")
JOB = Job(
    run_id="r",
    url="http://127.0.0.1:1",
    model="m",
    keys={"short": "key-1"},
    trace_path="",
    trace_sha256="",
    corpus_path="",
    corpus_sha256="",
    config_sha256="k",
    out_path="",
    ramp_s=0.05,
    window_s=0.3,
    drain_s=0.4,
    timeout_s=5.0,
)


def arrivals(count, gap_us=15_000):
    return tuple(Arrival(n, "short", n * gap_us, 16, 4, SHA) for n in range(count))


@contextlib.asynccontextmanager
async def replay_at(url, trace, **changes):
    job = replace(JOB, url=url, **changes)
    rows = []
    pool = Pool(url)
    replay = Replay(job, trace, payloads(job, trace, CORPUS), pool, rows.append)
    try:
        yield replay, rows
    finally:
        await pool.close()


def outcomes(replay, trace):
    made = records(trace, JOB.ramp_s, replay.captures, replay.ended, replay.t0_ns)
    return [r.outcome for r in made]


async def test_every_planned_request_is_sent_at_or_after_its_instant():
    trace = arrivals(20)
    async with truth_server() as truth, replay_at(truth.url, trace) as (replay, _):
        await replay.run()
    made = records(trace, JOB.ramp_s, replay.captures, replay.ended, replay.t0_ns)
    assert [r.outcome for r in made] == [Outcome.OK] * 20
    assert all(r.dispatched_us >= r.planned_us for r in made)
    assert [r.phase for r in made] == ["ramp"] * 4 + ["observed"] * 16


async def test_arrivals_do_not_wait_for_completions():
    trace = arrivals(10, gap_us=1000)
    async with truth_server(ttft_s=0.2) as truth, replay_at(truth.url, trace) as (replay, _):
        await replay.run()
        arrived = [s.arrived_ns for s in truth.seen.values()]
        first = min(s.sent_ns[0] for s in truth.seen.values())
    assert len(arrived) == 10
    assert max(arrived) < first


async def test_what_is_unfinished_at_the_drain_deadline_is_recorded_so_and_cancelled():
    trace = arrivals(3)
    async with truth_server(ttft_s=30.0) as truth, replay_at(truth.url, trace) as (replay, rows):
        await replay.run()
        assert outcomes(replay, trace) == [Outcome.UNFINISHED] * 3
    assert rows[-1]["oldest_unanswered_s"]["short"] > 0.5


async def test_a_request_past_the_clients_timeout_is_a_timeout():
    trace = arrivals(2)
    async with (
        truth_server(ttft_s=30.0) as truth,
        replay_at(truth.url, trace, timeout_s=0.2) as (replay, _),
    ):
        await replay.run()
        assert outcomes(replay, trace) == [Outcome.TIMEOUT] * 2


async def test_a_timeout_stays_one_when_its_connection_never_opened():
    async def never():
        await asyncio.Event().wait()

    trace = arrivals(2)
    async with replay_at(JOB.url, trace, timeout_s=0.1) as (replay, _):
        replay._pool._spare, replay._pool._open = 0, never
        await replay.run()
        assert outcomes(replay, trace) == [Outcome.TIMEOUT] * 2


async def test_no_heartbeat_outlives_the_run():
    trace = arrivals(8)
    async with truth_server() as truth, replay_at(truth.url, trace) as (replay, _):
        await replay.run()
        last_ns = replay._beat_ns
        await asyncio.sleep(0.1)
    assert last_ns > replay.t0_ns
    assert replay._beat_ns == last_ns


async def test_an_interrupt_cancels_what_flies_and_never_sends_the_rest():
    trace = (*arrivals(2), Arrival(2, "short", 300_000, 16, 4, SHA))
    async with truth_server(ttft_s=30.0) as truth, replay_at(truth.url, trace) as (replay, _):
        asyncio.get_running_loop().call_later(0.5, replay.interrupt)
        await replay.run()
        assert outcomes(replay, trace) == [Outcome.CANCELLED] * 2 + [Outcome.NOT_SENT]


async def test_a_server_that_refuses_connections_gives_errors_and_no_crash():
    trace = arrivals(3)
    async with truth_server() as truth, replay_at(truth.url, trace) as (replay, _):
        await replay._pool.fill()
        replay._pool._spare = 0
    replay._pool._spare = 0
    await replay.run()
    made = records(trace, 0.0, replay.captures, replay.ended, replay.t0_ns)
    assert {r.outcome for r in made} == {Outcome.ERROR}
    assert made[0].outcome_code.startswith("connect_failed_")
    assert made[0].first_event_us is None


async def test_a_fault_in_a_callback_ends_the_run_loudly():
    trace = arrivals(2)
    async with truth_server() as truth, replay_at(truth.url, trace) as (replay, _):
        del replay._requests[1]
        with pytest.raises(KeyError):
            await replay.run()


async def test_progress_rows_count_per_class_and_carry_the_clients_own_lag():
    trace = arrivals(5)
    async with truth_server() as truth, replay_at(truth.url, trace) as (replay, rows):
        await replay.run()
    assert rows[0] == {"kind": "started", "t0_ns": replay.t0_ns}
    last = rows[-1]
    assert last["offered"] == last["done"] == {"short": 5}
    assert {"dispatch_lag_ms", "loop_lag_ms", "cpu_share", "t_s"} <= set(last)


async def test_each_request_bears_its_key_its_id_and_the_forced_length():
    trace = arrivals(2)
    async with truth_server() as truth, replay_at(truth.url, trace) as (replay, _):
        await replay.run()
        body = truth.bodies[0]
        assert set(truth.seen) == {"r-0", "r-1"}
    assert body["min_tokens"] == body["max_tokens"] == 4
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert "priority" not in body
    assert b"Authorization: Bearer key-1" in payloads(JOB, trace, CORPUS)[0]


def test_a_prompt_that_the_corpus_lacks_is_named():
    with pytest.raises(BenchError, match="prompt of request 0 is not in the corpus"):
        payloads(JOB, arrivals(1), Corpus((), "c"))


@pytest.mark.parametrize("data", [b"{}", b"[", orjson.dumps({**asdict(JOB), "spin": 1})])
def test_a_job_that_is_none_is_refused(data):
    with pytest.raises(BenchError, match="job"):
        job_from(data)


def lay_inputs(folder, url):
    row = {"class": "short", "prompt_tokens": 16, "output_tokens": 4, "sha256": SHA, "text": TEXT}
    trace = encode_trace(arrivals(4))
    return replace(
        JOB,
        url=url,
        trace_path=str(folder / "trace.jsonl"),
        trace_sha256=write_bytes(folder / "trace.jsonl", trace),
        corpus_path=str(folder / "corpus.jsonl"),
        corpus_sha256=write_bytes(folder / "corpus.jsonl", canonical(row)),
        out_path=str(folder / "requests.jsonl"),
    )


async def process(job):
    command = [sys.executable, "-m", "loadgen.replay"]
    given = orjson.dumps(asdict(job))
    return await asyncio.to_thread(run, command, input=given, capture_output=True, check=False)


async def test_the_process_writes_records_that_name_their_inputs_and_hold_no_text(tmp_path):
    async with truth_server() as truth:
        job = lay_inputs(tmp_path, truth.url)
        done = await process(job)
    assert done.returncode == 0, done.stderr
    data = (tmp_path / "requests.jsonl").read_bytes()
    header, made = decode_requests(data, "requests.jsonl")
    assert header["trace_sha256"] == job.trace_sha256
    assert header["config_sha256"] == "k"
    assert [r.outcome for r in made] == [Outcome.OK] * 4
    assert json.loads(done.stdout.splitlines()[-1])["requests_sha256"] == digest(data)
    for out in (data, done.stdout, done.stderr):
        assert b"prompt that must" not in out
        assert b"key-1" not in out


@pytest.mark.parametrize("what", ["trace", "corpus"])
async def test_the_process_refuses_inputs_other_than_the_planned_ones(tmp_path, what):
    job = replace(lay_inputs(tmp_path, "http://127.0.0.1:1"), **{f"{what}_sha256": "0" * 64})
    done = await process(job)
    assert done.returncode == 2
    assert f"{what}: its sha256".encode() in done.stdout
