"""Sets out a sweep's runs, as data: cells x mixes x rates in rounds, in an order shuffled by seed.

In each round every cell comes once, in a fresh order, on a freshly started engine; its runs, one
per stratum (mix x rate), are shuffled inside and share that start. Each round has traces of its
own, the same for all cells. The defaults give seven cells, six strata and three rounds: 126 runs
on 21 engine starts. Pure: no I/O, no clock.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.arrivals import TraceSpec
from loadgen.record import digest
from loadgen.sweep_settings import BASELINE, TWIN, SweepSettings

__all__ = [
    "WARMUP_ROUNDS",
    "Frozen",
    "TraceKey",
    "changed",
    "effort",
    "runs_of",
    "sweep_plan",
    "trace_keys",
    "trace_spec",
    "warmup_prompts",
]

Json = dict[str, Any]
ALPHAS = {1: (0.05,), 2: (0.02, 0.03)}
# Prompts of a warm-up round of the two outer classes, and how many rounds there may be.
WARMUP_OF = (4, 1)
WARMUP_ROUNDS = 6
# Without it an engine does not say how much of a prompt was cached.
TELLING = {"enable_prompt_tokens_details": True}
# What an engine's start and its warm-up take, about, where the launcher's table does not say.
START_S = {"simulated": 3.0, "vllm": 40.0, "command": 60.0, "external": 0.0}
WARMUP_S = 10.0


@dataclass(frozen=True, slots=True)
class TraceKey:
    """Which trace: of a mix at a rate, in a round; `repeat` is None where all rounds share it."""

    mix: str
    rate: str
    repeat: int | None

    @property
    def name(self) -> str:
        """The trace's name in file names and in the plan."""
        own = f"{self.mix}-{self.rate}"
        return own if self.repeat is None else f"{own}-r{self.repeat}"


@dataclass(frozen=True, slots=True)
class Frozen:
    """What is on disk already when the plan is made, by digest, and where B0 and rates are from.

    `inputs` holds the digests of corpus, tokenizer and chat template; `traces` what the plan says
    of each trace, by name.
    """

    inputs: Mapping[str, str]
    traces: Mapping[str, Mapping[str, Any]]
    baseline_args: Mapping[str, Any]
    baseline: Mapping[str, Any]
    rates_source: Mapping[str, Any]


def trace_keys(settings: SweepSettings) -> Iterator[TraceKey]:
    """Yield every trace of the sweep, drawn mixes before derived ones."""
    repeats = [None] if settings.traces == "shared" else list(range(1, settings.rounds + 1))
    drawn = settings.drawn_mixes
    for mix in (*drawn, *(name for name in settings.mixes if name not in drawn)):
        for rate in settings.strata:
            for repeat in repeats:
                yield TraceKey(mix, rate, repeat)


def trace_spec(settings: SweepSettings, key: TraceKey) -> TraceSpec:
    """Return what to draw for the trace of a mix given by shares.

    The seed follows from the sweep's seed and the trace's name, so that adding a mix or a rate
    leaves all other traces as they are.
    """
    own, times = settings.arrivals, settings.intervals
    return TraceSpec(
        kind=own.kind,
        seed=int(digest(f"{settings.seed}:{key.name}".encode())[:8], 16),
        rate_per_s=settings.rates[key.mix].named(key.rate),
        mix=tuple(settings.mixes[key.mix].shares.items()),
        ramp_s=times.ramp_s,
        window_s=times.window_s,
        burstiness=own.burstiness,
        factor=own.factor,
        at_s=own.at_s,
        for_s=own.for_s,
    )


def warmup_prompts(settings: SweepSettings) -> dict[str, int]:
    """Return how many prompts of each class are kept for warming up and stand in no trace."""
    names = settings.class_order
    counts = dict.fromkeys(names, 0)
    counts[names[0]] += WARMUP_OF[0] * WARMUP_ROUNDS
    counts[names[-1]] += WARMUP_OF[1] * WARMUP_ROUNDS
    return counts


def changed(baseline: Mapping[str, Any], args: Mapping[str, Any]) -> Json:
    """Return each argument in which a cell differs from B0: from what to what."""
    return {
        name: {"from": baseline.get(name), "to": value}
        for name, value in args.items()
        if baseline.get(name) != value
    }


def runs_of(
    cells: Sequence[str], strata: Sequence[tuple[str, str]], rounds: int, seed: int
) -> list[Json]:
    """Return the runs in their order: cells shuffled in each round, strata inside each cell."""
    rng = random.Random(f"sluicegate-plan-1:{seed}")
    runs: list[Json] = []
    start = 0
    for repeat in range(1, rounds + 1):
        for cell_id in rng.sample(cells, len(cells)):
            start += 1
            for mix, rate in rng.sample(strata, len(strata)):
                run_id = f"r{repeat}-{cell_id}-{mix}-{rate}"
                where = {"cell_id": cell_id, "mix": mix, "rate": rate, "repeat": repeat}
                runs.append({"run_id": run_id, **where, "start": start, "order": len(runs) + 1})
    return runs


def _strata(settings: SweepSettings) -> list[Json]:
    gates = {tuple(pair) for c in settings.contract.values() for pair in c.gate_strata}
    return [
        {
            "mix": mix,
            "rate": rate,
            "rate_per_s": _rate_per_s(settings, mix, rate),
            "gate": (mix, rate) in gates,
        }
        for mix in settings.mixes
        for rate in settings.strata
    ]


