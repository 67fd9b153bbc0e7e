"""Says what one replay is to do, and builds the bytes of its requests ahead of time.

Seconds and offsets of a job are recorded time: on a simulated engine that runs faster, the replay
acts at that time divided by the scale and writes what it saw multiplied by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import orjson

from loadgen.corpus import body_of
from loadgen.record import BenchError, Prompt, strict_json
from loadgen.stream import request_bytes
from loadgen.trace import Arrival

__all__ = ["Job", "job_from", "payloads", "share_of", "worker_count"]

# One worker keeps up with far more; two halve what a hiccup of one can touch.
ONE_WORKER_BELOW_PER_S = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run for the replaying process. `workers` and `max_open` of 0: as the replay sees fit.

    `keys` has one key for each class; `callers`, where given, are keys that take turns instead.
    """

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
    time_scale: float = 1.0
    workers: int = 0
    synthetic_length: bool = True
    max_open: int = 0
    callers: Sequence[str] = ()

    def due_ns(self, arrival: Arrival) -> int:
        """Return when to send, in real nanoseconds from the start."""
        return int(arrival.offset_us * 1000 / self.time_scale)

    def key(self, arrival: Arrival) -> str | None:
        """Return the key to send with, if any."""
        if self.callers:
            return self.callers[arrival.seq % len(self.callers)]
        return self.keys.get(arrival.size_class)

    @property
    def limit_s(self) -> float:
        """Real seconds from the start after which what is unfinished is cancelled."""
        return (self.ramp_s + self.window_s + self.drain_s) / self.time_scale


def job_from(data: bytes) -> Job:
    """Decode a job.

    Raises:
        BenchError: not a job; the message names the field.
    """
    try:
        job = Job(**strict_json(data, "job"))
        job = replace(job, callers=tuple(job.callers))
    except TypeError as error:
        raise BenchError(f"job: {error}") from error
    if job.time_scale <= 0:
        raise BenchError(f"job: time_scale {job.time_scale} is not above zero")
    return job


def worker_count(job: Job, trace: Sequence[Arrival]) -> int:
    """Return how many processes replay the trace: as asked, else by its arrivals a second."""
    if job.workers:
        return job.workers
    last_s = trace[-1].offset_us / 1e6 / job.time_scale if trace else 0.0
    return 1 if len(trace) < ONE_WORKER_BELOW_PER_S * max(1.0, last_s) else 2


def share_of(trace: Sequence[Arrival], worker: int, workers: int) -> tuple[Arrival, ...]:
    """Return the arrivals of one worker: every so many-th, by position."""
    return tuple(trace[worker::workers])


def _body(job: Job, text: str, output_tokens: int) -> bytes:
    length: dict[str, Any] = {"max_tokens": output_tokens}
    if job.synthetic_length:
        length |= {"min_tokens": output_tokens, "ignore_eos": True}
    streamed = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    return orjson.dumps({"model": job.model, **body_of(text), **length, **streamed})


def payloads(job: Job, trace: Sequence[Arrival], prompts: Mapping[str, Prompt]) -> dict[int, bytes]:
    """Build the bytes of every request, by sequence number.

    Args:
        job: the run.
        trace: which requests.
        prompts: by digest.

    Raises:
        BenchError: the trace names a prompt that the corpus lacks.
    """
    host = urlsplit(job.url).netloc
    built = {}
    for arrival in trace:
        if (prompt := prompts.get(arrival.prompt_sha256)) is None:
            raise BenchError(f"trace: the prompt of request {arrival.seq} is not in the corpus")
        headers = {"X-Request-Id": f"{job.run_id}-{arrival.seq}"}
        if (key := job.key(arrival)) is not None:
            headers["Authorization"] = f"Bearer {key}"
        body = _body(job, prompt.text, arrival.output_tokens)
        built[arrival.seq] = request_bytes(host, job.path, headers, body)
    return built
