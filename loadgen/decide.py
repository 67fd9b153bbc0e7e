"""Decides what the analysis supports; the first rule that matches wins.

1. invalid: a run's client could not keep up. 2. capacity(class): a pool is offered more work than
its engines have time, so no admission policy can carry it. 3. inconclusive: one round decides
nothing, whatever its figures. Synthetic evidence is stamped and never deployable.
Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["decide"]


def _invalid(analysis: Mapping[str, Any]) -> list[str]:
    return [f"{r['run_id']}: {fault}" for r in analysis["runs"] for fault in r["faults"]]


def _overloaded(analysis: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for run in analysis["runs"]:
        for pool in run["pools"]:
            if pool["offered_work"] > 1.0:
                at = f"{pool['name']} pool at {pool['offered_work']:.0%} of its capacity"
                found.append(("+".join(pool["classes"]), f"{run['run_id']}: {at}"))
    return found


def _verdict(analysis: Mapping[str, Any]) -> tuple[str, list[str]]:
    if invalid := _invalid(analysis):
        return "invalid", invalid
    if overloaded := _overloaded(analysis):
        classes = dict.fromkeys(name for name, _ in overloaded)
        return f"capacity({', '.join(classes)})", [reason for _, reason in overloaded]
    rounds = analysis["rounds"]
    return "inconclusive", [f"{rounds} round: one look at one trace bounds no run-to-run spread"]


def decide(analysis: Mapping[str, Any], analysis_sha256: str) -> dict[str, Any]:
    """Return the verdict, its reasons and the digests it rests on."""
    verdict, reasons = _verdict(analysis)
    return {
        "kind": "decision",
        "verdict": verdict,
        "action": "keep the baseline",
        "reasons": reasons,
        "synthetic": analysis["synthetic"],
        "deployable": False,
        "inputs": {"analysis_sha256": analysis_sha256, **analysis["inputs"]},
    }
