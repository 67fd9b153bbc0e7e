"""Replays a trace with as many workers as it needs and writes one record per request.

`python -m loadgen.replay` reads one job as JSON on standard input (so that no credential lies in
a file or an argument list) and prints one JSON line per second. Workers are forked once everything
is read, share nothing but the start instant, and are told nothing while they measure: request i is
worker i mod N's. Each opens its connections and builds its bytes before the start, measures with
garbage collection frozen, and turns what it saw into records afterwards.
"""

import asyncio
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import orjson
import uvloop

from loadgen.corpus import Corpus, load_corpus
from loadgen.cpu_priority import ahead_of_servers
from loadgen.files import read_bytes, write_bytes
from loadgen.job import Job, job_from, payloads, share_of, worker_count
from loadgen.merging import Seconds, interleaved
from loadgen.record import BenchError, digest, encode_lines, encode_record
from loadgen.records import Axis, Task, records
from loadgen.stream import Pool
from loadgen.trace import Arrival, decode_trace
from loadgen.worker import Replay, spare_connections

__all__ = ["Job", "file_room", "main", "measuring", "replay_job"]

LEAD_NS = 300_000_000
# Files a worker needs besides connections.
OTHER_FILES = 64
Row = dict[str, Any]
Emit = Callable[[Row], None]


@dataclass(frozen=True, slots=True)
class _Input:
    """What a run is made of."""

    job: Job
    trace: tuple[Arrival, ...]
    corpus: Corpus


@contextmanager
def measuring() -> Iterator[str]:
    """Hold garbage collection off and run ahead of servers; yields the priority obtained."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with ahead_of_servers() as priority:
            yield priority
    finally:
        gc.enable()
        gc.unfreeze()


def _send(line: Connection, row: Row) -> None:
    with suppress(BrokenPipeError):  # the coordinator is gone: the end of its line says so, too
        line.send_bytes(orjson.dumps(row))


async def _told_start(line: Connection, on_gone: Callable[[], None]) -> int:
    """Wait for the start instant; afterwards watch for the coordinator's end."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[int] = loop.create_future()

    def readable() -> None:
        try:
            told.set_result(int(line.recv_bytes()))
        except EOFError:
            loop.remove_reader(line.fileno())
            on_gone()
            if not told.done():
                told.set_exception(BenchError("the coordinating process ended"))

    loop.add_reader(line.fileno(), readable)
    return await told


async def _measure(given: _Input, pool: Pool, line: Connection) -> tuple[Replay, str]:
    job, trace = given.job, given.trace
    prompts = {p.sha256: p for p in given.corpus.prompts}
    requests = payloads(job, trace, prompts)
    replay = Replay(job, trace, requests, pool, lambda row: _send(line, {"row": row}))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, replay.interrupt)
    await pool.fill()
    with measuring() as priority:
        _send(line, {"ready": True})
        await replay.run(await _told_start(line, replay.interrupt))
    loop.remove_reader(line.fileno())
    os.set_blocking(line.fileno(), True)  # watching it made it non-blocking, and records are many
    await pool.close()
    return replay, priority


async def _work(given: _Input, line: Connection) -> None:
    """Be one worker: measure, then make records."""
    job = given.job
    spare = spare_connections(job, given.trace)
    pool = Pool(job.url, min(spare, job.max_open), job.max_open)
    replay, priority = await _measure(given, pool, line)
    line.recv_bytes()  # until all have measured: making records would take a core from the others
    validators = {p.sha256: p.validator for p in given.corpus.prompts if p.validator}
    made = records(
        given.trace,
        job.ramp_s,
        replay.seen,
        Axis(replay.t0_ns, job.time_scale),
        Task(job.synthetic_length, validators),
    )
    failures = replay.refill_failures
    _send(line, {"records": len(made), "client_priority": priority, "refill_failures": failures})
    for record in made:
        line.send_bytes(encode_record(record))


def _worker(given: _Input, line: Connection, others: Sequence[Connection]) -> None:
    # Inherited ends would keep a dead coordinator's lines open.
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        uvloop.run(_work(given, line))
    except EOFError:
        return  # the coordinating process ended: nobody asks for records
    except (BenchError, OSError) as error:
        _send(line, {"failed": str(error)})