def _rate_per_s(settings: SweepSettings, mix: str, rate: str) -> float:
    own = settings.mixes[mix]
    if own.derived_from is None:
        return settings.rates[mix].named(rate)
    shares = settings.mixes[own.derived_from].shares
    kept = sum(shares.get(name, 0.0) for name in own.keep) if shares else 1.0
    return settings.rates[own.derived_from].named(rate) * kept


def _shares(settings: SweepSettings, mix: str) -> Json:
    own = settings.mixes[mix]
    if own.derived_from is None:
        return dict(own.shares)
    whole = settings.mixes[own.derived_from].shares
    kept = {name: whole.get(name, 0.0) for name in own.keep}
    total = sum(kept.values())
    return {name: share / total for name, share in kept.items()} if total else {}


def _cells(settings: SweepSettings, baseline: Mapping[str, Any]) -> list[Json]:
    if settings.kind == "prefix_reuse":
        baseline = {**TELLING, **baseline}
    cells: list[Json] = [{"cell_id": BASELINE, "args": dict(baseline), "changed": {}}]
    if settings.aa:
        cells.append({"cell_id": TWIN, "aa_of": BASELINE, "args": dict(baseline), "changed": {}})
    for cell in settings.cells:
        args = {name.replace("-", "_"): value for name, value in cell.args.items()}
        own = {"args": {**baseline, **args}, "changed": changed(baseline, args)}
        cells.append({"cell_id": cell.cell_id, **own})
    return cells


def _runs(settings: SweepSettings, cells: Sequence[Json], frozen: Frozen) -> list[Json]:
    strata = {(s["mix"], s["rate"]): s for s in _strata(settings)}
    names = [cell["cell_id"] for cell in cells]
    runs = runs_of(names, list(strata), settings.rounds, settings.seed)
    shared = settings.traces == "shared"
    for run in runs:
        stratum = strata[run["mix"], run["rate"]]
        key = TraceKey(run["mix"], run["rate"], None if shared else run["repeat"])
        run["rate_rps"] = run["rate_per_s"] = stratum["rate_per_s"]
        run["gate"] = stratum["gate"]
        run["trace"] = key.name
        run["trace_sha256"] = frozen.traces[key.name]["sha256"]
        if settings.kind == "prefix_reuse":
            run["start"] = run["order"]  # or the run before would have filled the cache
    return runs


def sweep_plan(settings: SweepSettings, frozen: Frozen) -> Json:
    """Return the plan: everything that is fixed before the first run, and the runs in order."""
    cells = _cells(settings, frozen.baseline_args)
    runs = _runs(settings, cells, frozen)
    alphas = ALPHAS[len(settings.looks)]
    mixes = settings.mixes.items()
    return {
        "kind": settings.kind,
        "version": 1,
        "seed": settings.seed,
        "synthetic": settings.launcher["kind"] == "simulated",
        **frozen.inputs,
        "rounds": settings.rounds,
        "looks": list(settings.looks),
        "alphas": list(alphas),
        "alpha": alphas[-1],
        "traces_mode": settings.traces,
        "arrivals": _given(asdict(settings.arrivals)),
        "classes": {n: _given(asdict(c)) for n, c in settings.classes.items()},
        "class_order": list(settings.class_order),
        "mixes": {name: _shares(settings, name) for name, _ in mixes},
        **_reuse(settings),
        "derived_mixes": {n: m.derived_from for n, m in mixes if m.derived_from is not None},
        "strata": _strata(settings),
        "rates": {n: _given(asdict(r)) for n, r in settings.rates.items()},
        "rates_source": dict(frozen.rates_source),
        "intervals": asdict(settings.intervals),
        "contract": {n: asdict(c) for n, c in settings.contract.items()},
        "margins": asdict(settings.margins),
        "traces": {name: dict(told) for name, told in frozen.traces.items()},
        "warmup_prompts": warmup_prompts(settings),
        "baseline": dict(frozen.baseline),
        "cells": cells,
        "omitted": [asdict(o) for o in settings.omitted],
        "launcher": dict(settings.launcher),
        "gateway": dict(settings.gateway),
        "engine_starts": len({run["start"] for run in runs}),
        "runs": runs,
    }


def _reuse(settings: SweepSettings) -> Json:
    own = {name: asdict(reuse) for name, reuse in settings.reuse.items()}
    return {"reuse": own} if own else {}


def _given(values: Mapping[str, Any]) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def effort(plan: Mapping[str, Any]) -> Json:
    """Return the runs, the engine starts, and the seconds that all takes at least and at most.

    A run takes its ramp and window, and of the drain what the last answer needs.
    """
    times, launcher = plan["intervals"], plan["launcher"]
    runs, starts = len(plan["runs"]), plan["engine_starts"]
    start_s = launcher.get("expected_start_s", START_S[launcher["kind"]]) + WARMUP_S
    least_s = runs * (times["ramp_s"] + times["window_s"]) + starts * start_s
    most_s = least_s + runs * times["drain_s"]
    return {"runs": runs, "engine_starts": starts, "least_s": least_s, "most_s": most_s}
