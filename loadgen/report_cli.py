"""The verbs that show and hand on results: report, timeline, compare, gate, bundle, pack, export.

Exit status: 0 done or yes, 1 the answer is no (the gate stays shut, the results differ, a bundle
is not whole), 2 bad input.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from loadgen.bundle import check_bundle, write_bundle
from loadgen.compare_runs import compare_results, lopsided
from loadgen.decide import decide
from loadgen.evidence import pack, unpack
from loadgen.files import file_digest, read_json, write_bytes
from loadgen.formats_out import FORMATS, export
from loadgen.gate import VERDICTS, GateResult, junit, pass_gate
from loadgen.record import BenchError, canonical, digest, strict_json
from loadgen.report_file import (
    decided,
    keep_beside,
    plotly_source,
    read_run,
    report_page,
    write_report,
)
from loadgen.results import analyse_folder
from loadgen.timeline import Line, sparkline, timeline, timeline_json, timeline_page
from loadgen.verb import Args, add_verb, say

__all__ = ["add_report_verbs"]

Json = Mapping[str, Any]
PARTIAL = "report.partial.html"
NARROWEST = 20  # columns of bars, however narrow the terminal
SHOWN = 40  # differences printed; --json has all


def _print_json(console: Console, value: Any) -> None:
    console.file.write(orjson.dumps(value).decode() + "\n")


def _partial(folder: Path) -> Path:
    data = canonical(analyse_folder(folder))
    analysis = strict_json(data, "analysis")
    if not analysis["runs"]:
        raise BenchError(f"{folder}: no run has ended yet: there is nothing to report")
    decision = strict_json(canonical(decide(analysis, digest(data))), "decision")
    path = folder / PARTIAL
    write_bytes(path, report_page(folder, analysis, decision))
    return path


def _report(args: Args, console: Console) -> int:
    for name in ("arms", "expected"):
        if (other := getattr(args, name)) is not None:
            keep_beside(args.folder, name, other)
    path = _partial(args.folder) if args.partial else write_report(args.folder)
    say(console, str(path))
    return 0


def _span(lines: Sequence[Line]) -> range:
    seconds = [s for line in lines for s in line.values]
    return range(min(seconds, default=0), max(seconds, default=0) + 1)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _timeline_table(run_id: str, lines: Sequence[Line], width: int) -> Table:
    seconds = _span(lines)
    names = [f"{line.title}, {line.unit}" for line in lines]
    room = width - max(map(len, names), default=0) - 26
    columns = max(NARROWEST, min(room, len(seconds)))
    step = -(-len(seconds) // columns)
    title = f"{run_id}: seconds {seconds[0]} to {seconds[-1]}, a bar is {step} s"
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("what")
    table.add_column("class")
    table.add_column("largest", justify="right")
    table.add_column("", no_wrap=True)
    for name, line in zip(names, lines, strict=True):
        top = _number(max(line.values.values()))
        table.add_row(name, line.size_class, top, sparkline(line.values, seconds, columns))
    return table


def _timeline(args: Args, console: Console) -> int:
    own = args.folder / "runs" / args.run_id
    if not own.is_dir():
        raise BenchError(f"{own}: there is no such run")
    lines = [line for line in timeline(*read_run(args.folder, args.run_id)) if line.values]
    if args.json:
        _print_json(console, timeline_json(args.run_id, lines))
    else:
        console.print(_timeline_table(args.run_id, lines, console.width))
    if args.html:
        sha256 = file_digest(own / "requests.jsonl")
        page = timeline_page(args.run_id, lines, sha256, plotly_source())
        write_bytes(args.html, page.encode())
    return 0


def _traces(folder: Path) -> set[str]:
    return {run["trace_sha256"] for run in read_json(folder / "plan.json")["runs"]}


def _place(row: Json) -> str:
    return " ".join(str(row[k]) for k in ("cell_id", "size_class", "mix", "rate") if row[k])


def _lopsided_line(row: Json) -> str:
    a, b = ("no number" if row[k] is None else f"{row[k]:.4g}" for k in ("a", "b"))
    said = f"{row['measure']} {a} in A, {b} in B"
    return f"{_place(row)}: {said}: can't be tested, look at what failed"


def _difference_line(row: Json) -> str:
    if "ratio" in row:
        change = f"×{row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
    else:
        change = f"{row['difference']:+.4g} [{row['low']:+.4g}, {row['high']:+.4g}]"
    return (
        f"{_place(row)}: {row['measure']} {row['a']:.4g} in A, {row['b']:.4g} in B: {change}, "
        f"p {row['p_holm']:.2g}"
    )


def _comparison_lines(found: Json) -> list[str]:
    verdicts, differing = found["verdicts"], [r for r in found["rows"] if r.get("differs")]
    lines = [f"contract: {said}" for said in found["contracts"]] or ["same contracts"]
    lines.append(f"verdicts: {verdicts['a']} in A, {verdicts['b']} in B")
    lines += found["only_in_one"][:SHOWN]
    how = "same arrivals, rounds paired" if found["same_arrivals"] else "different arrivals"
    lines.append(
        f"{found['differing']} of {found['tested']} comparisons differ beyond chance ({how}; 95 % "
        "intervals, Holm over all)"
    )
    lines += [_difference_line(row) for row in differing[:SHOWN]]
    if len(differing) > SHOWN:
        lines.append(f"and {len(differing) - SHOWN} more; --json has all")
    lines += [_lopsided_line(row) for row in lopsided(found["rows"])[:SHOWN]]
    if not found["tested"]:
        lines.append("nothing could be tested: that takes two rounds of each stratum in both")
    return lines


def _compare(args: Args, console: Console) -> int:
    same = _traces(args.a) == _traces(args.b)
    found = compare_results(decided(args.a), decided(args.b), same_arrivals=same)
    if args.json:
        _print_json(console, found)
    else:
        say(console, *_comparison_lines(found))
    if found["differ"]:
        return 1
    # Neither alike nor different: a script must not take it for the same.
    return 0 if found["same"] and found["tested"] else 2


def _accepted(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if unknown := [word for word in words if word not in VERDICTS]:
        known = ", ".join(VERDICTS)
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no verdict; there are {known}")
    return words


def _gate_lines(result: GateResult, *, synthetic: bool) -> list[str]:
    marks = {"passed": "pass", "failed": "FAIL", "skipped": "skip"}
    lines = [
        f"{marks[c.state]}  {c.group}: {c.name}{f': {c.why}' if c.why else ''}"
        for c in result.checks
    ]
    stamp = " [synthetic: simulated engines, not deployable]" if synthetic else ""
    return [*lines, f"gate {'open' if result.passed else 'shut'}: {result.verdict}{stamp}"]


def _gate(args: Args, console: Console) -> int:
    analysis, decision = decided(args.folder)
    stated = decision["inputs"]["analysis_sha256"]
    if stated != file_digest(args.folder / "analysis.json"):
        raise BenchError(f"{args.folder}/decision.json rests on another analysis.json: decide anew")
    result = pass_gate(analysis, decision, args.accept, deployable=args.deployable)
    if args.junit:
        write_bytes(args.junit, junit(result))
    if args.json:
        _print_json(console, result.as_json())
    else:
        say(console, *_gate_lines(result, synthetic=decision["synthetic"]))
    return 0 if result.passed else 1


def _bundle(args: Args, console: Console) -> int:
    if args.check:
        wrong = check_bundle(args.path)
        if args.json:
            _print_json(console, {"kind": "bundle-check", "whole": not wrong, "wrong": wrong})
        else:
            say(console, *(wrong or ["whole, and the decision follows from the analysis"]))
        return 1 if wrong else 0
    if args.out is None:
        raise BenchError("bundle: --out FILE.tar.gz is missing")
    sha256 = write_bundle(args.path, args.out, report=not args.no_report)
    if args.json:
        _print_json(console, {"kind": "bundle", "path": str(args.out), "sha256": sha256})
    else:
        say(console, f"{args.out}: sha256 {sha256}")
    return 0


def _pack(args: Args, console: Console) -> int:
    size = pack(args.folder, args.out)
    say(console, f"{args.out}: {size / 1e6:.1f} MB; sluicegate bench verify {args.out}")
    return 0


def _unpack(args: Args, console: Console) -> int:
    unpack(args.folder, args.out)
    say(console, str(args.out))
    return 0


def _export(args: Args, console: Console) -> int:
    paths = export(args.folder, args.format, args.out or args.folder / "exports" / args.format)
    if args.json:
        _print_json(console, {"kind": "exported", "files": [str(p) for p in paths]})
    else:
        say(console, f"{len(paths)} files in {paths[0].parent}")
    return 0


def _add_report(verbs: Any) -> None:
    said = "write report.html: verdict, evidence, how to reproduce; one file, offline"
    parser = add_verb(verbs, "report", _report, said, "report out/sweep")
    parser.add_argument("folder", type=Path, metavar="DIR", help="an analysed folder, or a run's")
    said = f"while runs are missing: analyse what is there, write {PARTIAL}"
    parser.add_argument("--partial", action="store_true", help=said)
    said = "show policy arms, an analysed folder of such runs"
    parser.add_argument("--arms", type=Path, metavar="DIR", help=said)
    said = "show what was expected: this plan in virtual time, simulated and analysed"
    parser.add_argument("--expected", type=Path, metavar="DIR", help=said)


def _add_timeline(verbs: Any) -> None:
    said = "show one run second by second"
    parser = add_verb(verbs, "timeline", _timeline, said, "timeline out/sweep r1-C3-80-20-near")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder of runs")
    parser.add_argument("run_id", metavar="RUN_ID", help="which of them")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write figures, too")
    parser.add_argument("--json", action="store_true", help="print JSON")


_COMPARE = """compare out/monday out/tuesday
  sluicegate bench compare out/monday out/tuesday --json | jq '.rows[] | select(.differs)'

