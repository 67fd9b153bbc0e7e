"""Recomputes analysis, decision and report of a results folder from its records alone.

Every file names the digests of its inputs; reading follows those names and refuses a file that
is not the one that was named.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.analyse import analyse, analyse_run
from loadgen.decide import decide
from loadgen.files import file_digest, read_bytes, read_json, write_json
from loadgen.record import BenchError, canonical, decode_requests, digest, strict_json
from loadgen.report_file import report_page
from loadgen.trace import decode_trace

__all__ = ["analyse_folder", "conclude", "trace_path", "verify_folder"]

Json = dict[str, Any]


def trace_path(folder: Path, name: str) -> Path:
    """Return where the trace of this name lies."""
    return folder / f"trace-{name}.jsonl"


def _named(what: str, found: str, named: str) -> None:
    if found != named:
        raise BenchError(f"{what}: its sha256 is {found[:16]}, but {named[:16]} is named for it")


def _rows(path: Path, config_sha256: str) -> list[Json]:
    rows = [
        strict_json(line, f"{path} line {n}")
        for n, line in enumerate(read_bytes(path).splitlines(), start=1)
    ]
    if not rows or rows[0].get("kind") != "samples":
        raise BenchError(f"{path} line 1: not the header of a samples file")
    _named(f"{path}: config.json", config_sha256, rows[0]["config_sha256"])
    return rows[1:]


def _run_inputs(folder: Path, run: Mapping[str, Any], plan_sha256: str) -> Json:
    own = folder / "runs" / run["run_id"]
    config = read_json(own / "config.json")
    _named(f"{own}/config.json: plan.json", plan_sha256, config["plan_sha256"])
    _named(f"{own}/config.json: trace", run["trace_sha256"], config["trace_sha256"])
    return {
        f"{name.split('.')[0]}_sha256": file_digest(own / name)
        for name in ("config.json", "requests.jsonl", "samples.jsonl")
    }


def _analysed_run(
    folder: Path, run: Mapping[str, Any], plan: Mapping[str, Any], config_sha256: str
) -> Json:
    own = folder / "runs" / run["run_id"]
    path = own / "requests.jsonl"
    header, records = decode_requests(read_bytes(path), str(path))
    _named(f"{path}: config.json", config_sha256, header["config_sha256"])
    trace = trace_path(folder, run["trace"])
    data = read_bytes(trace)
    _named(str(trace), digest(data), run["trace_sha256"])
    planned = len(decode_trace(data, str(trace)))
    return analyse_run(run, plan, planned, records, _rows(own / "samples.jsonl", config_sha256))


def analyse_folder(folder: Path) -> Json:
    """Return the analysis of a folder, recomputed from plan, traces and records.

    Raises:
        BenchError: a file is missing, malformed, or not the one that was named.
    """
    plan, plan_sha256 = read_json(folder / "plan.json"), file_digest(folder / "plan.json")
    _named("corpus.jsonl", file_digest(folder / "corpus.jsonl"), plan["corpus_sha256"])
    runs = {r["run_id"]: _run_inputs(folder, r, plan_sha256) for r in plan["runs"]}
    inputs: Json = {"plan_sha256": plan_sha256, "runs": runs}
    predictions = folder / "predictions.json"
    if predictions.is_file():
        inputs["predictions_sha256"] = file_digest(predictions)
    analysed = [
        _analysed_run(folder, r, plan, runs[r["run_id"]]["config_sha256"]) for r in plan["runs"]
    ]
    analysis = analyse(plan, inputs, analysed)
    if predictions.is_file():
        analysis["predictions"] = read_json(predictions)["ways"]
    return analysis


def conclude(folder: Path) -> tuple[Json, Json]:
    """Write `analysis.json` and `decision.json`; returns both as they were written."""
    analysis = analyse_folder(folder)
    sha256 = write_json(folder / "analysis.json", analysis)
    write_json(folder / "decision.json", decide(analysis, sha256))
    return read_json(folder / "analysis.json"), read_json(folder / "decision.json")


def _differences(name: str, found: Any, made: Any) -> Iterator[str]:
    if isinstance(found, Mapping) and isinstance(made, Mapping):
        for key in sorted({*found, *made}):
            yield from _differences(f"{name}.{key}", found.get(key), made.get(key))
    elif _both_lists(found, made):
        for n, (one, other) in enumerate(zip(found, made, strict=True)):
            yield from _differences(f"{name}[{n}]", one, other)
    elif found != made:
        yield f"{name}: recorded {str(found)[:80]}, recomputed {str(made)[:80]}"


def _both_lists(found: Any, made: Any) -> bool:
    both = isinstance(found, Sequence) and isinstance(made, Sequence)
    return both and not isinstance(found, str) and len(found) == len(made)


def verify_folder(folder: Path) -> list[str]:
    """Return where recorded and recomputed analysis, decision or report differ; [] if nowhere."""
    try:
        analysis = analyse_folder(folder)
        recorded = read_json(folder / "analysis.json")
        decision = read_json(folder / "decision.json")
    except (BenchError, KeyError) as error:
        return [str(error)]
    data = canonical(analysis)
    made = strict_json(data, "analysis")
    expected = strict_json(canonical(decide(made, digest(data))), "decision")
    return [
        *_differences("analysis", recorded, made),
        *_differences("decision", decision, expected),
        *_report_differences(folder, made, expected),
    ]


def _report_differences(folder: Path, analysis: Json, decision: Json) -> list[str]:
    path = folder / "report.html"
    if not path.is_file():
        return []
    found, made = read_bytes(path), report_page(folder, analysis, decision)
    if found == made:
        return []
    differing = (n for n, (one, other) in enumerate(zip(found, made, strict=False)) if one != other)
    at = next(differing, min(len(found), len(made)))
    return [
        f"report.html: byte {at} is the first that differs from the page recomputed with the "
        "plotting library installed here"
    ]
