"""The verbs beside a sweep: policy arms, topologies, limits, a running engine's step costs."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from loadgen.arms import ARMS, BASE, arms_plan, arms_settings
from loadgen.calibrate_engine import Wish, calibrate_engine
from loadgen.engine.cost import StepCost
from loadgen.engine.flags import read_step_model
from loadgen.files import read_json, write_json
from loadgen.freeze import freeze_sweep
from loadgen.identity import cost_path
from loadgen.limits_folder import folder_limits
from loadgen.record import BenchError
from loadgen.scenario_cli import add_scenario_verb
from loadgen.sweep_file import Sweep, read_sweep
from loadgen.topology import (
    Split,
    demands_of,
    plan_split,
    split_lines,
    topology_plan,
    topology_settings,
)
from loadgen.verb import Args, add_verb, say

__all__ = ["add_study_verbs"]


def _written(folder: Path, plan: Any, console: Console) -> int:
    write_json(folder / "plan.json", plan)
    starts = plan["engine_starts"]
    say(console, f"{folder / 'plan.json'}: {len(plan['runs'])} runs on {starts} engine starts")
    return 0


def _arms(args: Args, console: Console) -> int:
    sweep = read_sweep(args.file)
    own = replace(sweep, settings=arms_settings(sweep.settings))
    say(console, "freezing corpus and traces")
    return _written(args.out, arms_plan(freeze_sweep(own, args.out), args.arm), console)


def _cost(args: Args) -> StepCost:
    try:
        return read_step_model(args.step_model or cost_path())
    except ValueError as error:
        raise BenchError(str(error)) from error


def _split(sweep: Sweep, args: Args) -> Split:
    cells = {c.cell_id: c.args for c in sweep.settings.cells}
    changed = {k.replace("-", "_"): v for k, v in cells.get(args.cell, {}).items()}
    budget = {**sweep.baseline_args, **changed}.get("max_num_batched_tokens", 8192)
    return plan_split(args.engines, demands_of(sweep.settings), _cost(args), int(budget))


def _topology(args: Args, console: Console) -> int:
    sweep = read_sweep(args.file)
    own = replace(sweep, settings=topology_settings(sweep.settings, args.engines, args.cell))
    split = _split(own, args)
    say(console, *split_lines(split))
    if args.out is None:
        return 0
    say(console, "freezing corpus and traces")
    return _written(args.out, topology_plan(freeze_sweep(own, args.out), split, args.cell), console)


def _calibrate_engine(args: Args, console: Console) -> int:
    wish = Wish(
        args.engine_url.rstrip("/"),
        args.model,
        args.token_budget,
        args.repeats,
        args.time_scale,
        args.key,
    )
    model = asyncio.run(calibrate_engine(wish, lambda line: say(console, line)))
    sha256 = write_json(args.out, model)
    fit = model["fit"]
    say(
        console,
        f"median error {fit['median_error']:.1%}, largest {fit['max_error']:.1%}",
        f"{args.out}: sha256 {sha256}; use it: sluicegate engine --step-model {args.out}",
    )
    return 0


def _limits(args: Args, console: Console) -> int:
    synthetic = read_json(args.folder / "plan.json").get("synthetic", False)
    # Another model's step cost would price its output tokens wrongly: none is taken unasked.
    cost = _cost(args) if args.step_model is not None or synthetic else None
    console.file.write(folder_limits(args.folder, args.cell, cost, args.config))
    return 0


def _add_arms(verbs: Any) -> None:
    said = "freeze the policy arms: off, admission, engine priority, both"
    example = (
        "arms config/sweep.toml --out out/arms\n"
        "  sluicegate bench arms config/sweep.toml --arm enforce --out out/enforce"
    )
    parser = add_verb(verbs, "arms", _arms, said, example)
    parser.add_argument("file", type=Path, metavar="FILE", help="a sweep file (TOML)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the plan's folder")
    others = [arm.name for arm in ARMS if arm.name != BASE]
    said = "compare this one with off (repeatable; default: all)"
    parser.add_argument("--arm", action="append", default=[], choices=others, help=said)


def _add_topology(verbs: Any) -> None:
    said = "plan shared against isolated engines on equal hardware; print the split"
    example = "topology config/sweep.toml --engines 4 --out out/topology"
    parser = add_verb(verbs, "topology", _topology, said, example)
    parser.add_argument("file", type=Path, metavar="FILE", help="a sweep file (TOML)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="without it only the split is said")
    said = "in all (2); rates are multiplied by it"
    parser.add_argument("--engines", type=int, default=2, help=said)
    parser.add_argument("--cell", default="B0", help="whose arguments the engines have (B0)")
    parser.add_argument("--step-model", type=Path, metavar="FILE", help="step cost of the engines")


def _add_limits(verbs: Any) -> None:
    said = "print the admission limits that the records of a sweep support, as TOML"
    parser = add_verb(
        verbs, "limits", _limits, said, "limits out/sweep --config config/gateway.toml"
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="an analysed folder")
    parser.add_argument("--cell", help="whose (default: the decision's cell, else B0)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a gateway's, to be fitted")
    parser.add_argument("--step-model", type=Path, metavar="FILE", help="for the price of output")


def _add_calibrate_engine(verbs: Any) -> None:
    said = "fit the cost of a running, idle engine's steps"
    example = "calibrate-engine --engine-url http://127.0.0.1:8000 --model M --out step-model.json"
    parser = add_verb(verbs, "calibrate-engine", _calibrate_engine, said, example)
    add = parser.add_argument
    add("--engine-url", required=True, metavar="URL", help="the engine; nobody else may use it")
    add("--model", required=True, metavar="NAME", help="as the engine calls it")
    add("--out", type=Path, default=Path("step-model.json"), metavar="FILE", help="(%(default)s)")
    add("--token-budget", type=int, default=8192, help="its --max-num-batched-tokens (%(default)s)")
    add("--repeats", type=int, default=5, help="of each prefill (%(default)s)")
    add("--time-scale", type=float, default=1.0, help="of a simulated engine's clock (1)")
    add("--key", help="the engine's API key")


def add_study_verbs(verbs: Any) -> None:
    """Add these verbs to `bench`."""
    for add in (_add_arms, _add_topology, _add_limits, _add_calibrate_engine, add_scenario_verb):
        add(verbs)
