"""Sweeps made of request records, for tests: how each unit behaves is said, the rest follows."""

import math
import random
from dataclasses import dataclass, field, replace

from loadgen.analyse import reduce_run
from loadgen.decide import decide
from loadgen.files import file_digest, write_bytes, write_json
from loadgen.record import (
    Outcome,
    RequestRecord,
    canonical,
    digest,
    encode_requests,
    strict_json,
)
from loadgen.sweep_analysis import Absent, analyse_sweep
from loadgen.trace import Arrival, encode_trace

LIMITS = {
    "short": {"ttft_s": 2.0, "max_stall_s": 0.6, "e2e_s": 12.0},
    "long": {"ttft_s": 2.5, "max_stall_s": 0.6, "e2e_s": 14.0},
}
STRATA = (("80-20", "near"), ("50-50", "near"))
SIZES = {"short": (512, 128), "long": (8192, 128)}
PER_RUN = 80
CALM = {"source": "client", "loop_lag_ms": 1.0, "cpu_share": 0.1}
BUDGETS = {"B0": 8192, "C1": 2048, "C2": 4096, "C3": 2048}


@dataclass(frozen=True)
class Behaviour:
    """How a unit serves each class: times in seconds, shares of requests, response tokens."""

    ttft_s: dict = field(default_factory=lambda: {"short": 0.4, "long": 0.6})
    stall_s: dict = field(default_factory=lambda: {"short": 0.2, "long": 0.2})
    e2e_s: dict = field(default_factory=lambda: {"short": 3.0, "long": 4.0})
    missed: dict = field(default_factory=dict)
    failed: dict = field(default_factory=dict)
    failure: Outcome = Outcome.ERROR
    tokens: int = 128
    lengths: tuple = ()
    single_event: bool = False
    variation: float = 0.02


PLAIN = Behaviour()


def better(behaviour=PLAIN, *, short_stall=0.7):
    """The same with its shorts' stalls scaled."""
    stalls = {**behaviour.stall_s, "short": behaviour.stall_s["short"] * short_stall}
    return replace(behaviour, stall_s=stalls)


def _run(kind, unit, mix, rate, repeat):
    key = {"arms": "arm", "topology": "topology"}.get(kind, "cell_id")
    own = {"cell_id": "B0", key: unit, "mix": mix, "rate": rate, "repeat": repeat}
    trace = {"trace": f"{mix}-{rate}-r{repeat}", "trace_sha256": ""}
    return {"run_id": f"r{repeat}-{unit}-{mix}-{rate}", **own, **trace}


def plan(units=("B0", "C1", "C2", "C3"), kind="sweep", rounds=3, **changes):
    runs = [
        _run(kind, u, mix, rate, n)
        for n in range(1, rounds + 1)
        for u in units
        for mix, rate in STRATA
    ]
    cells = [{"cell_id": u, "args": {}, "changed": _changed(u)} for u in units]
    twins = [{**c, "aa_of": "B0"} if c["cell_id"] == "B0b" else c for c in cells]
    contract = {
        name: {**limits, "attainment": 0.95, "gate_strata": [list(s) for s in STRATA]}
        for name, limits in LIMITS.items()
    }
    return {
        "kind": kind,
        "synthetic": True,
        "rounds": rounds,
        "looks": [rounds],
        "corpus_sha256": "",
        "intervals": {"ramp_s": 1.0, "window_s": 20.0, "drain_s": 20.0, "timeout_s": 20.0},
        "classes": {n: {"prompt_tokens": p, "output_tokens": o} for n, (p, o) in SIZES.items()},
        "contract": contract,
        "cells": twins,
        "runs": runs,
        **changes,
    }


def _changed(unit):
    if unit in {"B0", "B0b"} or unit not in BUDGETS:
        return {}
    changed = {"max_num_batched_tokens": {"from": 8192, "to": BUDGETS[unit]}}
    if unit == "C3":
        changed["max_num_seqs"] = {"from": 1024, "to": 16}
    return changed


def _length(behaviour, seq):
    lengths = behaviour.lengths or (behaviour.tokens,)
    return lengths[seq % len(lengths)]


def _ok(fields, behaviour, name, place, factor):
    # Ranks are spread evenly round the middle, so that a quantile says what was asked for.
    times = {
        part: getattr(behaviour, part)[name] * place * factor
        for part in ("ttft_s", "stall_s", "e2e_s")
    }
    at = fields["planned_us"]
    first = at + round(times["ttft_s"] * 1e6)
    second = first + round(times["stall_s"] * 1e6)
    last = max(second, at + round(times["e2e_s"] * 1e6))
    events = {"event_us": (first, second), "max_stall_us": second - first}
    return {
        **fields,
        **({"event_us": (first,)} if behaviour.single_event else events),
        "first_event_us": first,
        "last_byte_us": last,
        "prompt_tokens_reported": fields["prompt_tokens_planned"],
        "completion_tokens_reported": _length(behaviour, fields["seq"]),
    }


