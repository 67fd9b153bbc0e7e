import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import orjson
import pytest

from loadgen.files import write_bytes
from loadgen.record import Outcome, canonical, decode_requests, digest
from loadgen.trace import Arrival, encode_trace
from tests.loadgen.jobs import job
from tests.loadgen.test_worker import SHA, TEXT, arrivals
from tests.loadgen.truth import truth_server

JOB = job()

ROW = {"class": "short", "prompt_tokens": 16, "output_tokens": 4, "sha256": SHA, "text": TEXT}


def lay_inputs(folder, url, trace=None, row=ROW, **changes):
    trace_bytes, corpus = encode_trace(arrivals(4) if trace is None else trace), canonical(row)
    own = {
        "trace_path": str(folder / "trace.jsonl"),
        "trace_sha256": write_bytes(folder / "trace.jsonl", trace_bytes),
        "corpus_path": str(folder / "corpus.jsonl"),
        "corpus_sha256": write_bytes(folder / "corpus.jsonl", corpus),
        "out_path": str(folder / "requests.jsonl"),
    }
    return replace(JOB, url=url, **{**own, **changes})


class Process:
    """The replaying process, its rows as they come."""

    def __init__(self, process):
        self.process, self.rows = process, []

    async def row(self, kind):
        while True:
            self.rows.append(json.loads(await self.process.stdout.readline()))
            if self.rows[-1]["kind"] == kind:
                return self.rows[-1]

    async def end(self):
        rest, errors = await self.process.communicate()
        self.rows += map(json.loads, rest.splitlines())
        return self.process.returncode, errors


@contextlib.asynccontextmanager
async def replaying(job, *before):
    pipe = asyncio.subprocess.PIPE
    command = [*before, sys.executable, "-m", "loadgen.replay"]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    process.stdin.write(orjson.dumps(asdict(job)))
    process.stdin.write_eof()
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def replayed(job, *before):
    async with replaying(job, *before) as process:
        code, errors = await process.end()
    return code, process.rows, errors


def written(folder):
    return decode_requests((folder / "requests.jsonl").read_bytes(), "requests.jsonl")


async def test_the_process_writes_records_that_name_their_inputs_and_hold_no_text(tmp_path):
    async with truth_server() as truth:
        job = lay_inputs(tmp_path, truth.url)
        code, rows, errors = await replayed(job)
    assert code == 0, errors
    data = (tmp_path / "requests.jsonl").read_bytes()
    header, made = written(tmp_path)
    assert header["trace_sha256"] == job.trace_sha256
    assert header["config_sha256"] == "k"
    assert header["workers"] == 1
    assert [r.outcome for r in made] == [Outcome.OK] * 4
    assert rows[0]["kind"] == "started"
    assert rows[-1] == {"kind": "finished", "requests_sha256": digest(data)}
    for out in (data, orjson.dumps(rows), errors):
        assert b"prompt that must" not in out
        assert b"key-1" not in out


@pytest.mark.parametrize("workers", [2, 3])
async def test_several_workers_write_one_file_in_planned_order(tmp_path, workers):
    trace = tuple(replace(a, seq=2 * a.seq) for a in arrivals(11))
    async with truth_server() as truth:
        job = lay_inputs(tmp_path, truth.url, trace, workers=workers)
        code, rows, errors = await replayed(job)
        assert set(truth.seen) == {f"r-{a.seq}" for a in trace}
    assert code == 0, errors
    header, made = written(tmp_path)
    assert header["workers"] == workers
    assert [(r.seq, r.outcome) for r in made] == [(a.seq, Outcome.OK) for a in trace]
    assert all(r.dispatched_us >= r.planned_us for r in made)
    last = [r for r in rows if r.get("source") == "client"][-1]
    assert last["offered"] == last["done"] == {"short": 11}
    assert [w["worker"] for w in last["workers"]] == list(range(workers))


@contextlib.asynccontextmanager
async def server_of(body):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def handle(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(asked.partition(b"length: ")[2].split()[0]))
                writer.write(head + body)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_records_larger_than_what_a_pipe_holds_arrive_whole(tmp_path):
    event = b'data: {"choices":[{"finish_reason":"length"}]}\n\n'
    async with server_of(event * 1500 + b"data: [DONE]\n\n") as url:
        job = lay_inputs(tmp_path, url, arrivals(60, gap_us=5000), workers=2)
        code, _, errors = await replayed(job)
    assert code == 0, errors
    made = written(tmp_path)[1]
    assert [(r.seq, r.outcome, len(r.event_us)) for r in made] == [
        (n, Outcome.OK, 1500) for n in range(60)
    ]


