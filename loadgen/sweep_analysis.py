"""Joins the runs of a sweep, of policy arms or of topologies into strata, states and comparisons.

The analysis is of one look: the last one of which no run is missing, else the first, whatever is
there. Only rounds up to the look count. What is missing, invalid, omitted or excluded is listed by
name. Pure: no I/O, no clock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.analyse import unit_of
from loadgen.contrasts import DEFAULT_MARGINS, Setting, compare_units
from loadgen.explaining import explain
from loadgen.facts import RunFacts
from loadgen.record import BenchError
from loadgen.reuse import hit_rows
from loadgen.states import State, worst
from loadgen.strata import Stratum, by_stratum, stratum_row

__all__ = ["Absent", "analyse_sweep", "changed_arguments"]

Json = dict[str, Any]
BASES = {"sweep": "B0", "prefix_reuse": "B0", "arms": "off", "topology": "shared"}
OF_CELLS = ("sweep", "prefix_reuse")
ALPHAS = {1: (0.05,), 2: (0.02, 0.03)}


@dataclass(frozen=True, slots=True)
class Absent:
    """What is not among the runs: invalid attempts that were kept, and excluded units."""

    attempts: Sequence[Json] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)


def _alphas(plan: Mapping[str, Any], looks: Sequence[int]) -> Sequence[float]:
    given = plan.get("alphas") or ALPHAS.get(len(looks))
    if given is None or len(given) != len(looks):
        raise BenchError(f"plan: {len(looks)} looks need as many values in `alphas`")
    return [float(a) for a in given]


def _look(plan: Mapping[str, Any], missing: Sequence[Mapping[str, Any]]) -> Json:
    looks = sorted(plan.get("looks") or [plan["rounds"]])
    alphas = _alphas(plan, looks)
    first_gap = min((run["repeat"] for run in missing), default=math.inf)
    reached = [n for n, look in enumerate(looks) if look < first_gap]
    number = reached[-1] if reached else 0
    return {
        "number": number + 1,
        "looks": looks,
        "rounds": looks[number],
        "alpha": alphas[number],
        "complete": bool(reached),
        "last": number + 1 == len(looks),
    }


def _gates(plan: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    ran = dict.fromkeys((run["mix"], run["rate"]) for run in plan["runs"])
    gates = {}
    for name, contract in plan["contract"].items():
        named = [(mix, rate) for mix, rate in contract.get("gate_strata", ())]
        gates[name] = [pair for pair in named if pair in ran]
    return gates


def _class_order(plan: Mapping[str, Any]) -> list[str]:
    sizes = plan.get("classes", {})
    return list(plan.get("class_order") or sorted(sizes, key=lambda n: sizes[n]["prompt_tokens"]))


def _ratio_log2(change: Mapping[str, Any]) -> float:
    before, after = change.get("from"), change.get("to")
    numbers = (isinstance(v, int | float) and not isinstance(v, bool) for v in (before, after))
    if not all(numbers) or not before or not after or before * after <= 0:
        return 0.0
    return abs(math.log2(after / before))


def changed_arguments(cell: Mapping[str, Any]) -> tuple[int, float]:
    """Return how many arguments a cell changes and the sum of |log2 ratio| of the numbers."""
    changed = cell.get("changed", {})
    return len(changed), sum(
        _ratio_log2(c) if isinstance(c, Mapping) else 0.0 for c in changed.values()
    )


def _cells(plan: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the units in order; those of arms and topologies have no arguments of their own."""
    own = {cell["cell_id"]: cell for cell in plan.get("cells", ())}
    units = dict.fromkeys(unit_of(run, plan["kind"]) for run in plan["runs"])
    if plan["kind"] not in OF_CELLS:
        return {unit: {} for unit in units}
    return {unit: cell for unit, cell in own.items() if unit in units}


def _gate_rows(
    rows: Iterable[Json], unit: str, gates: Mapping[str, Sequence[tuple[str, str]]]
) -> Iterable[tuple[str, State, str]]:
    own = {(r["size_class"], r["mix"], r["rate"]): r for r in rows if r["cell_id"] == unit}
    for name, pairs in gates.items():
        for mix, rate in pairs:
            row = own.get((name, mix, rate))
            at = f"{name} at {mix} {rate}"
            if row is None:
                yield name, State.UNDECIDED, f"{at}: no valid run"
            else:
                yield name, State(row["state"]), f"{at}: {row['why']}"


