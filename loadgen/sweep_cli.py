"""The verbs that set a sweep out before it is run: plan, simulate, calibrate, capacity."""

import argparse
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from loadgen.calibrate import calibrate_server, calibrate_virtual
from loadgen.capacity_view import capacity_of, capacity_table
from loadgen.closed_loop import Server
from loadgen.console import Stages
from loadgen.demo import DEMO_INTERVALS, DEMO_TRACE, freeze_demo
from loadgen.engine.cost import StepCost
from loadgen.engine.flags import read_step_model
from loadgen.engine.textmodel import TextModel
from loadgen.evidence import unpacked
from loadgen.expectation import TraceOf, drawn_trace
from loadgen.files import read_json, write_json
from loadgen.freeze import freeze_sweep, preview
from loadgen.plan_check import check_plan, show_check
from loadgen.record import BenchError, canonical
from loadgen.runs import cost_path
from loadgen.sweep_file import read_sweep
from loadgen.sweep_plan import effort
from loadgen.verb import Args, add_verb, say, time_scale
from loadgen.virtual_compare import compare_lines
from loadgen.virtual_sweep import WhatIf, named_trace, simulate_plan

__all__ = ["add_sweep_verbs"]


def _hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


def _effort_line(told: Mapping[str, Any]) -> str:
    least, most = _hours(told["least_s"]), _hours(told["most_s"])
    return (
        f"{told['runs']} runs on {told['engine_starts']} engine starts: {least} to {most} at time "
        "scale 1"
    )


def _plan_demo(folder: Path, console: Console) -> int:
    if (folder / "corpus.jsonl").exists() and not (folder / "plan.json").exists():
        raise BenchError(
            f"{folder}: holds a corpus of its own, and the demo's plan freezes another; "
            "choose an empty folder"
        )
    freeze_demo(folder, TextModel(), DEMO_TRACE, DEMO_INTERVALS)
    runs = read_json(folder / "plan.json")["runs"]
    say(console, f"{folder / 'plan.json'}: {len(runs)} runs")
    return 0


def _plan(args: Args, console: Console) -> int:
    if args.demo:
        return _plan_demo(args.out or Path("out/demo"), console)
    if args.file is None:
        raise BenchError("plan: name a sweep file, for example config/sweep.toml, or --demo")
    if args.check:
        return _check(args, console)
    sweep = read_sweep(args.file)
    if args.out is None:
        raise BenchError("plan: --out DIR is missing; --check alone writes nothing")
    say(console, _effort_line(effort(preview(sweep))), "freezing corpus and traces")
    plan = freeze_sweep(sweep, args.out)
    say(console, f"{args.out / 'plan.json'}: {len(plan['runs'])} runs")
    return 0


def _planned(path: Path) -> tuple[Mapping[str, Any], TraceOf]:
    """Return the plan of a folder with its frozen traces, or of a sweep file with drawn ones."""
    if path.is_dir():
        plan, named = read_json(path / "plan.json"), path / "plan.json"
    else:
        plan, named = preview(read_sweep(path)), path
    if plan["kind"] != "sweep":
        raise BenchError(
            f"{named}: a {plan['kind']} plan has no forecast of this kind; play all of it in "
            f"virtual time instead: {_instead(path)}"
        )
    if not path.is_dir():
        return plan, drawn_trace
    return plan, lambda _, run: named_trace(path, run)


def _instead(path: Path) -> str:
    folder = path if path.is_dir() else Path("out") / path.stem
    planned = "" if path.is_dir() else f"sluicegate bench plan {path} --out {folder} && "
    verbs = " && ".join(f"sluicegate bench {v} {folder}/sim" for v in ("analyse", "decide"))
    return f"{planned}sluicegate bench simulate {folder} && {verbs}"


def _check(args: Args, console: Console) -> int:
    plan, trace_of = _planned(args.file)
    # Progress goes beside the answer, which may be read by a program.
    watch = Stages(Console(stderr=True), time.monotonic)
    told = check_plan(plan, _cost(args), args.sweeps, trace_of, watch)
    if args.json:
        console.file.write(canonical(told).decode())
        return 0
    say(console, _effort_line(effort(plan)))
    show_check(console, told)
    return 0


def _cost(args: Args) -> StepCost:
    return read_step_model(args.step_model or cost_path())


def _simulate(args: Args, console: Console) -> int:
    folder = args.plan.parent if args.plan.is_file() else args.plan
    out, began_s = args.out or folder / "sim", time.monotonic()
    if args.compare is not None:
        with unpacked(args.compare) as measured:
            say(console, *compare_lines(out, measured))
        return 0
    policy_for = getattr(args, "policy_for", None)
    with unpacked(folder) as planned:
        watch = partial(Stages(Console(stderr=True), time.monotonic), "runs in virtual time")
        given = WhatIf(args.time_scale, args.limits)
        runs = simulate_plan(planned, out, _cost(args), policy_for, watch, given)
    took_s = time.monotonic() - began_s
    say(console, f"{out}: {len(runs)} runs in virtual time, {took_s:.1f} s")
    return 0


