"""Decides retain, retune, isolate, capacity, inconclusive or invalid; the first rule that matches.

1. invalid: a run of the baseline, or of what is about to be named, is missing or client-faulty.
2. retain: the baseline passes and no candidate is superior with its guardrails held.
3. retune: a candidate passes, and is superior with every guardrail held or the baseline fails.
Where no shared cell passes, topology runs are needed:
4. capacity: a class alone fails on the isolated split, or the split cannot carry it by arithmetic.
5. isolate: a class fails in every shared cell, each class alone passes, the isolated split passes.
6. inconclusive: everything else. Undecided states never satisfy "fails".
Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.cost_of_split import split_cost
from loadgen.states import State, worst

__all__ = ["TOO_BUSY", "Verdict", "lacking", "sweep_verdict", "too_busy"]

Json = Mapping[str, Any]
TOO_BUSY = "this machine was too busy for the measuring client, in every attempt at a run"
BUSY = ("dispatch lag", "loop lag", "client used")  # how the client's faults of this kind begin


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is decided, by which rule, of whom, why, and what else the reader should know."""

    words: str
    rule: int
    reasons: Sequence[str]
    named: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Case:
    """An analysis with the look-ups that the rule asks for."""

    analysis: Json
    topology: Json | None

    @property
    def base(self) -> str:
        return str(self.analysis["base"])

    def cell(self, unit: str) -> Json | None:
        return next((c for c in self.analysis["cells"] if c["cell_id"] == unit), None)

    @property
    def shared(self) -> list[Json]:
        """The cells that count as shared configurations: the twin is the baseline again."""
        return [c for c in self.analysis["cells"] if "aa_of" not in c]

    @property
    def candidates(self) -> list[tuple[Json, Json]]:
        """Each candidate with its comparison."""
        cells = {c["cell_id"]: c for c in self.analysis["cells"]}
        return [(cells[row["cell_id"]], row) for row in self.analysis["comparisons"]]


def _percent(share: float) -> str:
    return f"{share:+.1%}"


def too_busy(faults: Iterable[str]) -> bool:
    """Say whether a client spoilt its run because the machine left it too little time."""
    return any(fault.startswith(BUSY) for fault in faults)


def lacking(cells: Iterable[Json], analysis: Json) -> list[str]:
    """Say which runs of these cells are missing or client-faulty, and what to do about the busy."""
    faults = {r["run_id"]: r["faults"] for r in analysis["invalid"] if "attempt" not in r}
    lost = [run_id for cell in cells for run_id in cell["incomplete"]]
    said = [
        f"{run_id} is client-faulty: {'; '.join(faults[run_id])}"
        if run_id in faults
        else f"incomplete: {run_id} is missing"
        for run_id in lost
    ]
    if any(too_busy(faults.get(run_id, ())) for run_id in lost):
        again = "and go on with `sluicegate bench run DIR --rerun-faulty`"
        said.append(f"{TOO_BUSY}: close other work on it {again}")
    return said


def _invalid(case: _Case) -> Verdict | None:
    cell = case.cell(case.base)
    if cell is None:
        reasons = [
            f"the baseline {case.base} is excluded: {e['reason']}"
            for e in case.analysis["excluded"]
            if e["cell_id"] == case.base
        ]
        return Verdict("invalid", 1, reasons or [f"the baseline {case.base} is not in the plan"])
    reasons = lacking([cell], case.analysis)
    return Verdict("invalid", 1, reasons) if reasons else None


def _gains(row: Json) -> list[str]:
    primaries = row["primaries"]
    return [
        f"{row['cell_id']}: {name} {_percent(primaries[name]['ratio'] - 1)} "
        f"(Holm p {primaries[name]['p_holm']:.2g})"
        for name in row["superior"]
    ]


def _not_held(row: Json) -> list[str]:
    return [name for name, rail in row["guardrails"].items() if not rail["held"]]


def _better(row: Json) -> bool:
    return bool(row["superior"]) and bool(row["guardrails_held"])


def _smallest(case: _Case) -> list[str]:
    return [
        f"the smallest gain these data could have shown: {name} {gain:.1%}"
        for name, gain in case.analysis["smallest_gain"].items()
    ]


