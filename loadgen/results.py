"""Recomputes analysis, decision and report of a results folder from its records alone.

Every file names the digests of its inputs; reading follows those names and refuses a file that
is not the one that was named. A sweep may be analysed while it runs: what is missing is listed.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.analyse import analyse, unit_of
from loadgen.decide import decide
from loadgen.facts import RunFacts
from loadgen.files import file_digest, read_bytes, read_json, write_bytes, write_json
from loadgen.record import BenchError, canonical, digest, strict_json
from loadgen.report_file import report_page
from loadgen.run_folder import Folder, named, require, trace_path
from loadgen.start_files import held_starts, uncovered_starts
from loadgen.sweep_analysis import Absent, analyse_sweep
from loadgen.sweep_inputs import FILE as INPUTS
from loadgen.sweep_inputs import planned_inputs

__all__ = [
    "TOPOLOGY_FILE",
    "analyse_folder",
    "analyse_one",
    "conclude",
    "decide_folder",
    "trace_path",
    "uncovered",
    "verify_folder",
]

Json = dict[str, Any]
TOPOLOGY_FILE = "topology-analysis.json"
CORPUS_MANIFEST = "corpus.manifest.json"


def _open(folder: Path) -> Folder:
    require(folder, "corpus.jsonl")
    plan, plan_sha256 = read_json(folder / "plan.json"), file_digest(folder / "plan.json")
    named("corpus.jsonl", file_digest(folder / "corpus.jsonl"), plan["corpus_sha256"])
    if (sha256 := plan.get("corpus_manifest_sha256")) is not None:
        named(CORPUS_MANIFEST, file_digest(folder / CORPUS_MANIFEST), sha256)
    found = Folder(folder, plan, plan_sha256)
    found.check_manifests()
    return found


def _demo(found: Folder) -> Json:
    runs = {r["run_id"]: found.inputs(r) for r in found.plan["runs"]}
    inputs: Json = {"plan_sha256": found.plan_sha256, "runs": runs}
    predictions = found.path / "predictions.json"
    if predictions.is_file():
        inputs["predictions_sha256"] = file_digest(predictions)
    analysis = analyse(
        found.plan, inputs, [found.reduced(r, runs[r["run_id"]]).row for r in found.plan["runs"]]
    )
    if predictions.is_file():
        analysis["predictions"] = read_json(predictions)["ways"]
    if attempts := [a for r in found.plan["runs"] for a in found.attempts(r)]:
        analysis["attempts"] = attempts
    return analysis


def _sweep(found: Folder) -> Json:
    runs: list[RunFacts] = []
    digests: Json = {}
    attempts: list[Json] = []
    excluded: dict[str, str] = {}
    for run in found.plan["runs"]:
        attempts += found.attempts(run)
        if (why := found.incompatible(run)) is not None:
            excluded[unit_of(run, found.plan["kind"])] = why
        elif found.whole(run):
            digests[run["run_id"]] = found.inputs(run)
            runs.append(found.reduced(run, digests[run["run_id"]]))
    inputs: Json = {
        "plan_sha256": found.plan_sha256,
        "corpus_sha256": found.plan["corpus_sha256"],
        "runs": digests,
    }
    if starts := held_starts(found.path):
        inputs["starts"] = starts
    return analyse_sweep(found.plan, inputs, runs, Absent(attempts, excluded))


def analyse_folder(folder: Path) -> Json:
    """Return the analysis of a folder, recomputed from plan, traces and records.

    Raises:
        BenchError: a file is malformed, or not the one that was named; or, in a demonstration,
            missing. What a sweep lacks is listed in its analysis.
    """
    found = _open(folder)
    return _demo(found) if found.plan["kind"] == "demo" else _sweep(found)


def analyse_one(folder: Path, run_id: str) -> Json:
    """Return what one run of the folder showed.

    Raises:
        BenchError: the plan has no such run, or its records are missing or malformed.
    """
    found = _open(folder)
    run = next((r for r in found.plan["runs"] if r["run_id"] == run_id), None)
    if run is None:
        raise BenchError(f"{folder}/plan.json: no run is named {run_id}")
    return found.reduced(run, found.inputs(run)).row


def _decided(folder: Path, analysis: Json, sha256: str) -> Json:
    path = folder / TOPOLOGY_FILE
    if not path.is_file():
        return decide(analysis, sha256)
    return decide(analysis, sha256, read_json(path), file_digest(path))


def decide_folder(folder: Path, topology: Path | None = None) -> Json:
    """Write `decision.json` from `analysis.json`, and return it as it was written.

    Args:
        folder: with the analysis.
        topology: a folder of topology runs; its analysis is kept beside the sweep's own, so that
            the decision can be verified from one folder.

    Raises:
        BenchError: an analysis is missing, or the two are under different contracts.
    """
    path = folder / "analysis.json"
    if topology is not None:
        data = read_bytes(topology / "analysis.json")
        own, other = read_json(path), strict_json(data, str(topology / "analysis.json"))
        decide(own, file_digest(path), other, digest(data))  # refused before anything is kept
        write_bytes(folder / TOPOLOGY_FILE, data)
    require(folder, "analysis.json")
    decision = _decided(folder, read_json(path), file_digest(path))
    write_json(folder / "decision.json", decision)
    return read_json(folder / "decision.json")


def conclude(folder: Path) -> tuple[Json, Json]:
    """Write `analysis.json` and `decision.json`; returns both as they were written."""
    write_json(folder / "analysis.json", analyse_folder(folder))
    return read_json(folder / "analysis.json"), decide_folder(folder)


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


def _compared(path: Path, data: bytes) -> list[str]:
    """Say where a file differs from the bytes that were recomputed for it."""
    name = path.name.split(".", maxsplit=1)[0]
    recorded, made = read_json(path), strict_json(data, name)
    if different := list(_differences(name, recorded, made)):
        return different
    return [] if read_bytes(path) == data else [f"{path.name}: same values, other bytes"]


def verify_folder(folder: Path) -> list[str]:
    """Return where recorded and recomputed analysis, decision or report differ; [] if nowhere.

    Raises:
        BenchError: there is nothing to verify yet; the message has the command to run first.
    """
    require(folder, "decision.json")
    try:
        data = canonical(analyse_folder(folder))
        made = strict_json(data, "analysis")
        decision = canonical(_decided(folder, made, digest(data)))
        return [
            *_compared(folder / "analysis.json", data),
            *_compared(folder / "decision.json", decision),
            *_inputs_differences(folder),
            *_report_differences(folder, made, strict_json(decision, "decision")),
        ]
    except BenchError as error:
        return [str(error)]
    except KeyError as error:
        return [f"{folder}: the key {error} is missing from one of its files"]


def _inputs_differences(folder: Path) -> list[str]:
    """Say which input the sweep did not begin with, where it kept what it began with."""
    path = folder / INPUTS
    began = read_json(path) if path.is_file() else {}
    made = planned_inputs(folder, read_json(folder / "plan.json")) if began else {}
    return [
        f"{INPUTS}: {name} is {began.get(name)}, but its sha256 is {sha256}"
        for name, sha256 in made.items()
        if began.get(name) != sha256
    ]


def uncovered(folder: Path) -> list[str]:
    """Return what of a folder no digest holds, each with the reason."""
    said = "no digests were kept of its logs"
    found = [f"starts/{name}: {said}" for name in uncovered_starts(folder)]
    plan = read_json(folder / "plan.json")
    if (folder / CORPUS_MANIFEST).is_file() and "corpus_manifest_sha256" not in plan:
        found.append(f"{CORPUS_MANIFEST}: the plan does not name its digest")
    return found


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