def _calibrate(args: Args, console: Console) -> int:
    sweep = read_sweep(args.file, with_rates=False)

    def watch(line: str) -> None:
        say(console, line)

    if args.virtual == (args.url is not None):
        raise BenchError("calibrate: give either --virtual or --url")
    if args.virtual:
        found = calibrate_virtual(sweep, _cost(args), watch)
    else:
        server = Server(args.url, args.model, args.key)
        found = calibrate_server(sweep, server, watch)
    write_json(args.out, found)
    for mix, rates in found["rates"].items():
        say(console, f"{mix}: " + ", ".join(f"{n} {v:g}/s" for n, v in rates.items()))
    say(console, f'{args.out}: name it as rates_file = "{args.out.name}" beside the sweep file')
    return 0


def _capacity(args: Args, console: Console) -> int:
    sweep = read_sweep(args.file, with_rates=False)
    plan, cost = preview(sweep), _cost(args)
    mixes = [args.mix] if args.mix else list(sweep.settings.drawn_mixes)
    told = [capacity_of(plan, args.cell, mix, cost) for mix in mixes]
    if args.json:
        console.file.write(canonical({"kind": "capacity", "ladders": told}).decode())
        return 0
    for one in told:
        console.print(capacity_table(one))
    say(console, "in virtual time with the step costs given: synthetic")
    return 0


def _add_plan(verbs: Any) -> None:
    said = "freeze a sweep: corpus, traces and the runs in their order"
    example = (
        "plan config/sweep.toml --out out/sweep\n"
        "  sluicegate bench plan config/prefix_reuse.toml --out out/reuse"
    )
    parser = add_verb(verbs, "plan", _plan, said, example)
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a sweep file (TOML)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where everything is written")
    parser.add_argument("--demo", action="store_true", help="the demonstration's plan instead")
    said = "write nothing; say what to expect of FILE or of a planned folder"
    parser.add_argument("--check", action="store_true", help=said)
    said = "made-up sweeps for the rule's error rates; 0 leaves them out (%(default)s)"
    parser.add_argument("--sweeps", type=int, default=100, metavar="N", help=said)
    parser.add_argument("--json", action="store_true", help="print the forecast as JSON")
    _add_step_model(parser)


def _add_step_model(parser: argparse.ArgumentParser) -> None:
    said = "step costs of the engines (default: one H200 with CUDA graphs)"
    parser.add_argument("--step-model", type=Path, metavar="FILE", help=said)


def _add_simulate(verbs: Any) -> None:
    said = "run a plan in virtual time, without engines, and write its records"
    parser = add_verb(verbs, "simulate", _simulate, said, "simulate out/sweep --out out/sweep/sim")
    parser.add_argument("plan", type=Path, metavar="DIR", help="a planned folder or its plan.json")
    parser.add_argument("--out", type=Path, metavar="DIR", help="results folder (DIR/sim)")
    said = "write nothing; compare the simulated records with measured ones of the same plan"
    parser.add_argument("--compare", type=Path, metavar="MEASURED", help=said)
    said = "of the real run that this is held against: the servers' own work is not scaled (1)"
    parser.add_argument("--time-scale", type=time_scale, default=1.0, metavar="N", help=said)
    said = "what if: admission limits as `bench limits` prints them, in place of the plan's"
    parser.add_argument("--limits", type=Path, metavar="FILE", help=said)
    _add_step_model(parser)


def _add_calibrate(verbs: Any) -> None:
    said = "find the sweep's rates on B0, by a closed loop at saturation"
    example = "calibrate config/sweep.toml --virtual --out config/rates.json"
    parser = add_verb(verbs, "calibrate", _calibrate, said, example)
    parser.add_argument("file", type=Path, metavar="FILE", help="a sweep file (TOML)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the rates (JSON)")
    parser.add_argument("--virtual", action="store_true", help="in virtual time")
    parser.add_argument("--url", help="a running B0, or a gateway that passes everything on to it")
    parser.add_argument("--model", default="simulated", help="for --url (%(default)s)")
    parser.add_argument("--key", help="API key for --url")
    _add_step_model(parser)


def _add_capacity(verbs: Any) -> None:
    said = "attainment and goodput against the offered rate, in virtual time, with the knee"
    parser = add_verb(verbs, "capacity", _capacity, said, "capacity config/sweep.toml --mix 80-20")
    parser.add_argument("file", type=Path, metavar="FILE", help="a sweep file (TOML)")
    parser.add_argument("--cell", default="B0", help="which engine settings (%(default)s)")
    parser.add_argument("--mix", help="which mix (all that have a rate of their own)")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    _add_step_model(parser)


def add_sweep_verbs(verbs: Any) -> None:
    """Add these verbs to `bench`."""
    for add in (_add_plan, _add_simulate, _add_calibrate, _add_capacity):
        add(verbs)