def _near_misses(case: _Case) -> list[str]:
    return [
        f"{'; '.join(_gains(row))}, but not held: {', '.join(_not_held(row))}"
        for _, row in case.candidates
        if row["superior"] and not row["guardrails_held"]
    ]


def _unjudged(case: _Case) -> list[str]:
    said = [
        f"{cell['cell_id']} is judged without {len(cell['incomplete'])} of its runs"
        for cell in case.shared
        if cell["incomplete"]
    ]
    said += [f"{e['cell_id']} is excluded: {e['reason']}" for e in case.analysis["excluded"]]
    return said + [f"{o['cell_id']} is omitted: {o['reason']}" for o in case.analysis["omitted"]]


def _compared(row: Json) -> bool:
    """Say whether anything is known of a candidate beside the baseline; unbounded is known."""
    return any("not_compared" not in primary for primary in row["primaries"].values())


def _retain(case: _Case, base: Json) -> Verdict | None:
    if base["state"] != State.PASS or any(_better(row) for _, row in case.candidates):
        return None
    cells = [cell for cell, row in case.candidates if _compared(row)]
    if not cells and (lost := lacking((cell for cell, _ in case.candidates), case.analysis)):
        return Verdict("invalid", 1, ["no candidate could be compared", *lost])
    reasons = [
        f"{case.base} passes in every gate stratum",
        f"none of {len(cells)} candidates that were compared is superior with its guardrails held",
    ]
    return Verdict("retain", 2, [*reasons, *_near_misses(case), *_smallest(case), *_unjudged(case)])


def _simplest(found: Iterable[tuple[Json, Json]]) -> list[tuple[Json, Json]]:
    return sorted(
        found, key=lambda p: (p[0]["changed_count"], p[0]["log2_distance"], p[0]["cell_id"])
    )


def _retune(case: _Case, base: Json) -> Verdict | None:
    fails = base["state"] == State.FAIL
    passing = [(c, r) for c, r in case.candidates if c["state"] == State.PASS]
    found = _simplest((c, r) for c, r in passing if fails or _better(r))
    if not found:
        return None
    cell, row = found[0]
    name = cell["cell_id"]
    if lost := lacking([cell], case.analysis):
        return Verdict("invalid", 1, [f"{name} would be named", *lost], name)
    reasons = [f"{name} passes in every gate stratum"]
    reasons += _gains(row) if _better(row) else []
    reasons += [f"{case.base} fails: {said}" for said in base["reasons"]] if fails else []
    if len(found) > 1:
        others = [c["cell_id"] for c, _ in found[1:]]
        reasons.append(f"{', '.join(others)} would do as well; {name} changes least")
        reasons += [said for _, r in found[1:] for said in _gains(r)]
    return Verdict(f"retune({name})", 3, [*reasons, *_unjudged(case)], name)


def _alone(topology: Json, name: str) -> tuple[State, Sequence[str]]:
    """The state of a class on its own: its run alone, else its own engines in the split."""
    units = {c["cell_id"]: c for c in topology["cells"]}
    cell = units.get(f"alone-{name}") or units.get("isolated")
    if cell is None or name not in cell["by_class"]:
        return State.UNDECIDED, [f"no run of {name} alone"]
    return State(cell["by_class"][name]), cell["reasons"]


def _overloaded(topology: Json) -> dict[str, str]:
    """Return why the split cannot carry a class at a gate rate, by class."""
    gates = {(mix, rate) for pairs in topology["gates"].values() for mix, rate in pairs}
    found = {}
    for run in topology["runs"]:
        split = run["unit"] == "isolated" and (run["mix"], run["rate"]) in gates
        for pool in run.get("pools", ()) if split else ():
            if pool["offered_work"] > 1.0:
                at = f"{pool['name']} pool at {pool['offered_work']:.0%}"
                found.update(dict.fromkeys(pool["classes"], f"{at} at {run['mix']} {run['rate']}"))
    return found


