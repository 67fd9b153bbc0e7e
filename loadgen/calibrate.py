"""Finds the rates of a sweep on its B0, running or in virtual time."""

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.closed_loop import Server, measure_completions
from loadgen.corpus import Corpus, Shape, freeze_corpus
from loadgen.engine.cost import StepCost
from loadgen.freeze import text_model
from loadgen.record import BenchError
from loadgen.saturation import (
    Saturation,
    class_sequence,
    completions_per_s,
    level_search,
    rates_file,
)
from loadgen.sweep_file import Sweep
from loadgen.virtual_run import scheduler_config

__all__ = ["calibrate_server", "calibrate_virtual"]

Json = dict[str, Any]
Watch = Callable[[str], None]
# Prompts of each class; they are sent over and over.
PROMPTS = 32


def _shares(sweep: Sweep) -> dict[str, Mapping[str, float]]:
    mixes = sweep.settings.mixes
    drawn = {name: mixes[name].shares for name in sweep.settings.drawn_mixes}
    for name, shares in drawn.items():
        if not shares:
            raise BenchError(f"mix {name}: replays a recorded trace; state its rates yourself")
    return drawn


def _saturated(mix: str, measure: Callable[[int], float], watch: Watch) -> Saturation:
    def measured(level: int) -> float:
        per_s = measure(level)
        watch(f"{mix}: {per_s:.2f} completions/s with {level} in flight")
        return per_s

    return level_search(measured)


def calibrate_virtual(sweep: Sweep, cost: StepCost, watch: Watch) -> Json:
    """Return the rates file of the sweep's B0 in virtual time.

    Raises:
        BenchError: a mix has no shares, or B0's arguments are impossible.
    """
    engine = scheduler_config(sweep.baseline_args), cost
    sizes = {
        name: (size.prompt_tokens, size.output_tokens)
        for name, size in sweep.settings.classes.items()
    }

    def measure(shares: Mapping[str, float], level: int) -> float:
        return completions_per_s(shares, sizes, engine, level)

    found = {
        mix: _saturated(mix, partial(measure, shares), watch)
        for mix, shares in _shares(sweep).items()
    }
    said = {"synthetic": True, "virtual": True, "args": dict(sweep.baseline_args)}
    return rates_file(found, {**said, "step_costs": cost.source})


def _prompts(sweep: Sweep) -> Corpus:
    shapes = [
        Shape(name, size.prompt_tokens, size.output_tokens, PROMPTS)
        for name, size in sweep.settings.classes.items()
    ]
    with tempfile.TemporaryDirectory(prefix="sluicegate-") as folder:
        path = Path(folder) / "corpus.jsonl"
        return freeze_corpus(path, shapes, sweep.settings.corpus.seed, text_model(sweep), {})


def calibrate_server(sweep: Sweep, server: Server, watch: Watch) -> Json:
    """Return the rates file of a running B0; takes 42 s for each mix and number in flight.

    Raises:
        BenchError: a mix has no shares, or the server fails requests.
    """
    prompts = _prompts(sweep).by_class()

    def measure(shares: Mapping[str, float], level: int) -> float:
        names = class_sequence(shares)
        return asyncio.run(measure_completions(server, prompts, names, level))

    found = {
        mix: _saturated(mix, partial(measure, shares), watch)
        for mix, shares in _shares(sweep).items()
    }
    synthetic = sweep.settings.launcher["kind"] == "simulated"
    said = {"synthetic": synthetic, "virtual": False, "args": dict(sweep.baseline_args)}
    return rates_file(found, {**said, "model": server.model})
