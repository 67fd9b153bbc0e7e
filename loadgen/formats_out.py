"""Writes a results folder in the formats of other tools: vLLM's result files, CSV, flat JSON."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadgen.files import read_json, write_bytes
from loadgen.flat_rows import csv_bytes, request_row, run_rows, stratum_rows
from loadgen.record import BenchError, RequestRecord
from loadgen.report_file import read_run
from loadgen.vllm_result import summary_rows, vllm_result

__all__ = ["FORMATS", "export"]

Json = Mapping[str, Any]
VERSION = 1


def _runs(folder: Path, analysis: Json) -> Iterator[tuple[Json, Sequence[RequestRecord]]]:
    for run in analysis["runs"]:
        records, _ = read_run(folder, run["run_id"])
        yield run, records


def _json(path: Path, value: Any) -> Path:
    write_bytes(path, orjson.dumps(value) + b"\n")
    return path


def _vllm(folder: Path, analysis: Json, out: Path) -> list[Path]:
    plan = read_json(folder / "plan.json")
    planned = {run["run_id"]: run for run in plan["runs"]}
    paths, results = [], []
    for run, records in _runs(folder, analysis):
        config = read_json(folder / "runs" / run["run_id"] / "config.json")
        met = sum(figures["met"] for figures in run["classes"].values())
        result = vllm_result(planned[run["run_id"]], plan, config, records, met)
        results.append(result)
        paths.append(_json(out / f"{run['run_id']}.json", result))
    return [*paths, _json(out / "summary.json", summary_rows(results))]


def _requests(folder: Path, analysis: Json) -> Iterator[dict[str, Any]]:
    for run, records in _runs(folder, analysis):
        yield from (request_row(run["run_id"], record) for record in records)


def _csv(folder: Path, analysis: Json, out: Path) -> list[Path]:
    tables = {"runs": run_rows(analysis), "requests": list(_requests(folder, analysis))}
    if strata := stratum_rows(analysis):
        tables["strata"] = strata
    for name, rows in tables.items():
        write_bytes(out / f"{name}.csv", csv_bytes(rows))
    return [out / f"{name}.csv" for name in tables]


def _flat(folder: Path, analysis: Json, out: Path) -> list[Path]:
    decision = read_json(folder / "decision.json")
    kept = ("verdict", "action", "reasons", "deployable", "synthetic")
    value = {
        "kind": "export",
        "version": VERSION,
        **{k: decision[k] for k in kept},
        "contract": analysis["contract"],
        "runs": run_rows(analysis),
        "strata": stratum_rows(analysis),
        "comparisons": analysis.get("comparisons", []),
        "missing": analysis.get("missing", []),
        "analysis_sha256": decision["inputs"]["analysis_sha256"],
    }
    return [_json(out / "results.json", value)]


Writer = Callable[[Path, Json, Path], list[Path]]
FORMATS: Mapping[str, Writer] = {"vllm": _vllm, "csv": _csv, "json": _flat}


def export(folder: Path, name: str, out: Path) -> list[Path]:
    """Write a folder's results in a format; returns the files.

    Args:
        folder: analysed.
        name: vllm, csv or json.
        out: the folder they go to.

    Raises:
        BenchError: a file is missing or malformed, or there is no such format.
    """
    if name not in FORMATS:
        raise BenchError(f"export: no format is named {name}; there are {', '.join(FORMATS)}")
    return FORMATS[name](folder, read_json(folder / "analysis.json"), out)
