"""Replays a trace open-loop and records every request; a process of its own.

The schedule is absolute (start + planned offset), never relative sleeps, never gated by
completions. Request bytes are built before the start and garbage collection is frozen while
measuring. What is unfinished at the drain deadline is recorded as such and then cancelled.
`python -m loadgen.replay` reads one job as JSON on standard input (so that no credential lies in
a file or an argument list) and prints one JSON line per second. Seconds and microseconds count
from the run's start on the monotonic clock.
"""

import asyncio
import contextlib
import gc
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import uvloop

from loadgen.alarm import new_alarm
from loadgen.capture import Capture
from loadgen.corpus import Corpus, body_of, load_corpus
from loadgen.cpu_priority import ahead_of_servers
from loadgen.files import read_bytes, write_bytes
from loadgen.record import BenchError, Outcome, digest, encode_requests, strict_json
from loadgen.records import records
from loadgen.stream import Pool, request_bytes
from loadgen.trace import Arrival, decode_trace

__all__ = ["Job", "Replay", "job_from", "main", "payloads"]

LEAD_NS = 300_000_000
HEARTBEAT_S = 0.02
Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run for the replaying process."""

    run_id: str
    url: str
    model: str
    keys: Mapping[str, str]
    trace_path: str
    trace_sha256: str
    corpus_path: str
    corpus_sha256: str
    config_sha256: str
    out_path: str
    ramp_s: float
    window_s: float
    drain_s: float
    timeout_s: float
    path: str = "/v1/chat/completions"


def job_from(data: bytes) -> Job:
    """Decode a job.

    Raises:
        BenchError: not a job; the message names the field.
    """
    try:
        return Job(**strict_json(data, "job"))
    except TypeError as error:
        raise BenchError(f"job: {error}") from error


def _body(job: Job, text: str, output_tokens: int) -> bytes:
    forced = {"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True}
    streamed = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    return orjson.dumps({"model": job.model, **body_of(text), **forced, **streamed})


def payloads(job: Job, trace: Sequence[Arrival], corpus: Corpus) -> dict[int, bytes]:
    """Build the bytes of every request, by sequence number.

    Raises:
        BenchError: the trace names a prompt that the corpus lacks, or a class without a key.
    """
    texts = {p.sha256: p.text for p in corpus.prompts}
    host = urlsplit(job.url).netloc
    built = {}
    for arrival in trace:
        if arrival.prompt_sha256 not in texts:
            raise BenchError(f"trace: the prompt of request {arrival.seq} is not in the corpus")
        headers = {"X-Request-Id": f"{job.run_id}-{arrival.seq}"}
        if (key := job.keys.get(arrival.size_class)) is not None:
            headers["Authorization"] = f"Bearer {key}"
        body = _body(job, texts[arrival.prompt_sha256], arrival.output_tokens)
        built[arrival.seq] = request_bytes(host, job.path, headers, body)
    return built


@dataclass(slots=True)
class _Second:
    """What the client itself did since the last line."""

    wall_ns: int
    cpu_ns: int
    dispatch_lag_ns: int = 0
    loop_lag_ns: int = 0


@dataclass(slots=True)
class _Tally:
    """Running counts per class, for the eye only: outcomes are decided after the run."""

    offered: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def finish(self, name: str, capture: Capture) -> None:
        """Count a finished request by what its head shows."""
        if capture.status == 200 and capture.complete:
            self.done[name] += 1
        elif capture.status in {429, 503}:
            self.refused[name] += 1
        else:
            self.failed[name] += 1


class Replay:
    """One replay on a running loop.

    Args:
        job: the run.
        trace: its arrivals, in time order.
        requests: the bytes of each.
        pool: connections to the server.
        emit: takes one progress row a second.
    """

    def __init__(
        self,
        job: Job,
        trace: Sequence[Arrival],
        requests: Mapping[int, bytes],
        pool: Pool,
        emit: Emit,
    ) -> None:
        self._job, self._trace, self._requests = job, trace, requests
        self._pool, self._emit = pool, emit
        self._loop = asyncio.get_running_loop()
        self._alarm = new_alarm(self._loop, self._dispatch)
        self._over = asyncio.Event()
        self._next = 0
        self._by_seq = {a.seq: a for a in trace}
        self._in_flight: dict[int, Capture] = {}
        self._tally = _Tally()
        self._second = _Second(0, 0)
        self._beat_ns = 0
        self._beat: asyncio.TimerHandle | None = None
        self._refill: asyncio.Task[None] | None = None
        self.t0_ns = 0
        self.captures: dict[int, Capture] = {}
        self.ended: dict[int, Outcome] = {}
        self.refill_failures = 0
        self._crash: BaseException | None = None
        self._loop.set_exception_handler(self._crashed)

    async def run(self) -> None:
        """Replay until nothing is in flight, or until the drain deadline."""
        await self._pool.fill()
        self.t0_ns = time.monotonic_ns() + LEAD_NS
        self._emit({"kind": "started", "t0_ns": self.t0_ns})
        self._second = _Second(time.monotonic_ns(), time.process_time_ns())
        self._arm()
        self._beat_ns = time.monotonic_ns()
        self._beat = self._loop.call_later(HEARTBEAT_S, self._heartbeat)
        job = self._job
        limit_s = job.ramp_s + job.window_s + job.drain_s + LEAD_NS / 1e9
        with contextlib.suppress(TimeoutError):  # the deadline is one of the two ways to end
            await asyncio.wait_for(self._over.wait(), limit_s)
        self._beat.cancel()  # the one that is due: each sets the next
        self._alarm.close()
        self._end_all(Outcome.UNFINISHED)
        self._report_second()
        if self._crash is not None:
            raise self._crash

    def _crashed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault in a callback would otherwise only be printed, and the run go on without it."""
        self._crash = context.get("exception") or RuntimeError(context["message"])
        self._over.set()

    def interrupt(self) -> None:
        """Stop on request: what is in flight is cancelled, the rest is never sent."""
        self._alarm.close()
        self._next = len(self._trace)
        self._end_all(Outcome.CANCELLED)
        self._over.set()

    def _end_all(self, outcome: Outcome) -> None:
        for seq in list(self._in_flight):
            self._end(seq, outcome)

    def _end(self, seq: int, outcome: Outcome) -> None:
        # A request whose connection is still being opened stays in flight: its first end counts.
        self.ended.setdefault(seq, outcome)
        self._pool.cancel(seq)

    def _arm(self) -> None:
        if self._next < len(self._trace):
            self._alarm.set(self.t0_ns + self._trace[self._next].offset_us * 1000)

    def _dispatch(self) -> None:
        now_ns = time.monotonic_ns()
        while self._next < len(self._trace):
            arrival = self._trace[self._next]
            due_ns = self.t0_ns + arrival.offset_us * 1000
            if due_ns > now_ns:
                break
            self._next += 1
            self._send(arrival)
            now_ns = time.monotonic_ns()
            self._second.dispatch_lag_ns = max(self._second.dispatch_lag_ns, now_ns - due_ns)
        self._arm()

    def _send(self, arrival: Arrival) -> None:
        capture = Capture(arrival.seq)
        self.captures[arrival.seq] = self._in_flight[arrival.seq] = capture
        self._tally.offered[arrival.size_class] += 1
        self._pool.send(capture, self._requests[arrival.seq], self._done)

    def _done(self, capture: Capture) -> None:
        self._in_flight.pop(capture.seq, None)
        self._tally.finish(self._by_seq[capture.seq].size_class, capture)
        if self._next == len(self._trace) and not self._in_flight:
            self._over.set()

    def _heartbeat(self) -> None:
        now_ns = time.monotonic_ns()
        lag_ns = now_ns - self._beat_ns - int(HEARTBEAT_S * 1e9)
        self._second.loop_lag_ns = max(self._second.loop_lag_ns, lag_ns)
        self._beat_ns = now_ns
        self._beat = self._loop.call_later(HEARTBEAT_S, self._heartbeat)
        self._time_out(now_ns)
        if now_ns - self._second.wall_ns >= 1_000_000_000:
            self._report_second()
            if self._next < len(self._trace):
                self._refill = self._loop.create_task(self._refill_pool())

    async def _refill_pool(self) -> None:
        try:
            await self._pool.fill()
        except OSError:
            self.refill_failures += 1  # the requests themselves show what is wrong

    def _time_out(self, now_ns: int) -> None:
        oldest_us = (now_ns - self.t0_ns) / 1e3 - self._job.timeout_s * 1e6
        for seq in list(self._in_flight):  # in planned order: the first young one ends the walk
            if self._by_seq[seq].offset_us > oldest_us:
                break
            self._end(seq, Outcome.TIMEOUT)

    def _oldest_s(self, now_ns: int) -> dict[str, float]:
        oldest: dict[str, float] = {}
        for seq, capture in self._in_flight.items():
            arrival = self._by_seq[seq]
            if not capture.reads and arrival.size_class not in oldest:
                age_ns = now_ns - self.t0_ns - arrival.offset_us * 1000
                oldest[arrival.size_class] = round(age_ns / 1e9, 3)
        return oldest

    def _report_second(self) -> None:
        now_ns, cpu_ns, last = time.monotonic_ns(), time.process_time_ns(), self._second
        in_flight = Counter(self._by_seq[seq].size_class for seq in self._in_flight)
        self._second = _Second(now_ns, cpu_ns)
        self._emit(
            {
                "kind": "second",
                "source": "client",
                "t_s": round((now_ns - self.t0_ns) / 1e9, 3),
                "offered": dict(self._tally.offered),
                "done": dict(self._tally.done),
                "refused": dict(self._tally.refused),
                "failed": dict(self._tally.failed),
                "in_flight": dict(in_flight),
                "oldest_unanswered_s": self._oldest_s(now_ns),
                "dispatch_lag_ms": round(last.dispatch_lag_ns / 1e6, 3),
                "loop_lag_ms": round(max(0, last.loop_lag_ns) / 1e6, 3),
                "cpu_share": round((cpu_ns - last.cpu_ns) / max(1, now_ns - last.wall_ns), 4),
            }
        )


