"""Writes the report of a results folder: records and digests in, one page out."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.files import read_bytes, read_json, write_bytes
from loadgen.record import BenchError, decode_requests, strict_json
from loadgen.report import Evidence, render_report

__all__ = ["plotly_source", "report_page", "write_report"]

Json = Mapping[str, Any]


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


def _evidence(folder: Path, analysis: Json) -> Evidence:
    found = []
    for run in analysis["runs"]:
        own = folder / "runs" / run["run_id"]
        path = own / "requests.jsonl"
        _, records = decode_requests(read_bytes(path), str(path))
        rows = [strict_json(x, "samples") for x in read_bytes(own / "samples.jsonl").splitlines()]
        found.append((run["label"], records, rows[1:]))
    return found


def report_page(folder: Path, analysis: Json, decision: Json) -> bytes:
    """Return the page of a folder's records; the same inputs give the same bytes.

    Raises:
        BenchError: a run's file is missing or malformed, or the plotting library is not installed.
    """
    page = render_report(analysis, decision, _evidence(folder, analysis), plotly_source())
    return page.encode("utf-8")


def write_report(folder: Path) -> Path:
    """Write `report.html` from analysis, decision and records; returns its path."""
    analysis, decision = read_json(folder / "analysis.json"), read_json(folder / "decision.json")
    path = folder / "report.html"
    write_bytes(path, report_page(folder, analysis, decision))
    return path