async def test_more_workers_than_requests_are_no_fault(tmp_path):
    async with truth_server() as truth:
        code, _, errors = await replayed(lay_inputs(tmp_path, truth.url, arrivals(1), workers=3))
    assert code == 0, errors
    assert [r.outcome for r in written(tmp_path)[1]] == [Outcome.OK]


@pytest.mark.parametrize("what", ["trace", "corpus"])
async def test_the_process_refuses_inputs_other_than_the_planned_ones(tmp_path, what):
    job = lay_inputs(tmp_path, JOB.url, **{f"{what}_sha256": "0" * 64})
    code, rows, _ = await replayed(job)
    assert code == 2
    assert rows[-1]["reason"].startswith(f"{what}: its sha256")


async def test_a_server_that_is_not_there_at_the_start_is_said_and_nothing_is_written(tmp_path):
    code, rows, _ = await replayed(lay_inputs(tmp_path, "http://127.0.0.1:1", workers=2))
    assert code == 2
    assert rows[-1]["kind"] == "failed"
    assert not (tmp_path / "requests.jsonl").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupt_writes_what_was_measured(tmp_path, number):
    trace = (*arrivals(2), Arrival(2, "short", 900_000_000, 16, 4, SHA))
    async with truth_server(ttft_s=30.0) as truth:
        job = lay_inputs(tmp_path, truth.url, trace, workers=2, window_s=900.0)
        async with replaying(job) as process:
            await process.row("second")
            process.process.send_signal(number)
            code, errors = await process.end()
    assert code == 0, errors
    found = [r.outcome for r in written(tmp_path)[1]]
    assert found == [Outcome.CANCELLED, Outcome.CANCELLED, Outcome.NOT_SENT]


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # ended; whoever inherited it has not asked yet


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_worker_that_dies_fails_the_run_by_name(tmp_path):
    trace = (*arrivals(2), Arrival(2, "short", 900_000_000, 16, 4, SHA))
    async with truth_server() as truth:
        job = lay_inputs(tmp_path, truth.url, trace, workers=2, window_s=900.0)
        async with replaying(job) as process:
            await process.row("second")
            os.kill(children(process.process.pid)[0], signal.SIGKILL)
            code, _ = await process.end()
    assert code == 2
    assert process.rows[-1]["reason"] == "worker 0 ended early, exit status -9"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_workers_do_not_outlive_a_killed_coordinator(tmp_path):
    late = [Arrival(n, "short", 900_000_000, 16, 4, SHA) for n in (0, 1)]
    async with truth_server() as truth:
        job = lay_inputs(tmp_path, truth.url, late, workers=2, window_s=900.0)
        async with replaying(job) as process:
            await process.row("second")
            workers = children(process.process.pid)
            process.process.kill()
            # Its pipes close when the last process that holds them has ended.
            await process.end()
        assert len(workers) == 2
        until_s = time.monotonic() + 10  # one closes its pipes a moment before it is gone
        while any(runs(pid) for pid in workers):
            assert time.monotonic() < until_s
            await asyncio.sleep(0.02)
    assert not (tmp_path / "requests.jsonl").exists()


async def test_a_system_with_few_open_files_makes_the_client_stop_sending_and_say_so(tmp_path):
    few = ("sh", "-c", 'ulimit -n 80; exec "$@"', "sh")
    async with truth_server(ttft_s=0.5) as truth:
        job = lay_inputs(tmp_path, truth.url, arrivals(20, gap_us=1000))
        code, _, errors = await replayed(job, *few)
    assert code == 0, errors
    # Of 80 files 64 are for other things than connections.
    made = written(tmp_path)[1]
    assert [r.outcome for r in made] == [Outcome.OK] * 16 + [Outcome.NOT_SENT] * 4
    assert {r.outcome_code for r in made[16:]} == {"client_cap"}


async def test_a_validator_of_the_corpus_decides(tmp_path):
    async with truth_server() as truth:
        job = lay_inputs(tmp_path, truth.url, row={**ROW, "validator": {"finish_reason": "stop"}})
        code, _, errors = await replayed(job)
    assert code == 0, errors
    found = {(r.outcome, r.outcome_code) for r in written(tmp_path)[1]}
    assert found == {(Outcome.INVALID_RESPONSE, "validator_finish_reason")}


async def test_a_validator_that_cannot_judge_stops_the_run_before_it_begins(tmp_path):
    job = lay_inputs(tmp_path, JOB.url, row={**ROW, "validator": {"regex": "("}})
    code, rows, _ = await replayed(job)
    assert code == 2
    assert "validator.regex" in rows[-1]["reason"]
