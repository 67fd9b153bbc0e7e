"""Sends a frozen trace of real text at a gateway while its rollback is rehearsed, and sums it up.

A few prompts of each class come again and again, from many callers in turn, so that a canary by
caller gets its part and a cache in the engines is warm. The replay is a process of its own, as in
a run of the bench.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import orjson

from loadgen.corpus import Shape, freeze_corpus
from loadgen.engine.textmodel import TextModel
from loadgen.files import file_digest, read_bytes, write_bytes, write_json
from loadgen.job import Job
from loadgen.record import BenchError, Outcome, Prompt, decode_requests
from loadgen.run import ROOT
from loadgen.tether import tethered
from loadgen.trace import Arrival, TraceSpec, draw, encode_trace, trace_manifest

__all__ = ["RehearsalLoad", "Wanted", "freeze_load"]

SHAPES = (Shape("short", 512, 192, 24), Shape("long", 8192, 96, 6))
MIX = (("short", 0.75), ("long", 0.25))
SEED = 23
START_S = 30.0
STOP_S = 15.0
# What a client may call a failure; being refused in time, or cut off at its own end, is none.
FAILED = frozenset({Outcome.ERROR, Outcome.TIMEOUT, Outcome.INTERRUPTED, Outcome.INVALID_RESPONSE})


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much load: arrivals a second and seconds, both in the engines' time."""

    rate_per_s: float
    window_s: float
    time_scale: float = 1.0


def freeze_load(folder: Path, wanted: Wanted) -> dict[str, Any]:
    """Write corpus and trace; returns what a record says of them, digests included.

    Raises:
        BenchError: such a load can't be drawn.
    """
    spec = TraceSpec("poisson-stratified", SEED, wanted.rate_per_s, MIX, 0.0, wanted.window_s)
    model = TextModel()
    pins = {
        "tokenizer_sha256": file_digest(model.tokenizer_path),
        "chat_template_sha256": file_digest(model.chat_template_path),
    }
    corpus = freeze_corpus(folder / "corpus.jsonl", SHAPES, SEED, model, pins)
    trace = _again_and_again(spec, corpus.by_class())
    write_bytes(folder / "trace.jsonl", encode_trace(trace))
    manifest = {**trace_manifest(spec, trace, corpus.sha256), "time_scale": wanted.time_scale}
    write_json(folder / "trace.manifest.json", manifest)
    return {"bundled": True, **manifest, **pins}


def _again_and_again(
    spec: TraceSpec, prompts: Mapping[str, Sequence[Prompt]]
) -> tuple[Arrival, ...]:
    turns = {name: cycle(own) for name, own in prompts.items()}
    arrivals = []
    for seq, (offset_us, name) in enumerate(draw(spec)):
        prompt = next(turns[name])
        size = prompt.prompt_tokens, prompt.output_tokens
        arrivals.append(Arrival(seq, name, offset_us, *size, prompt.sha256))
    return tuple(arrivals)


class RehearsalLoad:
    """The load of one rehearsal.

    Args:
        folder: takes its files.
        wanted: how much.

    Raises:
        BenchError: such a load can't be drawn.
    """

    def __init__(self, folder: Path, wanted: Wanted) -> None:
        self._folder, self._wanted = folder, wanted
        folder.mkdir(parents=True, exist_ok=True)
        self.told: Mapping[str, Any] = freeze_load(folder, wanted)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, url: str, model: str, keys: Sequence[str]) -> None:
        """Begin to send; returns when the first request is due.

        Raises:
            BenchError: the replay did not start; the message has its reason.
        """
        job, output = self._job(url, model, keys), self._folder / "replay.jsonl"
        with output.open("wb") as lines:
            process = subprocess.Popen(
                tethered([sys.executable, "-m", "loadgen.replay"], signal.SIGKILL),
                stdin=subprocess.PIPE,
                stdout=lines,
                start_new_session=True,  # Ctrl-C is for who watches: the load ends last
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        self._process = process
        assert process.stdin is not None  # noqa: S101 - it was asked for
        with process.stdin as told:
            told.write(orjson.dumps(asdict(job)))
        until_s = time.monotonic() + START_S
        while b'"started"' not in output.read_bytes():
            if process.poll() is not None or time.monotonic() > until_s:
                self._end()
                raise BenchError(f"the load did not start: {output.read_text()[-500:]}")
            time.sleep(0.02)

    def stop(self) -> dict[str, Any]:
        """End it; what flies is cut off. Returns how many requests ended how, as callers saw it."""
        self._end()
        path = self._folder / "requests.jsonl"
        if not path.is_file():
            return {}
        _, records = decode_requests(read_bytes(path), str(path))
        counts = Counter(record.outcome for record in records)
        failed = sum(count for outcome, count in counts.items() if outcome in FAILED)
        codes = Counter(str(r.outcome_code) for r in records if r.outcome in FAILED)
        ended = sum(counts.values()) - counts[Outcome.NOT_SENT] - counts[Outcome.CANCELLED]
        return {
            "outcomes": {str(outcome): count for outcome, count in sorted(counts.items())},
            "ended": ended,
            "failed": failed,
            "failed_codes": dict(codes.most_common(8)),
            "requests_sha256": file_digest(path),
        }

    def _job(self, url: str, model: str, keys: Sequence[str]) -> Job:
        wanted, folder, sha256 = self._wanted, self._folder, self.told
        return Job(
            run_id="rehearsal",
            url=url,
            model=model,
            keys={},
            callers=tuple(keys),
            trace_path=str(folder / "trace.jsonl"),
            trace_sha256=sha256["trace_sha256"],
            corpus_path=str(folder / "corpus.jsonl"),
            corpus_sha256=sha256["corpus_sha256"],
            config_sha256="",
            out_path=str(folder / "requests.jsonl"),
            ramp_s=0.0,
            window_s=wanted.window_s,
            drain_s=5.0,
            timeout_s=60.0,
            time_scale=wanted.time_scale,
            workers=1,
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # it writes what it has
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _python_path() -> str:
    return f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