def _capacity(topology: Json) -> Verdict | None:
    over, reasons, classes = _overloaded(topology), [], []
    for name in topology["class_order"]:
        state, said = _alone(topology, name)
        if name in over:
            reasons.append(f"{name} exceeds the split by arithmetic: {over[name]}")
        elif state is State.FAIL:
            reasons += [f"{name} alone fails: {line}" for line in said if line.startswith(name)]
        else:
            continue
        classes.append(name)
    return Verdict(f"capacity({', '.join(classes)})", 4, reasons) if classes else None


def _isolate(case: _Case, topology: Json) -> Verdict | None:
    everywhere = [
        name
        for name in case.analysis["class_order"]
        if all(c["by_class"].get(name) == State.FAIL for c in case.shared)
    ]
    alone = worst(_alone(topology, name)[0] for name in topology["class_order"])
    isolated = next((c for c in topology["cells"] if c["cell_id"] == "isolated"), None)
    if not everywhere or alone is not State.PASS or isolated is None:
        return None
    if isolated["state"] != State.PASS:
        return None
    cost = split_cost(case.analysis, topology)
    reasons = [
        f"{', '.join(everywhere)} fails in every one of {len(case.shared)} shared cells",
        "each class alone passes, and the isolated split passes on equal hardware",
    ]
    return Verdict("isolate", 5, [*reasons, *cost["said"]], "isolated", {"cost": cost})


def _split(case: _Case, topology: Json) -> Verdict | None:
    found = _capacity(topology) or _isolate(case, topology)
    if found is None:
        return None
    used = (c for c in topology["cells"] if c["cell_id"] != "shared")
    if lost := lacking(used, topology):
        return Verdict("invalid", 1, [f"{found.words} would be named", *lost], found.named)
    return found


def _rounds(wanted: int | None, what: str) -> str:
    return f"{wanted} rounds like these would {what}" if wanted else f"60 would not {what}"


def _undecided(case: _Case, analysis: Json) -> list[str]:
    said = []
    for row in analysis["strata"]:
        if row["gate"] and row["state"] == State.UNDECIDED:
            more = row["more_rounds"]
            goal = "pass" if more["pass"] else "fail"
            at = f"{row['cell_id']}, {row['size_class']} at {row['mix']} {row['rate']}"
            said.append(f"{at} is undecided: {_rounds(more[goal], goal)}")
    return said


def _gains_unproved(case: _Case) -> list[str]:
    return [
        f"{row['cell_id']}: {name} {_percent(primary['ratio'] - 1)} is not proved: "
        + _rounds(primary["more_rounds"], "prove it")
        for _, row in case.candidates
        for name, primary in row["primaries"].items()
        if "more_rounds" in primary
    ]


def _states(case: _Case) -> str:
    return "states: " + ", ".join(f"{c['cell_id']} {c['state']}" for c in case.shared)


def _inconclusive(case: _Case, passing: bool) -> Verdict:
    reasons = [_states(case)]
    if not passing and case.topology is None:
        reasons.append("no shared cell passes, and there are no topology runs to tell why")
    elif not passing:
        reasons.append("no shared cell passes, and the topology runs prove neither cause")
    look = case.analysis["look"]
    if not look["last"]:
        reasons.append(f"the plan looks again after {look['looks'][look['number']]} rounds")
    more = [*_undecided(case, case.analysis), *_gains_unproved(case)]
    if case.topology is not None and not passing:
        more += _undecided(case, case.topology)
    return Verdict(
        "inconclusive",
        6,
        [*reasons, *_near_misses(case), *_unjudged(case)],
        None,
        {"more_rounds": more},
    )


def sweep_verdict(analysis: Json, topology: Json | None = None) -> Verdict:
    """Return the verdict of a sweep's analysis.

    Args:
        analysis: of a plan of kind sweep.
        topology: of a plan of kind topology, on equal hardware and the same contract.
    """
    case = _Case(analysis, topology)
    if (found := _invalid(case)) is not None:
        return found
    base = case.cell(case.base)
    assert base is not None  # noqa: S101 - rule 1 has seen to it
    if (found := _retain(case, base) or _retune(case, base)) is not None:
        return found
    passing = any(c["state"] == State.PASS for c in case.shared)
    if not passing and topology is not None and (found := _split(case, topology)) is not None:
        return found
    return _inconclusive(case, passing)
