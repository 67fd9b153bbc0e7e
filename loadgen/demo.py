"""Runs the demonstration: one frozen trace, three ways through the gateway, and a control.

Two simulated engines and the gateway start as processes of their own for each way. A way whose
client could not keep up is run again, at most twice; if it never could, it is printed as invalid
and the exit status is 1.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from loadgen.capacity import Demand
from loadgen.console import Progress, show_result
from loadgen.corpus import Shape, freeze_corpus
from loadgen.engine.cost import step_cost_from
from loadgen.engine.textmodel import TextModel
from loadgen.files import file_digest, read_json, write_bytes, write_json
from loadgen.freeze import corpus_inputs
from loadgen.plan import CONTROL, DEMO_WAYS, Intervals, Way, demo_plan
from loadgen.record import BenchError
from loadgen.report_file import write_report
from loadgen.results import conclude, trace_path
from loadgen.rule import too_busy
from loadgen.run import Watch
from loadgen.runs import Show, conduct, cost_path, engine_identity
from loadgen.tables import prediction_lines
from loadgen.trace import (
    Arrival,
    TraceSpec,
    build_trace,
    class_counts,
    encode_trace,
    shorts_only,
    trace_manifest,
)
from loadgen.verb import say

__all__ = ["DEMO_INTERVALS", "DEMO_TRACE", "Simulate", "freeze_demo", "run_demo", "run_view"]

# 0.85 of what two engines complete at saturation on this mix.
DEMO_TRACE = TraceSpec("poisson-stratified", 20, 21.8, (("short", 0.8), ("long", 0.2)), 3.0, 25.0)
DEMO_INTERVALS = Intervals(ramp_s=3.0, window_s=25.0, drain_s=15.0, timeout_s=15.0)
SIZES = {"short": 512, "long": 8192}
OUTPUT_TOKENS = 128
CORPUS_SEED = 11

# Predicts a way on a trace: per class `ttft_p50_s` and `ttft_p95_s`, infinite if unbounded.
Simulate = Callable[[Sequence[Arrival], Way], Mapping[str, Mapping[str, float]]]


def _write_trace(
    folder: Path, name: str, trace: Sequence[Arrival], spec: TraceSpec, corpus_sha256: str
) -> str:
    path = trace_path(folder, name)
    manifest = {"name": name, **trace_manifest(spec, trace, corpus_sha256)}
    write_json(path.with_suffix(".manifest.json"), manifest)
    return write_bytes(path, encode_trace(trace))


def freeze_demo(
    folder: Path, model: TextModel, spec: TraceSpec, intervals: Intervals
) -> tuple[Arrival, ...]:
    """Write corpus, both traces and the plan; returns the mixed trace.

    Raises:
        BenchError: an input is at fault.
    """
    counts = class_counts(spec)
    shapes = [Shape(n, SIZES[n], OUTPUT_TOKENS, counts[n]) for n, _ in spec.mix]
    pins = {
        "tokenizer_sha256": file_digest(model.tokenizer_path),
        "chat_template_sha256": file_digest(model.chat_template_path),
    }
    corpus = freeze_corpus(folder / "corpus.jsonl", shapes, CORPUS_SEED, model, pins)
    mixed = build_trace(spec, corpus.by_class())
    traces = {
        name: _write_trace(folder, name, trace, spec, corpus.sha256)
        for name, trace in (("mixed", mixed), ("shorts-only", shorts_only(mixed)))
    }
    demands = {n: Demand(spec.rate_per_s * share, SIZES[n], OUTPUT_TOKENS) for n, share in spec.mix}
    costs = step_cost_from(read_json(cost_path()), str(cost_path()))
    inputs = {**pins, **corpus_inputs(folder), "traces": traces}
    write_json(folder / "plan.json", demo_plan(inputs, intervals, demands, costs))
    return mixed


def _predict(folder: Path, mixed: Sequence[Arrival], simulate: Simulate | None) -> None:
    path = folder / "predictions.json"
    path.unlink(missing_ok=True)
    if simulate is None:
        return
    ways = {
        way.name: _finite(simulate(shorts_only(mixed) if way.control else mixed, way))
        for way in (*DEMO_WAYS, CONTROL)
    }
    named = {"trace_sha256": file_digest(trace_path(folder, "mixed"))}
    write_json(path, {"kind": "predictions", "inputs": named, "ways": ways})


def _finite(told: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    return {
        name: {k: v if math.isfinite(v) else None for k, v in figures.items()}
        for name, figures in told.items()
    }


def run_view(console: Console, total: int) -> Show:
    """Return what shows each of `total` runs as it goes."""

    @contextlib.contextmanager
    def show(
        number: int, run: Mapping[str, Any], before: Sequence[Sequence[str]], limit_s: float
    ) -> Iterator[Watch]:
        title = f"way {number} of {total}: {run['label']}"
        if before:
            why = ": this machine was too busy" if too_busy(before[-1]) else ""
            say(console, f"  INVALID: {'; '.join(before[-1])}{why}")
            title += f", attempt {len(before) + 1}"
        say(console, title)
        with Progress(console, title, limit_s) as progress:
            yield progress.row

    return show


def _show_predictions(console: Console, analysis: Mapping[str, Any]) -> None:
    say(console, *prediction_lines(analysis))


def _conduct(folder: Path, model: TextModel, console: Console) -> None:
    runs = read_json(folder / "plan.json")["runs"]
    asyncio.run(conduct(folder, runs, engine_identity(model), run_view(console, len(runs))))


def run_demo(
    out_dir: Path,
    *,
    simulate: Simulate | None = None,
    console: Console,
    spec: TraceSpec = DEMO_TRACE,
    intervals: Intervals = DEMO_INTERVALS,
) -> int:
    """Run the demonstration into a folder.

    Args:
        out_dir: where everything goes; an earlier corpus of the same inputs is reused.
        simulate: predicts each way; nothing is predicted without it.
        console: what to print on.
        spec: of the trace.
        intervals: of each run.

    Returns:
        0 with a verdict, 1 if a run was invalid, 2 if an input or the stack was at fault, 130 if
        interrupted.
    """
    try:
        console.print("freezing corpus and traces", markup=False)
        model = TextModel()
        mixed = freeze_demo(out_dir, model, spec, intervals)
        _predict(out_dir, mixed, simulate)
        _conduct(out_dir, model, console)
        analysis, decision = conclude(out_dir)
        report = write_report(out_dir)
    except BenchError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; finished runs stay on disk", markup=False)
        return 130
    show_result(console, analysis, decision)
    _show_predictions(console, analysis)
    console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)
    return 1 if decision["verdict"] == "invalid" else 0
