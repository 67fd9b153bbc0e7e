"""The `bench` verbs: each reads files and writes files, and may be run alone.

Exit status: 0 done, 1 the answer is no (verify found a difference, a run was invalid), 2 usage or
bad input, 130 interrupted.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from loadgen.corpus import Shape, freeze_corpus, load_corpus
from loadgen.decide import sound
from loadgen.engine.textmodel import TextModel
from loadgen.evidence import unpacked
from loadgen.files import file_digest, read_json, write_bytes, write_json
from loadgen.record import BenchError, canonical
from loadgen.report_cli import add_report_verbs
from loadgen.results import (
    analyse_folder,
    analyse_one,
    decide_folder,
    trace_path,
    uncovered,
    verify_folder,
)
from loadgen.roofline_cli import add_roofline
from loadgen.run_cli import add_run_verbs
from loadgen.study_cli import add_study_verbs
from loadgen.sweep_cli import add_sweep_verbs
from loadgen.sweep_tables import conclusion_lines
from loadgen.trace import KINDS, TraceSpec, build_trace, encode_trace, trace_manifest
from loadgen.verb import Args, add_verb, say

__all__ = ["add_bench_parser", "run_bench"]


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


def _analyse(args: Args, console: Console) -> int:
    if args.run_id is not None:
        row = analyse_one(args.folder, args.run_id)
        console.file.write(canonical(row).decode())
        return 0
    analysis = analyse_folder(args.folder)
    sha256 = write_json(args.folder / "analysis.json", analysis)
    said = f"{args.folder / 'analysis.json'}: sha256 {sha256}"
    if missing := analysis.get("missing", ()):
        said += (
            f"; {len(missing)} of {len(read_json(args.folder / 'plan.json')['runs'])} runs missing"
        )
    console.print(said, highlight=False, soft_wrap=True)
    return 0


def _decide(args: Args, console: Console) -> int:
    decision = decide_folder(args.folder, args.topology)
    if args.json:
        console.file.write(orjson.dumps(decision).decode() + "\n")
    else:
        analysis = read_json(args.folder / "analysis.json")
        say(console, *conclusion_lines(analysis, decision))
    return 0 if sound(decision) else 1


def _verify(args: Args, console: Console) -> int:
    with unpacked(args.folder) as folder:
        differences, not_covered = verify_folder(folder), uncovered(folder)
    say(console, *(differences or ["identical"]))
    say(console, *(f"not covered: {said}" for said in not_covered))
    return 1 if differences else 0


def _add_corpus(verbs: Any) -> None:
    said = "freeze prompts of exact token counts"
    example = "corpus --out out/x --class short=512:128:500 --class long=8192:128:120"
    parser = add_verb(verbs, "corpus", _corpus, said, example)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="gets corpus.jsonl")
    parser.add_argument(
        "--class",
        dest="shape",
        type=_shape,
        action="append",
        required=True,
        metavar="NAME=PROMPT:OUTPUT:COUNT",
        help="tokens of a prompt and its answer, and how many prompts; once for each class",
    )
    parser.add_argument("--seed", type=int, default=11, help="of the prompts (%(default)s)")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json (default: the simulator's)")
    parser.add_argument("--chat-template", type=Path, help="Jinja file (default: the simulator's)")


def _add_trace(verbs: Any) -> None:
    said = "draw open-loop arrivals from a seed"
    example = "trace out/x --name mixed --rate 21.8 --mix short=0.8,long=0.2 --seed 20"
    parser = add_verb(verbs, "trace", _trace, said, example)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder with a corpus")
    parser.add_argument("--name", default="mixed", help="of the trace's files (%(default)s)")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0], help="of arrivals (%(default)s)")
    parser.add_argument("--rate", type=float, required=True, help="arrivals per second")
    parser.add_argument("--mix", type=_mix, required=True, help="share by count of each class")
    parser.add_argument("--ramp", type=float, default=3.0, help="seconds before the window (3)")
    parser.add_argument("--window", type=float, default=25.0, help="seconds observed (25)")
    parser.add_argument("--seed", type=int, required=True, help="of the arrivals")


_EXAMPLES = """examples:
  sluicegate bench plan config/sweep.toml --check      # what to expect, before anything runs
  sluicegate bench all config/sweep.toml --out out/sweep --time-scale 3
  sluicegate bench report out/sweep
"""


def add_bench_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `bench` and its verbs; the parsed arguments go to `run_bench`."""
    bench: argparse.ArgumentParser = subparsers.add_parser(
        "bench",
        help="freeze, replay, measure and decide",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = bench.add_subparsers(dest="verb", required=True, metavar="VERB")
    groups = (add_sweep_verbs, add_run_verbs, add_study_verbs, add_report_verbs, add_roofline)
    for add in (_add_corpus, _add_trace, *groups):
        add(verbs)
    folder_verbs = (
        ("analyse", _analyse, "recompute analysis.json from the records"),
        ("decide", _decide, "write decision.json from analysis.json"),
        ("verify", _verify, "recompute analysis, decision and report; say where they differ"),
    )
    for name, verb, said in folder_verbs:
        parser = add_verb(verbs, name, verb, said, f"{name} out/demo")
        parser.add_argument(
            "folder", type=Path, metavar="DIR", help="a planned folder with its runs"
        )
        if name == "decide":
            parser.add_argument("--json", action="store_true", help="print the decision as JSON")
            equal = "a folder of topology runs, analysed, on equal hardware"
            parser.add_argument("--topology", type=Path, metavar="DIR", help=equal)
        elif name == "analyse":
            parser.add_argument("--run-id", help="print this run's figures; write nothing")
    return bench


def run_bench(args: Args, console: Console | None = None) -> int:
    """Carry out a parsed `bench` verb; bad input is said in one line, with exit status 2."""
    console = console or Console()
    try:
        return int(args.bench(args, console))
    except (BenchError, ValueError, FileNotFoundError) as error:
        say(Console(file=sys.stderr), f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
