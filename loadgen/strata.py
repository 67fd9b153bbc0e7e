"""Decides what the rounds of one stratum (mix and rate) show together, per unit and class.

A unit is a cell, a policy arm or a topology. Only valid runs count; which rounds they were is said.
Pooled quantiles print only where the pooled count supports them. Pure: no I/O, no clock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.breakdown import pooled_parts
from loadgen.facts import MEASURES, ClassFacts, RunFacts, pooled, views
from loadgen.quantiles import quantile, summary
from loadgen.states import Evidence, State, describe, more_rounds, state_of, worst
from loadgen.stats import at_most

__all__ = ["Stratum", "by_stratum", "run_p95", "stratum_row"]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stratum:
    """The valid runs of one unit at one mix and rate, in the order of their rounds."""

    unit: str
    mix: str
    rate: str
    runs: tuple[RunFacts, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that were offered."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.classes))

    def of_class(self, name: str) -> tuple[ClassFacts, ...]:
        """Return one class's facts, a run each."""
        return tuple(run.classes[name] for run in self.runs if name in run.classes)


def by_stratum(runs: Iterable[RunFacts]) -> list[Stratum]:
    """Group runs by unit, mix and rate, in the order in which those first appear."""
    groups: dict[tuple[str, str, str], list[RunFacts]] = {}
    for run in runs:
        groups.setdefault((run.unit, run.mix, run.rate), []).append(run)
    return [
        Stratum(*key, tuple(sorted(own, key=lambda r: r.repeat))) for key, own in groups.items()
    ]


def run_p95(facts: ClassFacts, measure: str) -> float | None:
    """Return a run's offered p95 in seconds: infinite where it lands on a failure, None if absent.

    It is an analysis value: a single run may hold too few requests to print it.
    """
    values = facts.values[measure]
    return quantile(values, 0.95) if values else None


def _written(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


def _per_run(parts: Sequence[ClassFacts]) -> Json:
    found: Json = {"n": [part.offered for part in parts]}
    for measure in MEASURES:
        values = [run_p95(part, measure) for part in parts]
        if None not in values:
            found[measure] = [_written(v) for v in values]
    return found


def _evidence(parts: Sequence[ClassFacts], missed: Sequence[int]) -> Evidence:
    shares = (1.0 - m / p.offered for p, m in zip(parts, missed, strict=True) if p.offered)
    return Evidence(sum(p.offered for p in parts), sum(missed), tuple(shares))


def _demands(
    parts: Sequence[ClassFacts], contract: Mapping[str, Any]
) -> Iterable[tuple[str, Evidence, float]]:
    missed = [p.offered - p.met for p in parts]
    yield "attainment", _evidence(parts, missed), float(contract["attainment"])
    refused_limit = contract.get("max_refused")
    # A looser bound on refusals than on misses is implied: every refusal is a miss.
    if refused_limit is not None and refused_limit < 1.0 - contract["attainment"] - 1e-12:
        refused = _evidence(parts, [p.refused for p in parts])
        yield "refused", refused, 1.0 - float(refused_limit)


def _said(name: str, evidence: Evidence, target: float, state: State) -> str:
    if not evidence.n:
        return f"{name}: nothing was offered"
    done, lacking = ("not refused", "were") if name == "refused" else ("met", "missed")
    return (
        f"{state}: {1.0 - evidence.misses / evidence.n:.2%} {done} ({evidence.misses} of "
        f"{evidence.n} {lacking} over {len(evidence.attainments)} runs, target {target:.4g})"
    )


def _judgement(
    parts: Sequence[ClassFacts], contract: Mapping[str, Any], alpha: float
) -> tuple[State, Json]:
    demands = list(_demands(parts, contract))
    states = [state_of(evidence, target, alpha) for _, evidence, target in demands]
    _, evidence, target = demands[0]
    told = zip(demands, states, strict=True)
    figures = {
        **describe(evidence, target, alpha),
        "why": "; ".join(_said(*demand, state) for demand, state in told),
        "certified": {
            name: at_most(evidence.misses, evidence.n, 1.0 - level) < alpha
            for name, level in (("p95", 0.95), ("p99", 0.99))
        },
    }
    state = worst(states)
    if state is State.UNDECIDED:
        _, open_evidence, open_target = demands[states.index(State.UNDECIDED)]
        figures["more_rounds"] = {
            goal.value: more_rounds(open_evidence, open_target, alpha, goal)
            for goal in (State.PASS, State.FAIL)
        }
    return state, figures


def _by_output(facts: ClassFacts) -> list[Json]:
    return [
        {
            "tokens_at_most": upper,
            "n": len(rows),
            "ttft_s": summary([ttft for ttft, _ in rows]),
            "e2e_s": summary([e2e for _, e2e in rows]),
        }
        for upper, rows in sorted(facts.by_tokens.items())
    ]


def stratum_row(stratum: Stratum, name: str, plan: Mapping[str, Any], alpha: float) -> Json:
    """Return everything a stratum shows of one class.

    Args:
        stratum: its valid runs.
        name: the class.
        plan: for contract and observation time.
        alpha: of the look.
    """
    parts, contract = stratum.of_class(name), plan["contract"][name]
    window_s, joined = plan["intervals"]["window_s"], pooled(stratum.of_class(name))
    state, figures = _judgement(parts, contract, alpha)
    row = {
        "cell_id": stratum.unit,
        "mix": stratum.mix,
        "rate": stratum.rate,
        "size_class": name,
        "rounds": [run.repeat for run in stratum.runs],
        "state": state.value,
        **views(joined, window_s * len(parts)),
        **figures,
        "goodput_by_round": [part.met / window_s for part in parts],
        "per_run_p95": _per_run(parts),
    }
    own = [r.row["classes"][name].get("ttft_parts") for r in stratum.runs if name in r.classes]
    if split := pooled_parts([p for p in own if p]):
        row["ttft_parts"] = split
    if len(joined.by_tokens) > 1:
        row["by_output"] = _by_output(joined)
    return row
