"""Words the analysed numbers: one table for the terminal and for the report.

Pure: no I/O, no clock.
"""

import math
from collections.abc import Mapping
from typing import Any

__all__ = [
    "COLUMNS",
    "attempt_lines",
    "cell",
    "change_lines",
    "pool_lines",
    "prediction_lines",
    "rows",
    "verdict_line",
]

COLUMNS = (
    "way",
    "class",
    "offered",
    "ok",
    "refused",
    "expired",
    "unfinished",
    "other",
    "TTFT p50",
    "TTFT p95",
    "e2e p95",
    "stall p95",
    "goodput/s",
    "attained",
    "accepted",
)
# Measured beyond so many times what the same trace takes in virtual time: the machine was busy.
TOO_LATE = 2.0
NAMED = ("ok", "rejected", "expired", "unfinished")
Json = Mapping[str, Any]


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def cell(found: Json, n: int) -> str:
    """Word a quantile: a time, "> X s (n failed)", or "n/a (n = ..)"."""
    if found.get("too_few"):
        return f"n/a (n = {n})"
    if found["value"] is not None:
        return _seconds(found["value"])
    over = f"> {_seconds(found['above_s'])} " if "above_s" in found else ""
    return f"{over}({found['failed']} failed)"


def _quantile(figures: Json, measure: str, view: str, name: str) -> str:
    own = figures[measure][view]
    return cell(own[name], own["n"])


def _row(run: Json, name: str, figures: Json) -> tuple[str, ...]:
    outcomes = figures["outcomes"]
    other = figures["offered"] - sum(outcomes[o] for o in NAMED)
    label = run["label"] if run["valid"] else f"INVALID {run['label']}"
    return (
        label,
        name,
        str(figures["offered"]),
        *(str(outcomes[o]) for o in NAMED),
        str(other),
        _quantile(figures, "ttft_s", "offered", "p50"),
        _quantile(figures, "ttft_s", "offered", "p95"),
        _quantile(figures, "e2e_s", "offered", "p95"),
        _quantile(figures, "max_stall_s", "accepted", "p95"),
        f"{figures['goodput_per_s']:.2f}",
        f"{figures['attainment']:.1%}",
        f"{figures['accepted_over_offered']:.1%}",
    )


def rows(analysis: Json) -> list[tuple[str, ...]]:
    """Return one row per way and class, in the order of `COLUMNS`."""
    return [
        _row(run, name, run["classes"][name])
        for run in analysis["runs"]
        for name in analysis["class_order"]
        if name in run["classes"]
    ]


def verdict_line(decision: Json, *, virtual: bool = False) -> str:
    """Return the verdict as one line, stamped where the evidence is synthetic or virtual."""
    stamp = " [synthetic: simulated engines, not deployable]" if decision["synthetic"] else ""
    if virtual:
        stamp = " [virtual time: no engine ran, not deployable]"
    return f"verdict: {decision['verdict']}{stamp}"


def _change(change: Json) -> list[str]:
    parts = [
        f"{name} p95 x{change[key]:.2f}"
        for name, key in (
            ("TTFT", "ttft_p95_ratio"),
            ("e2e", "e2e_p95_ratio"),
            ("max stall", "max_stall_p95_ratio"),
        )
        if key in change
    ]
    return [*parts, f"goodput {change['goodput_per_s_difference']:+.2f}/s"]


def change_lines(analysis: Json) -> list[str]:
    """Return how each way differs from the first, per class; unbounded figures have no ratio."""
    labels = {r["run_id"]: r["label"] for r in analysis["runs"]}
    return [
        f"{labels[c['run_id']]}, {c['class']}: {', '.join(_change(c))}" for c in analysis["changes"]
    ]


def attempt_lines(analysis: Json) -> list[str]:
    """Return what was at fault in each attempt that was run again."""
    labels = {r["run_id"]: r["label"] for r in analysis["runs"]}
    return [
        f"{labels[a['run_id']]}, attempt {a['attempt']}, kept and run again: {fault}"
        for a in analysis.get("attempts", ())
        for fault in a["faults"]
    ]


def pool_lines(analysis: Json) -> list[str]:
    """Return each way's pools with their offered work over capacity."""
    return [
        f"{run['label']}: {pool['name']} pool ({pool['engines']} engine"
        f"{'s' if pool['engines'] > 1 else ''}) is offered {pool['offered_work']:.0%} of capacity"
        for run in analysis["runs"]
        for pool in run["pools"]
    ]


def _prediction(run: Json, told: Json, name: str) -> str:
    predicted, own = told["ttft_p95_s"], run["classes"][name]["ttft_s"]["offered"]
    said = "unbounded" if predicted is None else _seconds(predicted)
    measured = cell(own["p95"], own["n"])
    line = f"{run['label']}, {name}: predicted TTFT p95 {said}, measured {measured}"
    value = own["p95"].get("value", math.inf)
    late = predicted is not None and (value is None or value > TOO_LATE * predicted)
    return f"{line}: this machine was too busy to carry engines and gateway" if late else line


def prediction_lines(analysis: Json) -> list[str]:
    """Return what was foretold beside what was measured, for each way and class foretold."""
    predictions = analysis.get("predictions", {})
    return [
        _prediction(run, predictions[run["name"]][name], name)
        for run in analysis["runs"]
        for name in analysis["class_order"]
        if name in predictions.get(run["name"], {}) and name in run["classes"]
    ]