def _inputs(job: Job) -> tuple[tuple[Arrival, ...], Corpus]:
    data = read_bytes(Path(job.trace_path))
    corpus = load_corpus(Path(job.corpus_path))
    for what, found, named in (
        ("trace", digest(data), job.trace_sha256),
        ("corpus", corpus.sha256, job.corpus_sha256),
    ):
        if found != named:
            raise BenchError(f"{what}: its sha256 {found[:12]} is not the planned {named[:12]}")
    return decode_trace(data, job.trace_path), corpus


def _emit_line(row: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(row) + b"\n")
    sys.stdout.buffer.flush()


async def _run(job: Job) -> None:
    trace, corpus = _inputs(job)
    requests = payloads(job, trace, corpus)
    pool = Pool(job.url)
    replay = Replay(job, trace, requests, pool, _emit_line)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, replay.interrupt)
    gc.collect()
    gc.freeze()
    gc.disable()
    with ahead_of_servers() as priority:
        await replay.run()
    await pool.close()
    gc.enable()
    header = {
        "run_id": job.run_id,
        "config_sha256": job.config_sha256,
        "trace_sha256": job.trace_sha256,
        "corpus_sha256": job.corpus_sha256,
        "client_priority": priority,
        "refill_failures": replay.refill_failures,
    }
    made = records(trace, job.ramp_s, replay.captures, replay.ended, replay.t0_ns)
    sha256 = write_bytes(Path(job.out_path), encode_requests(header, made))
    _emit_line({"kind": "finished", "requests_sha256": sha256})


def main() -> int:
    """Run the job on standard input; 0 when its records are written, 2 for a bad job."""
    try:
        uvloop.run(_run(job_from(sys.stdin.buffer.read())))
    except (BenchError, OSError) as error:
        _emit_line({"kind": "failed", "reason": str(error)})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
