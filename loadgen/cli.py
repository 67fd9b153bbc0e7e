"""The `bench` verbs: each reads files and writes files, and may be run alone.

Exit status: 0 done, 1 the answer is no (verify found a difference, a run was invalid), 2 usage or
bad input, 130 interrupted.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from loadgen.corpus import Shape, freeze_corpus, load_corpus
from loadgen.decide import decide
from loadgen.demo import DEMO_INTERVALS, DEMO_TRACE, freeze_demo, run_view
from loadgen.engine.flags import add_arguments
from loadgen.engine.textmodel import TextModel
from loadgen.files import file_digest, read_json, write_bytes, write_json
from loadgen.plan import default_cells, sweep_plan
from loadgen.record import BenchError
from loadgen.report_file import write_report
from loadgen.results import analyse_folder, trace_path, verify_folder
from loadgen.runs import EXTERNAL_IDENTITY, conduct, done_already, engine_identity
from loadgen.stack import Endpoint
from loadgen.tables import verdict_line
from loadgen.trace import KINDS, TraceSpec, build_trace, encode_trace, trace_manifest

__all__ = ["add_bench_parser", "run_bench"]

Args = argparse.Namespace
Verb = Callable[[Args, Console], int]
RUNNABLE = "demo"  # the one kind of plan that `run` carries out


def _shape(text: str) -> Shape:
    try:
        name, sizes = text.split("=")
        prompt, output, count = (int(n) for n in sizes.split(":"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected NAME=PROMPT_TOKENS:OUTPUT_TOKENS:COUNT"
        ) from error
    return Shape(name, prompt, output, count)


def _mix(text: str) -> tuple[tuple[str, float], ...]:
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return tuple((name, float(share)) for name, share in pairs)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=SHARE,NAME=SHARE") from error


def _corpus(args: Args, console: Console) -> int:
    model = TextModel(args.tokenizer, args.chat_template)
    pins = {
        "tokenizer_sha256": file_digest(model.tokenizer_path),
        "chat_template_sha256": file_digest(model.chat_template_path),
    }
    corpus = freeze_corpus(args.out / "corpus.jsonl", args.shape, args.seed, model, pins)
    console.print(
        f"{len(corpus.prompts)} prompts, sha256 {corpus.sha256}", highlight=False, soft_wrap=True
    )
    return 0


def _trace(args: Args, console: Console) -> int:
    corpus = load_corpus(args.folder / "corpus.jsonl")
    spec = TraceSpec(args.kind, args.seed, args.rate, args.mix, args.ramp, args.window)
    trace = build_trace(spec, corpus.by_class())
    path = trace_path(args.folder, args.name)
    manifest = {"name": args.name, **trace_manifest(spec, trace, corpus.sha256)}
    write_json(path.with_suffix(".manifest.json"), manifest)
    sha256 = write_bytes(path, encode_trace(trace))
    console.print(f"{len(trace)} arrivals, sha256 {sha256}", highlight=False, soft_wrap=True)
    return 0


def _plan(args: Args, console: Console) -> int:
    if args.kind == "demo":
        if (args.folder / "corpus.jsonl").exists() and not (args.folder / "plan.json").exists():
            raise BenchError(
                f"{args.folder}: holds a corpus of its own, and the demo's plan freezes another; "
                "choose an empty folder"
            )
        freeze_demo(args.folder, TextModel(), DEMO_TRACE, DEMO_INTERVALS)
    else:
        mixes, rates = ("short", "80-20", "50-50"), ("low", "near")
        plan = sweep_plan(default_cells(), mixes, rates, args.rounds, args.seed)
        write_json(args.folder / "plan.json", plan)
    runs = read_json(args.folder / "plan.json")["runs"]
    said = f"{args.folder / 'plan.json'}: {len(runs)} runs"
    if args.kind != RUNNABLE:
        said += f"; a {args.kind} plan cannot be run yet, only looked at"
    console.print(said, highlight=False, soft_wrap=True)
    return 0


def _external(args: Args, plan: Mapping[str, Any]) -> Endpoint | None:
    if args.url is None:
        return None
    keys = dict.fromkeys(plan["demands"], args.key) if args.key else {}
    told = {"external": args.url}
    return Endpoint(args.url, args.admin_url, tuple(args.engine_url), args.model, keys, told)


def _chosen(args: Args, plan: Mapping[str, Any]) -> list[Any]:
    planned = [r["run_id"] for r in plan["runs"]]
    if unknown := [name for name in args.run_id if name not in planned]:
        known = ", ".join(planned)
        raise BenchError(
            f"--run-id {unknown[0]}: not in {args.folder}/plan.json, which has {known}"
        )
    return [r for r in plan["runs"] if not args.run_id or r["run_id"] in args.run_id]


def _run(args: Args, console: Console) -> int:
    plan = read_json(args.folder / "plan.json")
    if plan["kind"] != RUNNABLE:
        raise BenchError(f"{args.folder}/plan.json: a {plan['kind']} plan cannot be run yet")
    runs = [r for r in _chosen(args, plan) if not (args.resume and done_already(args.folder, r))]
    external = _external(args, plan)
    view = run_view(console, len(runs))
    identity = EXTERNAL_IDENTITY if external else engine_identity(TextModel())
    asyncio.run(conduct(args.folder, runs, identity, view, external))
    return 0


def _analyse(args: Args, console: Console) -> int:
    sha256 = write_json(args.folder / "analysis.json", analyse_folder(args.folder))
    console.print(
        f"{args.folder / 'analysis.json'}: sha256 {sha256}", highlight=False, soft_wrap=True
    )
    return 0


def _decide(args: Args, console: Console) -> int:
    path = args.folder / "analysis.json"
    decision = decide(read_json(path), file_digest(path))
    write_json(args.folder / "decision.json", decision)
    if args.json:
        console.file.write(orjson.dumps(decision).decode() + "\n")
    else:
        console.print(verdict_line(decision), markup=False, highlight=False, soft_wrap=True)
    return 1 if decision["verdict"] == "invalid" else 0


def _report(args: Args, console: Console) -> int:
    console.print(str(write_report(args.folder)), highlight=False, soft_wrap=True)
    return 0


def _verify(args: Args, console: Console) -> int:
    differences = verify_folder(args.folder)
    for line in differences or ["identical"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 1 if differences else 0


def _verb(verbs: Any, name: str, verb: Verb, said: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=said,
        description=said,
        epilog=f"example:\n  sluicegate bench {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(bench=verb)
    return parser


def _add_corpus(verbs: Any) -> None:
    said = "freeze prompts of exact token counts"
    example = "corpus --out out/x --class short=512:128:500 --class long=8192:128:120"
    parser = _verb(verbs, "corpus", _corpus, said, example)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--class", dest="shape", type=_shape, action="append", required=True)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json (default: the simulator's)")
    parser.add_argument("--chat-template", type=Path, help="Jinja file (default: the simulator's)")


def _add_trace(verbs: Any) -> None:
    said = "draw open-loop arrivals from a seed"
    example = "trace out/x --name mixed --rate 21.8 --mix short=0.8,long=0.2 --seed 20"
    parser = _verb(verbs, "trace", _trace, said, example)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--name", default="mixed")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--rate", type=float, required=True, help="arrivals per second")
    parser.add_argument("--mix", type=_mix, required=True, help="share by count of each class")
    parser.add_argument("--ramp", type=float, default=3.0, help="seconds before the window")
    parser.add_argument("--window", type=float, default=25.0, help="seconds observed")
    parser.add_argument("--seed", type=int, required=True)


def _add_plan(verbs: Any) -> None:
    said = "set out the runs: the demonstration's ways, or a sweep that cannot be run yet"
    parser = _verb(verbs, "plan", _plan, said, "plan out/sweep --kind sweep --rounds 3 --seed 1")
    parser.add_argument("folder", type=Path, metavar="DIR")
    kinds, said = ("demo", "sweep"), "a sweep is written as data: `run` refuses it (%(default)s)"
    parser.add_argument("--kind", choices=kinds, default=RUNNABLE, help=said)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)


def _simulated_model() -> str:
    engine = argparse.ArgumentParser(add_help=False)
    add_arguments(engine)
    return str(engine.get_default("served_model_name"))


def _add_run(verbs: Any) -> None:
    said = "replay the plan's runs, on stacks of its own or at a running server"
    example = (
        "run out/x --resume\n  sluicegate bench run out/x --url http://127.0.0.1:8000 --model m"
    )
    parser = _verb(verbs, "run", _run, said, example)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--run-id", action="append", default=[], help="only this run (repeatable)")
    parser.add_argument("--resume", action="store_true", help="skip runs whose records are there")
    parser.add_argument("--url", help="a running gateway or engine")
    parser.add_argument("--model", default=_simulated_model(), help="for --url (%(default)s)")
    parser.add_argument("--key", help="API key for --url")
    parser.add_argument("--admin-url", help="where the gateway's /metrics are")
    parser.add_argument("--engine-url", action="append", default=[], help="engine to scrape")


def add_bench_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `bench` and its verbs; the parsed arguments go to `run_bench`."""
    bench: argparse.ArgumentParser = subparsers.add_parser(
        "bench", help="freeze, replay, measure and decide", description=__doc__
    )
    verbs = bench.add_subparsers(dest="verb", required=True, metavar="VERB")
    for add in (_add_corpus, _add_trace, _add_plan, _add_run):
        add(verbs)
    folder_verbs = (
        ("analyse", _analyse, "recompute analysis.json from the records"),
        ("decide", _decide, "write decision.json from analysis.json"),
        ("report", _report, "write report.html"),
        ("verify", _verify, "recompute analysis, decision and report; say where they differ"),
    )
    for name, verb, said in folder_verbs:
        parser = _verb(verbs, name, verb, said, f"{name} out/demo")
        parser.add_argument("folder", type=Path, metavar="DIR")
        if name == "decide":
            parser.add_argument("--json", action="store_true", help="print the decision as JSON")
    return bench


def run_bench(args: Args, console: Console | None = None) -> int:
    """Carry out a parsed `bench` verb; bad input is said in one line, with exit status 2."""
    console = console or Console()
    try:
        return int(args.bench(args, console))
    except (BenchError, ValueError, FileNotFoundError) as error:
        Console(file=sys.stderr).print(
            f"error: {error}", markup=False, highlight=False, soft_wrap=True
        )
        return 2
    except KeyboardInterrupt:
        return 130
