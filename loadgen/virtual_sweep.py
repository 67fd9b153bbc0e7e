"""Runs a whole plan in virtual time and writes what a real run of it would have written.

No engine, gateway or socket is started; the results are stamped virtual and synthetic, and can be
analysed, decided and reported as measured ones are.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.arms import Stamped
from loadgen.engine.cost import StepCost
from loadgen.engine.textmodel import TextModel
from loadgen.files import file_digest, read_bytes, read_json, write_bytes
from loadgen.forecast import DELAYS
from loadgen.record import BenchError, RunConfig, canonical, digest, encode_requests
from loadgen.run import write_config
from loadgen.run_folder import trace_path
from loadgen.runs import engine_identity
from loadgen.simulate import PassThrough, Policy
from loadgen.spread import Spread, pool_engines
from loadgen.trace import Arrival, decode_trace
from loadgen.virtual_run import VirtualRun, World, cell_args, scheduler_config, virtual_run

__all__ = [
    "GateWish",
    "PolicyFor",
    "WhatIf",
    "named_trace",
    "policy_of",
    "simulate_plan",
    "world_of",
]

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GateWish:
    """The gateway that a run needs: its admission mode and the engines that stand behind it.

    `pools` name classes and engines where these are divided; without any, all serve all classes.
    `limits` is a file as `bench limits` prints it; without it the gateway has its default ones.
    """

    admission: str
    engines: int
    pools: tuple[Mapping[str, Any], ...]
    args: Mapping[str, Any]
    limits: Path | None = None


PolicyFor = Callable[[GateWish], Policy]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What virtual time is to suppose beside the plan.

    `time_scale` is that of the engines' clock in the real run that this is held against, `limits`
    a file of admission limits in place of the one that the plan's launcher names.
    """

    time_scale: float = 1.0
    limits: Path | None = None


def policy_of(
    plan: Json, run: Json, policy_for: PolicyFor | None, limits: Path | None = None
) -> Policy:
    """Return the gate of a run: passing everything on, or the admission core that is handed in.

    Raises:
        BenchError: the run needs the admission core and none is there.
    """
    admission = run.get("admission", plan.get("gateway", {}).get("admission", "off"))
    args, engines = _engine_args(plan, run), int(run.get("engines", 1))
    if admission == "off":
        pools = run.get("pools")
        policy: Policy = Spread(pool_engines(pools)) if pools else PassThrough(engines)
    elif policy_for is None:
        raise BenchError(f"{run['run_id']}: admission {admission!r} needs the gateway's core")
    else:
        pools = tuple(run.get("pools", ()))
        policy = policy_for(GateWish(admission, engines, pools, args, limits))
    return Stamped(policy) if args.get("scheduling_policy") == "priority" else policy


def _engine_args(plan: Json, run: Json) -> Mapping[str, Any]:
    return {**cell_args(plan, run["cell_id"]), **run.get("engine_args", {})}


def world_of(plan: Json, run: Json, cost: StepCost, time_scale: float = 1.0) -> World:
    """Return the engines and the times of a run; the servers' own work is not scaled."""
    args = _engine_args(plan, run)
    config = scheduler_config(args)
    times = plan["intervals"]
    engines = (config,) * int(run.get("engines", 1))
    delays = DELAYS.at_scale(time_scale)
    tells = bool(args.get("enable_prompt_tokens_details"))
    return World(engines, cost, times["ramp_s"], times["timeout_s"], delays, tells)


@dataclass(frozen=True, slots=True)
class _Target:
    """Where the results go and what every run's configuration says alike."""

    folder: Path
    plan: Json
    plan_sha256: str
    identity: Mapping[str, str]
    given: WhatIf


def _configuration(target: _Target, run: Json) -> RunConfig:
    plan, times, limits = target.plan, target.plan["intervals"], target.given.limits
    return RunConfig(
        run_id=run["run_id"],
        cell_id=run["cell_id"],
        repeat=run["repeat"],
        trace_sha256=run["trace_sha256"],
        corpus_sha256=plan["corpus_sha256"],
        hardware_id="virtual time: no hardware",
        effective_args=_engine_args(plan, run),
        warmup_seconds=times["ramp_s"],
        observation_seconds=times["window_s"],
        drain_deadline_seconds=times["drain_s"],
        details={
            "kind": "config",
            "synthetic": True,
            "virtual": True,
            "time_scale": target.given.time_scale,
            "plan_sha256": target.plan_sha256,
            **({} if limits is None else {"limits_sha256": file_digest(limits)}),
            "trace": run["trace"],
            "synthetic_length": True,
        },
        **target.identity,
    )


def _write(target: _Target, run: Json, made: VirtualRun) -> None:
    run_dir = target.folder / "runs" / run["run_id"]
    config_sha256 = write_config(run_dir, _configuration(target, run))
    named = {"run_id": run["run_id"], "config_sha256": config_sha256}
    inputs = {k: run.get(k, target.plan.get(k)) for k in ("trace_sha256", "corpus_sha256")}
    write_bytes(run_dir / "requests.jsonl", encode_requests({**named, **inputs}, made.records))
    rows = ({"kind": "samples", **named}, *made.samples)
    write_bytes(run_dir / "samples.jsonl", b"".join(canonical(row) for row in rows))


def named_trace(source: Path, run: Json) -> tuple[Arrival, ...]:
    """Return the frozen trace of a run.

    Raises:
        BenchError: missing, or not the one that the plan names.
    """
    path = trace_path(source, run["trace"])
    data = read_bytes(path)
    if digest(data) != run["trace_sha256"]:
        raise BenchError(f"{path}: is not the trace that the plan names for {run['run_id']}")
    return decode_trace(data, str(path))


def _copy_inputs(source: Path, out: Path, plan: Json) -> None:
    out.mkdir(parents=True, exist_ok=True)
    names = {"plan.json", "corpus.jsonl", "corpus.manifest.json"}
    for trace in {run["trace"] for run in plan["runs"]}:
        path = trace_path(source, trace)
        names |= {path.name, path.with_suffix(".manifest.json").name}
    for name in sorted(names):
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)


def simulate_plan(
    source: Path,
    out: Path,
    cost: StepCost,
    policy_for: PolicyFor | None = None,
    watch: Callable[[int, int], None] = lambda done, of: None,
    given: WhatIf = WhatIf(),
) -> Sequence[Json]:
    """Run every run of a plan in virtual time; returns the runs.

    Args:
        source: the folder of plan, traces and corpus.
        out: the results folder; it gets copies of them, so that it stands alone.
        cost: of an engine step.
        policy_for: makes the admission core for runs that have one.
        watch: is told after each run how many of how many are done.
        given: what else it is to suppose.

    Raises:
        BenchError: a trace is not the one that was named, or a cell's arguments are impossible.
    """
    plan = read_json(source / "plan.json")
    if source.resolve() != out.resolve():
        _copy_inputs(source, out, plan)
    named = plan.get("launcher", {}).get("limits")
    if given.limits is None and named is not None:
        given = replace(given, limits=Path(named))
    identity = engine_identity(TextModel())
    target = _Target(out, plan, file_digest(out / "plan.json"), identity, given)
    runs: Sequence[Json] = plan["runs"]
    for number, run in enumerate(runs, start=1):
        trace = named_trace(source, run)
        policy = policy_of(plan, run, policy_for, given.limits)
        world = world_of(plan, run, cost, given.time_scale)
        _write(target, run, virtual_run(trace, policy, world))
        watch(number, len(runs))
    return runs