exit status:
  0  they do not differ
  1  they do, or their contracts, verdicts, cells or strata do
  2  bad input, too few rounds to test anything, or a p95 that one of them alone has
"""


def _add_compare(verbs: Any) -> None:
    said = "say whether two results differ beyond chance"
    parser = add_verb(verbs, "compare", _compare, said, _COMPARE)
    parser.add_argument("a", type=Path, metavar="A", help="a decided results folder")
    parser.add_argument("b", type=Path, metavar="B", help="another")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_gate(verbs: Any) -> None:
    said = "pass or fail a pipeline by the verdict and the contract of what would serve"
    parser = add_verb(verbs, "gate", _gate, said, "gate out/sweep --junit gate.xml")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a decided folder")
    known = ", ".join(VERDICTS)
    parser.add_argument(
        "--accept",
        type=_accepted,
        default=["retain", "retune"],
        metavar="VERDICTS",
        help=f"comma-separated, of {known} (retain,retune)",
    )
    parser.add_argument("--deployable", action="store_true", help="fail what may not be deployed")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_bundle(verbs: Any) -> None:
    said = "pack the evidence for a review into one file, without prompts and secrets; or check one"
    example = (
        "bundle out/sweep --out evidence.tar.gz\n  sluicegate bench bundle --check evidence.tar.gz"
    )
    parser = add_verb(verbs, "bundle", _bundle, said, example)
    parser.add_argument("path", type=Path, metavar="DIR", help="decided; with --check, the bundle")
    parser.add_argument("--out", type=Path, metavar="FILE.tar.gz", help="(DIR.tar.gz)")
    parser.add_argument("--check", action="store_true", help="check digests and the decision")
    parser.add_argument("--no-report", action="store_true", help="leave report.html out")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_pack(verbs: Any) -> None:
    said = "pack a decided folder small enough to be kept beside the code; bench verify reads it"
    example = "pack out/sweep --out deploy/evidence/my-sweep"
    parser = add_verb(verbs, "pack", _pack, said, example)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a decided folder")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="gets the evidence")
    said = "make a results folder of packed evidence again"
    example = "unpack deploy/evidence/my-sweep --out out/my-sweep"
    parser = add_verb(verbs, "unpack", _unpack, said, example)
    parser.add_argument("folder", type=Path, metavar="DIR", help="packed evidence")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="must not be there")


def _add_export(verbs: Any) -> None:
    said = "write results for other tools: vLLM's result files, CSV, flat JSON"
    parser = add_verb(verbs, "export", _export, said, "export out/sweep --format csv")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder of runs")
    parser.add_argument("--format", choices=list(FORMATS), required=True, help="of the files")
    parser.add_argument("--out", type=Path, metavar="DIR", help="(DIR/exports/FORMAT)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_report_verbs(verbs: Any) -> None:
    """Add these verbs to `bench`."""
    shown = (_add_report, _add_timeline, _add_compare, _add_gate)
    for add in (*shown, _add_bundle, _add_pack, _add_export):
        add(verbs)
