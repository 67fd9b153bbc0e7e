"""Writes the report of a results folder: records and digests in, one page out."""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.curves import RunCurves, join_curves, run_curves
from loadgen.files import read_bytes, read_json, write_bytes
from loadgen.record import BenchError, RequestRecord, decode_requests, strict_json
from loadgen.report import Evidence, render_report
from loadgen.run_folder import require
from loadgen.sweep_report import SweepEvidence, render_sweep

__all__ = ["decided", "keep_beside", "plotly_source", "read_run", "report_page", "write_report"]

Json = Mapping[str, Any]
# What a run was made with, for a reader: names of the configuration's fields and their words.
IDENTITY = {
    "hardware_id": "hardware",
    "image_digest": "engine image or sources, SHA-256",
    "model_revision": "model revision",
    "tokenizer_revision": "tokenizer revision",
    "engine_version": "engine version",
    "chat_template_sha256": "chat template, SHA-256",
    "generation_config_sha256": "generation configuration, SHA-256",
    "precision": "precision",
    "parallelism": "parallelism",
    "gateway_config_digest": "gateway configuration, SHA-256",
    "effective_source": "effective arguments confirmed by",
    "time_scale": "time scale",
}
MANY = 4


def plotly_source() -> str:
    """Return the plotting library's source, from the installed package.

    Raises:
        BenchError: the package is not installed.
    """
    spec = importlib.util.find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise BenchError("report: the package plotly is not installed (extra `bench`)")
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return read_bytes(path).decode("utf-8")


def read_run(folder: Path, run_id: str) -> tuple[Sequence[RequestRecord], Sequence[Json]]:
    """Return a run's records and the rows of its seconds.

    Raises:
        BenchError: a file is missing or malformed.
    """
    own = folder / "runs" / run_id
    path = own / "requests.jsonl"
    _, records = decode_requests(read_bytes(path), str(path))
    name = str(own / "samples.jsonl")
    rows = [strict_json(line, name) for line in read_bytes(own / "samples.jsonl").splitlines()]
    return records, rows[1:]


def _evidence(folder: Path, analysis: Json) -> Evidence:
    return [(run["label"], *read_run(folder, run["run_id"])) for run in analysis["runs"]]


def _runs(folder: Path, analysis: Json) -> Iterator[RunCurves]:
    last = analysis["look"]["rounds"]
    for run in analysis["runs"]:
        if run["valid"] and run["repeat"] <= last:
            yield run_curves(run, *read_run(folder, run["run_id"]))


def _identity(folder: Path, analysis: Json) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    for run in analysis["runs"]:
        config = read_json(folder / "runs" / run["run_id"] / "config.json")
        for key, word in IDENTITY.items():
            if key in config:
                found.setdefault(word, {})[str(config[key])] = None
    return {
        word: [*list(values)[:MANY], *([f"and {len(values) - MANY} more"] * (len(values) > MANY))]
        for word, values in found.items()
    }


def _kept(folder: Path, name: str) -> Json | None:
    """An analysis that is kept beside the sweep's own."""
    path = folder / f"{name}-analysis.json"
    return read_json(path) if path.is_file() else None


def _sweep_evidence(folder: Path, analysis: Json, decision: Json) -> SweepEvidence:
    return SweepEvidence(
        plan=read_json(folder / "plan.json"),
        analysis=analysis,
        decision=decision,
        curves=join_curves(_runs(folder, analysis)),
        identity=_identity(folder, analysis),
        topology=_kept(folder, "topology"),
        arms=_kept(folder, "arms"),
        expected=_kept(folder, "expected"),
    )


def report_page(folder: Path, analysis: Json, decision: Json) -> bytes:
    """Return the page of a folder's records; the same inputs give the same bytes.

    Raises:
        BenchError: a run's file is missing or malformed, or the plotting library is not installed.
    """
    if "plan_kind" not in analysis:
        raise BenchError(f"{folder}/analysis.json: of an older version: analyse and decide anew")
    if analysis["plan_kind"] == "demo":
        page = render_report(analysis, decision, _evidence(folder, analysis), plotly_source())
    else:
        page = render_sweep(_sweep_evidence(folder, analysis, decision), plotly_source())
    return page.encode("utf-8")


def keep_beside(folder: Path, name: str, other: Path) -> None:
    """Keep another folder's analysis beside a sweep's own, so that the report can be made anew.

    Args:
        folder: of the sweep.
        name: arms or expected.
        other: an analysed folder of policy arms, or of the same plan in virtual time.

    Raises:
        BenchError: the other analysis is missing, of another kind, or has other contracts.
    """
    for one in (other, folder):
        _made(one, "analysis.json")
    data = read_bytes(other / "analysis.json")
    found = strict_json(data, str(other / "analysis.json"))
    own = read_json(folder / "analysis.json")
    fits = found["plan_kind"] == "arms" if name == "arms" else found.get("virtual", False)
    if not fits:
        raise BenchError(f"{other}: its analysis is not of {name} runs")
    if found["contract"] != own["contract"] and name == "expected":
        raise BenchError(f"{other}: its contracts are not those of {folder}")
    write_bytes(folder / f"{name}-analysis.json", data)


def _made(folder: Path, name: str) -> None:
    """Ask for one file alone; where it is missing, the message is of what is missing first."""
    if not (folder / name).is_file():
        require(folder, name)


def decided(folder: Path) -> tuple[Json, Json]:
    """Return the analysis and decision of a folder.

    Raises:
        BenchError: one of them is missing, with the verb that makes what is missing first, or is
            malformed.
    """
    for name in ("analysis.json", "decision.json"):
        _made(folder, name)
    return read_json(folder / "analysis.json"), read_json(folder / "decision.json")


def write_report(folder: Path) -> Path:
    """Write `report.html` from analysis, decision and records; returns its path."""
    require(folder, "decision.json")
    analysis, decision = decided(folder)
    path = folder / "report.html"
    write_bytes(path, report_page(folder, analysis, decision))
    return path