class _Crew:
    """The workers of one run, from their start to their end."""

    def __init__(self, given: _Input, workers: int) -> None:
        context = get_context("fork")
        self._lines: list[Connection] = []
        self._processes: list[ForkProcess] = []
        for n in range(workers):
            own, theirs = context.Pipe()
            share = replace(given, trace=share_of(given.trace, n, workers))
            args = (share, theirs, (*self._lines, own))
            process = context.Process(target=_worker, args=args, daemon=True)
            process.start()
            theirs.close()
            self._lines.append(own)
            self._processes.append(process)
        self.headers: list[Row] = []

    def interrupt(self) -> None:
        """Tell every worker to cancel what flies and to report."""
        for process in self._processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGINT)

    def close(self) -> None:
        """End every worker that still runs."""
        for process in self._processes:
            process.kill()
            process.join()

    def _bytes(self, worker: int) -> bytes:
        try:
            return self._lines[worker].recv_bytes()
        except (EOFError, ConnectionResetError) as error:
            self._processes[worker].join()
            code = self._processes[worker].exitcode
            raise BenchError(f"worker {worker} ended early, exit status {code}") from error

    def _next(self, worker: int) -> Row:
        row: Row = orjson.loads(self._bytes(worker))
        if "failed" in row:
            raise BenchError(str(row["failed"]))
        return row

    def start(self) -> int:
        """Wait until all are ready, tell them the start instant, and return it."""
        for worker in range(len(self._lines)):
            self._next(worker)
        t0_ns = time.monotonic_ns() + LEAD_NS
        for line in self._lines:
            line.send_bytes(str(t0_ns).encode())
        return t0_ns

    def measured(self, emit: Emit) -> None:
        """Hand on every second until all workers have measured."""
        seconds, busy = Seconds(len(self._lines)), dict(enumerate(self._lines))
        while busy:
            ready = wait(list(busy.values()))
            for worker in [n for n, line in busy.items() if line in ready]:
                row = self._next(worker)["row"]
                if "tick" not in row:
                    del busy[worker]
                for joined in seconds.add(worker, row):
                    emit(joined)

    def shares(self) -> list[list[bytes]]:
        """Have all make their records, side by side; return each worker's lines."""
        for line in self._lines:
            line.send_bytes(b"records")
        shares = []
        for worker in range(len(self._lines)):
            self.headers.append(self._next(worker))
            count = self.headers[-1]["records"]
            shares.append([self._bytes(worker) for _ in range(count)])
        return shares


def _inputs(job: Job) -> _Input:
    data = read_bytes(Path(job.trace_path))
    corpus = load_corpus(Path(job.corpus_path))
    for what, found, named in (
        ("trace", digest(data), job.trace_sha256),
        ("corpus", corpus.sha256, job.corpus_sha256),
    ):
        if found != named:
            raise BenchError(f"{what}: its sha256 {found[:12]} is not the planned {named[:12]}")
    return _Input(_capped(job), decode_trace(data, job.trace_path), corpus)


def file_room() -> int:
    """Raise this process's limit of open files as far as it goes; return what connections get."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems name a hard limit that they do not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return files - OTHER_FILES if files > 0 else 1 << 20


def _capped(job: Job) -> Job:
    room = file_room()
    return replace(job, max_open=min(job.max_open or room, room))


def _header(job: Job, workers: Sequence[Row]) -> Row:
    scale = {} if job.time_scale == 1.0 else {"time_scale": job.time_scale}
    return {
        "run_id": job.run_id,
        "config_sha256": job.config_sha256,
        "trace_sha256": job.trace_sha256,
        "corpus_sha256": job.corpus_sha256,
        "workers": len(workers),
        "client_priority": workers[0]["client_priority"],
        "refill_failures": sum(w["refill_failures"] for w in workers),
        **scale,
    }


def replay_job(job: Job, emit: Emit) -> None:
    """Replay one job and write its records; rows go to `emit` as they come.

    Interrupted by SIGINT or SIGTERM it cancels what flies and writes what it has.

    Raises:
        BenchError: an input is not the planned one, or a worker failed.
    """
    given = _inputs(job)
    gc.collect()
    gc.freeze()  # so that the workers' collectors leave shared pages alone
    crew = _Crew(given, worker_count(job, given.trace))
    try:
        t0_ns = crew.start()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: crew.interrupt())
        emit({"kind": "started", "t0_ns": t0_ns})
        crew.measured(emit)
        lines = interleaved(crew.shares())
    finally:
        crew.close()
    data = encode_lines(_header(job, crew.headers), lines)
    emit({"kind": "finished", "requests_sha256": write_bytes(Path(job.out_path), data)})


def _print(row: Row) -> None:
    sys.stdout.buffer.write(orjson.dumps(row) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Run the job on standard input; 0 when its records are written, 2 for a bad job."""
    try:
        replay_job(job_from(sys.stdin.buffer.read()), _print)
    except (BenchError, OSError) as error:
        _print({"kind": "failed", "reason": str(error)})
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
