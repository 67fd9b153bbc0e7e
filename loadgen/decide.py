"""Decides what the analysis supports, and stamps what may not be deployed on its strength.

A sweep follows `rule`. The demonstration has one round and a rule of its own: invalid where a
client could not keep up; capacity where a pool is offered more work than its engines have time;
else inconclusive, whatever its figures. Policy arms and topologies have no verdict of their own.
Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from typing import Any

from loadgen.record import BenchError
from loadgen.reuse import hit_lines
from loadgen.rule import TOO_BUSY, Verdict, lacking, sweep_verdict, too_busy
from loadgen.states import State
from loadgen.words import broken_guards

__all__ = ["decide", "sound"]

Json = Mapping[str, Any]
KEEP = "keep the baseline"
LIMITS = ("ttft_s", "max_stall_s", "e2e_s", "attainment", "max_refused")


def _invalid(analysis: Json) -> list[str]:
    faults = [f"{r['run_id']}: {fault}" for r in analysis["runs"] for fault in r["faults"]]
    if any(too_busy(r["faults"]) for r in analysis["runs"]):
        return [f"{TOO_BUSY}: close other work on it and run it again", *faults]
    return faults


def _overloaded(analysis: Json) -> list[tuple[str, str]]:
    found = []
    for run in analysis["runs"]:
        for pool in run["pools"]:
            if pool["offered_work"] > 1.0:
                at = f"{pool['name']} pool at {pool['offered_work']:.0%} of its capacity"
                found.append(("+".join(pool["classes"]), f"{run['run_id']}: {at}"))
    return found


def _demo_verdict(analysis: Json) -> tuple[str, list[str]]:
    if invalid := _invalid(analysis):
        return "invalid", invalid
    if overloaded := _overloaded(analysis):
        classes = dict.fromkeys(name for name, _ in overloaded)
        return f"capacity({', '.join(classes)})", [reason for _, reason in overloaded]
    rounds = analysis["rounds"]
    return "inconclusive", [f"{rounds} round: one look at one trace bounds no run-to-run spread"]


def _action(verdict: Verdict) -> str:
    if verdict.rule == 3:
        return f"roll {verdict.named} out behind a reversible route"
    if verdict.rule == 5:
        return "give each class engines of its own"
    return KEEP


def _not_deployable(analysis: Json, verdict: Verdict) -> list[str]:
    used = {analysis["base"], verdict.named}
    reasons = [
        (analysis["synthetic"], "the engines were simulated"),
        (analysis["virtual"], "the runs took place in virtual time"),
        (
            bool(used & set(analysis["unverified"])),
            "effective values are unverified: "
            + ", ".join(u for u in analysis["unverified"] if u in used),
        ),
        (verdict.rule not in {3, 5}, "there is nothing to deploy"),
    ]
    return [said for holds, said in reasons if holds]


def _same_contract(analysis: Json, topology: Json) -> None:
    for name, contract in analysis["contract"].items():
        other = topology["contract"].get(name, {})
        for limit in LIMITS:
            if contract.get(limit) != other.get(limit):
                raise BenchError(
                    f"topology: contract.{name}.{limit} is {other.get(limit)}, "
                    f"but the sweep's is {contract.get(limit)}"
                )


def _contrasts(analysis: Json) -> list[str]:
    said = []
    for row in analysis["comparisons"]:
        for name, primary in row["primaries"].items():
            at = f"{row['cell_id']} against {analysis['base']}: {name}"
            said.append(f"{at} {_found(primary)}")
    return said


def _found(primary: Json) -> str:
    if primary.get("unbounded"):
        return "is unbounded: that p95 falls on a request that failed"
    if "ratio" not in primary:
        return "was not compared: that takes two rounds of two units that do not fail"
    mark = ", superior" if primary["superior"] else ""
    return f"{primary['ratio'] - 1:+.1%} (Holm p {primary['p_holm']:.2g}{mark})"


def _failing(analysis: Json) -> list[str]:
    failing = (c for c in analysis["cells"] if c["state"] == State.FAIL)
    return [f"{cell['cell_id']} fails: {said}" for cell in failing for said in cell["reasons"]]


def _compared(analysis: Json) -> dict[str, Any]:
    """What is said where there is no verdict; that something lacks must not go by in silence."""
    lost = lacking(analysis["cells"], analysis)
    excluded = [f"{e['cell_id']} is excluded: {e['reason']}" for e in analysis["excluded"]]
    said = [*hit_lines(analysis), *_contrasts(analysis), *broken_guards(analysis)]
    return {
        "verdict": "none",
        "reasons": [*said, *_failing(analysis), *lost, *excluded],
        "missing": analysis["missing"],
        "complete": not lost,
    }


def _stamped(analysis: Json, sha256: str, found: Mapping[str, Any]) -> dict[str, Any]:
    inputs = {"analysis_sha256": sha256, **analysis["inputs"]}
    return {
        "kind": "decision",
        "action": KEEP,
        "synthetic": analysis["synthetic"],
        "deployable": False,
        **found,
        "inputs": {**inputs, **found.get("inputs", {})},
    }


def _sweep(analysis: Json, topology: Json | None) -> dict[str, Any]:
    verdict = sweep_verdict(analysis, topology)
    against = _not_deployable(analysis, verdict)
    return {
        "verdict": verdict.words,
        "rule": verdict.rule,
        "reasons": [*verdict.reasons, *(broken_guards(analysis) if verdict.rule > 1 else ())],
        "named": verdict.named,
        "action": _action(verdict),
        "deployable": not against,
        "not_deployable": against,
        "look": analysis["look"],
        "smallest_gain": analysis["smallest_gain"],
        "omitted": [*analysis["omitted"], *analysis["excluded"]],
        "missing": analysis["missing"],
        **verdict.more,
    }


def decide(
    analysis: Json,
    analysis_sha256: str,
    topology: Json | None = None,
    topology_sha256: str | None = None,
) -> dict[str, Any]:
    """Return the verdict, its reasons and the digests it rests on.

    Args:
        analysis: of the demonstration, a sweep, policy arms or topologies.
        analysis_sha256: of its file.
        topology: the analysis of topology runs, for a sweep.
        topology_sha256: of its file.

    Raises:
        BenchError: the topology runs are of another kind or under another contract.
    """
    kind = analysis["plan_kind"]
    if kind == "demo":
        verdict, reasons = _demo_verdict(analysis)
        return _stamped(analysis, analysis_sha256, {"verdict": verdict, "reasons": reasons})
    if kind != "sweep":
        return _stamped(analysis, analysis_sha256, _compared(analysis))
    made = _sweep(analysis, _checked(analysis, topology))
    if topology is not None:
        made["inputs"] = {"topology_analysis_sha256": topology_sha256}
    return _stamped(analysis, analysis_sha256, made)


def sound(decision: Json) -> bool:
    """Say whether all runs that a decision needs were there and valid."""
    return decision["verdict"] != "invalid" and bool(decision.get("complete", True))


def _checked(analysis: Json, topology: Json | None) -> Json | None:
    if topology is not None:
        if topology.get("plan_kind") != "topology":
            raise BenchError(f"topology: its plan is of kind {topology.get('plan_kind')}")
        _same_contract(analysis, topology)
    return topology