def _cell_row(
    unit: str, cell: Mapping[str, Any], rows: Sequence[Json], gates: Mapping[str, Any]
) -> Json:
    # A topology that serves one class alone has no say on the others.
    offered = {r["size_class"] for r in rows if r["cell_id"] == unit}
    alone = {n: pairs for n, pairs in gates.items() if n in offered or not offered}
    judged = list(_gate_rows(rows, unit, alone if unit.startswith("alone-") else gates))
    by_class = {
        n: worst(s for c, s, _ in judged if c == n) for n in dict.fromkeys(c for c, *_ in judged)
    }
    state = worst(s for _, s, _ in judged)
    count, distance = changed_arguments(cell)
    return {
        "cell_id": unit,
        **{k: cell[k] for k in ("args", "changed", "aa_of") if k in cell},
        "changed_count": count,
        "log2_distance": distance,
        "state": state.value,
        "by_class": {n: s.value for n, s in by_class.items()},
        "reasons": [said for _, s, said in judged if s is state],
    }


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The planned runs up to the look, by what became of them."""

    look: Json
    kept: list[RunFacts]
    missing: list[str]
    faulty: list[RunFacts]


def _sort(plan: Mapping[str, Any], runs: Sequence[RunFacts], absent: Absent) -> _Sorted:
    there = {run.run_id for run in runs}
    wanted = [r for r in plan["runs"] if unit_of(r, plan["kind"]) not in absent.excluded]
    look = _look(plan, [r for r in wanted if r["run_id"] not in there])
    last = look["rounds"]
    due = [r["run_id"] for r in wanted if r["repeat"] <= last]
    inside = [r for r in runs if r.repeat <= last and r.unit not in absent.excluded]
    return _Sorted(
        look=look,
        kept=[r for r in inside if r.valid],
        missing=[run_id for run_id in due if run_id not in there],
        faulty=[r for r in inside if not r.valid],
    )


def _setting(
    plan: Mapping[str, Any], strata: Sequence[Stratum], cells: Sequence[Json], alpha: float
) -> Setting:
    base = BASES[plan["kind"]]
    twins = [c["cell_id"] for c in cells if "aa_of" in c]
    alone = [c["cell_id"] for c in cells if c["cell_id"].startswith("alone-")]
    outside = {base, *twins, *alone}
    return Setting(
        strata=strata,
        base=base,
        candidates=[c["cell_id"] for c in cells if c["cell_id"] not in outside],
        twins=twins,
        failed=[c["cell_id"] for c in cells if c["state"] == State.FAIL],
        gates=_gates(plan),
        class_order=_class_order(plan),
        timeout_s=plan["intervals"]["timeout_s"],
        alpha=alpha,
        family_by_measure=plan["kind"] == "arms",
        margins={**DEFAULT_MARGINS, **plan.get("margins", {})},
    )


def _incomplete(plan: Mapping[str, Any], found: _Sorted) -> dict[str, list[str]]:
    lost = {*found.missing, *(r.run_id for r in found.faulty)}
    units: dict[str, list[str]] = {}
    for run in plan["runs"]:
        if run["run_id"] in lost:
            units.setdefault(unit_of(run, plan["kind"]), []).append(run["run_id"])
    return units


def _about(plan: Mapping[str, Any], inputs: Mapping[str, Any], setting: Setting) -> Json:
    """What was fixed before the runs."""
    return {
        "kind": "analysis",
        "plan_kind": plan["kind"],
        "synthetic": plan["synthetic"],
        "inputs": inputs,
        "contract": plan["contract"],
        "intervals": plan["intervals"],
        "rounds": plan["rounds"],
        "margins": dict(setting.margins),
        "class_order": list(setting.class_order),
        "gates": {n: [list(pair) for pair in pairs] for n, pairs in setting.gates.items()},
        "base": setting.base,
    }


def _present(
    plan: Mapping[str, Any], runs: Sequence[RunFacts], found: _Sorted, absent: Absent
) -> Json:
    """What there is and what there is not."""
    faulty = [{"run_id": r.run_id, "faults": r.row["faults"]} for r in found.faulty]
    unverified = {r.unit for r in found.kept if r.row.get("effective_source") == "unverified"}
    return {
        "virtual": any(r.row.get("virtual") for r in runs),
        "look": {**found.look, "rounds_done": max((r.repeat for r in found.kept), default=0)},
        "missing": found.missing,
        "invalid": [*faulty, *absent.attempts],
        "omitted": list(plan.get("omitted", ())),
        "excluded": [{"cell_id": u, "reason": why} for u, why in absent.excluded.items()],
        "unverified": sorted(unverified),
    }


def _reuse(plan: Mapping[str, Any], rows: Sequence[Json], runs: Sequence[Json]) -> Json:
    if plan["kind"] != "prefix_reuse":
        return {}
    return {"prefix_reuse": hit_rows(rows, runs, plan)}


def analyse_sweep(
    plan: Mapping[str, Any],
    inputs: Mapping[str, Any],
    runs: Sequence[RunFacts],
    absent: Absent | None = None,
) -> Json:
    """Return the analysis of what there is of a plan.

    Args:
        plan: of kind sweep, arms or topology.
        inputs: digests of all files that were read.
        runs: those that have records, client-faulty ones included, in the plan's order.
        absent: invalid attempts and excluded units.

    Raises:
        BenchError: the plan's looks and alphas do not fit.
    """
    absent = absent or Absent()
    found = _sort(plan, runs, absent)
    alpha, gates = found.look["alpha"], _gates(plan)
    strata = by_stratum(found.kept)
    rows = [
        {**stratum_row(s, name, plan, alpha), "gate": (s.mix, s.rate) in gates.get(name, ())}
        for s in strata
        for name in s.classes
    ]
    incomplete = _incomplete(plan, found)
    cells = [
        {**_cell_row(unit, cell, rows, gates), "incomplete": incomplete.get(unit, [])}
        for unit, cell in _cells(plan).items()
        if unit not in absent.excluded
    ]
    setting = _setting(plan, strata, cells, alpha)
    return {
        **_about(plan, inputs, setting),
        **_present(plan, runs, found, absent),
        "runs": [r.row for r in runs],
        "strata": rows,
        "cells": cells,
        **compare_units(setting),
        "explain": explain(rows, [r.row for r in found.kept], setting.base),
        **_reuse(plan, rows, [r.row for r in found.kept]),
    }