def _request(seq, name, share, behaviour, factor):
    prompt, output = SIZES[name]
    planned_us = 1_000_000 + seq * 1000
    fields = {
        "seq": seq,
        "size_class": name,
        "phase": "observed",
        "planned_us": planned_us,
        "prompt_tokens_planned": prompt,
        "completion_tokens_planned": output,
        "prompt_sha256": "a",
        "connect_wait_us": 0,
        "dispatched_us": planned_us + 100,
    }
    if share < behaviour.failed.get(name, 0.0):
        return RequestRecord(**fields, outcome=behaviour.failure)
    place = 0.8 + 0.4 * share
    made = _ok(fields, behaviour, name, place, factor)
    if 1.0 - share <= behaviour.missed.get(name, 0.0) + 1e-9:
        made["first_event_us"] = planned_us + round(LIMITS[name]["ttft_s"] * 1.5e6)
    return RequestRecord(**made, outcome=Outcome.OK)


def records(run, behaviour, unit, classes=("short", "long"), seed=1):
    """Every request of a run: PER_RUN of each class."""
    drawn = random.Random(f"{seed}:{unit}:{run['run_id']}").gauss(0.0, behaviour.variation)
    factor = math.exp(drawn)
    made = []
    for name in classes:
        for n in range(PER_RUN):
            share = (n + 0.5) / PER_RUN
            made.append(_request(len(made), name, share, behaviour, factor))
    return made


def unit_name(run, kind):
    return run[{"arms": "arm", "topology": "topology"}.get(kind, "cell_id")]


def classes_of(unit):
    return (unit.removeprefix("alone-"),) if unit.startswith("alone-") else ("short", "long")


def analysis(
    behaviours=None, made=None, *, without=(), faulty=(), config=None, samples=(CALM,), absent=None
):
    """Analyse a plan whose units behave as said, others plainly.

    Args:
        behaviours: by unit, or by (unit, mix).
        made: the plan.
        without: ids of runs that are missing.
        faulty: ids of runs whose client could not keep up.
        config: what every run's configuration says besides.
        samples: the rows of every second.
        absent: invalid attempts and excluded units.
    """
    made = plan() if made is None else made
    behaviours = behaviours or {}
    facts = []
    for run in made["runs"]:
        unit = unit_name(run, made["kind"])
        if run["run_id"] in without:
            continue
        behaviour = behaviours.get((unit, run["mix"]), behaviours.get(unit, PLAIN))
        own = records(run, behaviour, unit, classes_of(unit))
        rows = [{**CALM, "loop_lag_ms": 99.0}] if run["run_id"] in faulty else list(samples)
        facts.append(reduce_run(run, made, len(own), own, rows, config))
    found = analyse_sweep(made, {"plan_sha256": "p"}, facts, absent or Absent())
    return strict_json(canonical(found), "analysis")


def decided(behaviours=None, made=None, topology=None, **more):
    """Decide what `analysis` makes."""
    return decide(analysis(behaviours, made, **more), "sha", topology, "topology sha")


def write_run(folder, run, made, behaviour=PLAIN, name=None, samples=(CALM,), **config):
    """Write one run's three files as the bench does."""
    unit = unit_name(run, made["kind"])
    own = folder / "runs" / (name or run["run_id"])
    told = {"plan_sha256": file_digest(folder / "plan.json"), "synthetic": True, **config}
    told |= {"trace_sha256": run["trace_sha256"], "run_id": run["run_id"]}
    sha256 = write_json(own / "config.json", told)
    found = records(run, behaviour, unit, classes_of(unit))
    write_bytes(own / "requests.jsonl", encode_requests({"config_sha256": sha256}, found))
    head = canonical({"kind": "samples", "config_sha256": sha256})
    write_bytes(own / "samples.jsonl", head + b"".join(canonical(row) for row in samples))


def write_plan(folder, made=None):
    """Write corpus, traces with manifests and plan; return the plan as written."""
    made = plan() if made is None else made
    sha256 = write_bytes(folder / "corpus.jsonl", b"{}\n")
    arrivals = [
        Arrival(n, name, 1_000_000 + n * 1000, *SIZES[name], "a")
        for n, name in enumerate(["short"] * PER_RUN + ["long"] * PER_RUN)
    ]
    traces, runs = {}, []
    for run in made["runs"]:
        data = encode_trace(arrivals)
        path = folder / f"trace-{run['trace']}.jsonl"
        write_bytes(path, data)
        manifest = write_json(path.with_suffix(".manifest.json"), {"trace_sha256": digest(data)})
        traces[run["trace"]] = {"sha256": digest(data), "manifest_sha256": manifest}
        runs.append({**run, "trace_sha256": digest(data)})
    made = {**made, "corpus_sha256": sha256, "traces": traces, "runs": runs}
    write_json(folder / "plan.json", made)
    return made


def write_folder(folder, behaviours=None, made=None):
    """Write a whole results folder."""
    made = write_plan(folder, made)
    for run in made["runs"]:
        unit = unit_name(run, made["kind"])
        write_run(folder, run, made, (behaviours or {}).get(unit, PLAIN))
    return made
