"""The verbs that carry a plan out: run, all, capture.

Exit status of `run`: 0 every run is there and the client kept up, 1 some are left out or invalid,
2 bad input, 130 interrupted; finished runs stay and `--resume` goes on.
"""

import argparse
import asyncio
import signal
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from loadgen.baseline import capture_baseline
from loadgen.decide import sound
from loadgen.demo import run_view
from loadgen.engine.flags import add_arguments
from loadgen.engine.textmodel import TextModel
from loadgen.files import read_bytes, read_json
from loadgen.freeze import freeze_sweep
from loadgen.identity import EXTERNAL_IDENTITY, engine_identity
from loadgen.record import BenchError, strict_json
from loadgen.report_file import write_report
from loadgen.results import conclude
from loadgen.runs import conduct, done_already
from loadgen.stack import Endpoint
from loadgen.staging import finished
from loadgen.sweep import conduct_sweep
from loadgen.sweep_file import read_sweep
from loadgen.sweep_tables import conclusion_lines
from loadgen.sweep_view import JsonView, SweepView
from loadgen.verb import Args, add_verb, say, time_scale

__all__ = ["add_run_verbs"]

Json = Mapping[str, Any]
T = TypeVar("T")


def _until_done(work: Coroutine[Any, Any, T]) -> T:
    """Run it; a request to end from outside is the same as Ctrl-C."""

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, signal.raise_signal, signal.SIGINT)
        return await work

    return asyncio.run(guarded())


def _external(args: Args, plan: Json) -> Endpoint | None:
    if args.url is None:
        return None
    keys = dict.fromkeys(plan["demands"], args.key) if args.key else {}
    told = {"external": args.url}
    return Endpoint(args.url, args.admin_url, tuple(args.engine_url), args.model, keys, told)


def _chosen(args: Args, plan: Json) -> list[Json]:
    planned = [r["run_id"] for r in plan["runs"]]
    if unknown := [name for name in args.run_id if name not in planned]:
        known = ", ".join(planned)
        raise BenchError(
            f"--run-id {unknown[0]}: not in {args.folder}/plan.json, which has {known}"
        )
    return [r for r in plan["runs"] if not args.run_id or r["run_id"] in args.run_id]


def _run_demo(args: Args, plan: Json, console: Console) -> int:
    runs = [r for r in _chosen(args, plan) if not (args.resume and done_already(args.folder, r))]
    external = _external(args, plan)
    view = run_view(console, len(runs))
    identity = EXTERNAL_IDENTITY if external else engine_identity(TextModel())
    _until_done(conduct(args.folder, runs, identity, view, external))
    return 0


def _sweep(folder: Path, runs: Sequence[Json], args: Args, console: Console) -> int:
    view = JsonView(console) if args.json else SweepView(console)
    try:
        with view:
            work = conduct_sweep(
                folder, runs, args.time_scale, view.tell, rerun_faulty=args.rerun_faulty
            )
            outcome = _until_done(work)
    except KeyboardInterrupt:
        done = sum(finished(folder, run["run_id"]) for run in runs)
        view.tell({"event": "interrupted", "finished": done, "of": len(runs)})
        if not args.json:
            say(console, f"go on with: sluicegate bench run {folder} --resume")
        raise
    view.tell({"event": "finished", "finished": outcome.finished, "of": outcome.of})
    if not args.json:
        say(console, *(f"left out: {line}" for line in outcome.left_out))
    return 0 if outcome.finished == outcome.of and not outcome.left_out else 1


def _run(args: Args, console: Console) -> int:
    plan = read_json(args.folder / "plan.json")
    if plan["kind"] == "demo":
        if args.rerun_faulty:
            raise BenchError("--rerun-faulty: a demonstration is measured anew without --resume")
        return _run_demo(args, plan, console)
    if args.url is not None:
        raise BenchError('--url: set launcher kind = "external" in the sweep file instead')
    runs = _chosen(args, plan)
    done = sum(finished(args.folder, run["run_id"]) for run in runs)
    if done and not (args.resume or args.rerun_faulty):
        raise BenchError(f"{args.folder}: {done} runs are finished; add --resume to go on")
    return _sweep(args.folder, runs, args, console)


def _changed(before: Json, now: Json) -> list[str]:
    return [k for k in sorted({*before, *now}) if before.get(k) != now.get(k)]


def _planned(args: Args, console: Console) -> Json:
    """Plan, or hold the plan that is there to the sweep file.

    Raises:
        BenchError: the file has changed since; what differs is named.
    """
    sweep, path = read_sweep(args.file), args.out / "plan.json"
    if not path.is_file():
        say(console, "freezing corpus and traces")
        return freeze_sweep(sweep, args.out)
    with tempfile.TemporaryDirectory(prefix="sluicegate-") as name:
        folder = Path(name)
        for kept in ("corpus.jsonl", "corpus.manifest.json"):
            if (args.out / kept).is_file():
                (folder / kept).write_bytes(read_bytes(args.out / kept))
        freeze_sweep(sweep, folder)
        now, before = read_bytes(folder / "plan.json"), read_bytes(path)
    if now != before:
        differing = _changed(strict_json(before, str(path)), strict_json(now, "plan"))
        raise BenchError(
            f"{args.file}: {', '.join(differing)} changed since {path} was made; put it back, or "
            "choose a new folder"
        )
    return read_json(path)


def _all(args: Args, console: Console) -> int:
    quiet = Console(stderr=True) if args.json else console
    plan = _planned(args, quiet)
    status = _sweep(args.out, plan["runs"], args, console)
    concluded = conclude(args.out)
    report = write_report(args.out)
    say(quiet, *conclusion_lines(*concluded), f"report: {report}")
    return status if sound(concluded[1]) else 1


def _capture(args: Args, console: Console) -> int:
    work = capture_baseline(args.engine_url, args.out, args.start_log, args.approved_by)
    found = asyncio.run(work)
    say(console, f"{args.out}: {len(found['args'])} arguments, {found['captured_from']}")
    return 0


def _simulated_model() -> str:
    engine = argparse.ArgumentParser(add_help=False)
    add_arguments(engine)
    return str(engine.get_default("served_model_name"))


def _add_pace(parser: argparse.ArgumentParser) -> None:
    said = "measure again what the client spoilt; those attempts stay, and stay in the report"
    parser.add_argument("--rerun-faulty", action="store_true", help=said)
    said = "simulated engines only: recorded seconds in a real one (at first 1, then as begun)"
    parser.add_argument("--time-scale", type=time_scale, metavar="S", help=said)
    parser.add_argument("--json", action="store_true", help="print every event as a JSON line")


def _add_run(verbs: Any) -> None:
    said = "carry out the plan's runs, on servers that its launcher starts"
    example = "run out/x --resume\n  sluicegate bench run out/x --resume --json | tee events.jsonl"
    parser = add_verb(verbs, "run", _run, said, example)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a planned folder")
    parser.add_argument("--run-id", action="append", default=[], help="only this run (repeatable)")
    parser.add_argument("--resume", action="store_true", help="go on: finished runs stay")
    _add_pace(parser)
    parser.add_argument("--url", help="a demonstration's plan at a running gateway or engine")
    parser.add_argument("--model", default=_simulated_model(), help="for --url (%(default)s)")
    parser.add_argument("--key", help="API key for --url")
    parser.add_argument("--admin-url", help="where the gateway's /metrics are, for --url")
    parser.add_argument("--engine-url", action="append", default=[], help="engine to scrape")


def _add_all(verbs: Any) -> None:
    said = "plan, run, analyse, decide and report; goes on where it was left"
    parser = add_verb(
        verbs, "all", _all, said, "all config/sweep.toml --out out/sweep --time-scale 3"
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a sweep file (TOML)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for everything")
    _add_pace(parser)


def _add_capture(verbs: Any) -> None:
    said = "write a running engine's arguments as the baseline B0"
    example = "capture --engine-url http://127.0.0.1:8100 --out b0.json --approved-by 'J. Doe'"
    parser = add_verb(verbs, "capture", _capture, said, example)
    parser.add_argument("--engine-url", required=True, metavar="URL", help="the running engine")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the baseline")
    parser.add_argument("--start-log", type=Path, metavar="FILE", help="its start-up log")
    parser.add_argument("--approved-by", metavar="NAME", help="who stands for this baseline")


def add_run_verbs(verbs: Any) -> None:
    """Add these verbs to `bench`."""
    for add in (_add_run, _add_all, _add_capture):
        add(verbs)
