"""Decides what each candidate gains over the baseline, and which guardrails it holds.

Two primaries: p95 TTFT and p95 maximum stall of the shortest class, averaged as ln Q over its gate
strata in mixes of several classes. Superior means a one-sided p within alpha after Holm's
correction and an estimate of at least the margin. Guardrails are bounds on the same means: what is
not shown to be harmless is not held. A p95 that lands on a failure is unbounded: the candidate is
neither superior nor harmless there; where only the baseline has one, the class's timeout stands
for it, which favours the baseline. A candidate whose responses are not as long as the baseline's,
in any gate stratum, is not superior. Pure: no I/O, no clock.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.compare import Contrast, Spread, contrast, detectable, rounds_for, spread_of
from loadgen.facts import ClassFacts, pooled
from loadgen.quantiles import quantile
from loadgen.stats import holm, mean
from loadgen.strata import Stratum, run_p95

__all__ = ["DEFAULT_MARGINS", "Setting", "compare_units"]

Json = dict[str, Any]
Table = dict[str, dict[int, float]]
DEFAULT_MARGINS = {
    "superior": 0.10,
    "guard_latency": 0.10,
    "guard_attainment_points": 2.0,
    "guard_failures_points": 0.5,
    "output_tokens": 0.02,
}
WORDS = {"ttft_s": "ttft", "max_stall_s": "stall", "e2e_s": "e2e"}
LEAST_P95 = 59  # below it a p95 says little, and is not printed
STAMP_S = 1e-6  # nothing is measured finer; it keeps the logarithm of a zero gap finite


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared: strata by unit, who is who, the gates, the margins and the look's alpha."""

    strata: Sequence[Stratum]
    base: str
    candidates: Sequence[str]
    twins: Sequence[str]
    failed: Sequence[str]
    gates: Mapping[str, Sequence[tuple[str, str]]]
    class_order: Sequence[str]
    timeout_s: float
    alpha: float
    family_by_measure: bool = False
    margins: Mapping[str, float] = field(default_factory=lambda: DEFAULT_MARGINS)

    def mixed(self, size_class: str) -> list[tuple[str, str]]:
        """Return the class's gate strata in mixes that hold other classes too."""
        several = {s.mix for s in self.strata if len(s.classes) > 1}
        return [pair for pair in self.gates.get(size_class, ()) if pair[0] in several]

    def by_round(
        self, unit: str, size_class: str, pairs: Iterable[tuple[str, str]]
    ) -> dict[int, list[ClassFacts]]:
        """Return the unit's facts of the class in these strata, for the rounds that have all."""
        wanted = list(pairs)
        held = {(s.mix, s.rate): s for s in self.strata if s.unit == unit}
        found: dict[int, list[ClassFacts]] = {}
        for pair in wanted:
            for run in held[pair].runs if pair in held else ():
                if size_class in run.classes:
                    found.setdefault(run.repeat, []).append(run.classes[size_class])
        return {r: own for r, own in sorted(found.items()) if len(own) == len(wanted)}


@dataclass(frozen=True, slots=True)
class _Measured:
    """One number per unit and round, with its error; units without a bound are named."""

    table: Table
    spread: Spread | None
    unbounded: frozenset[str]

    def contrast(self, unit: str, base: str) -> Contrast | None:
        """Return the unit less the baseline, where both have numbers."""
        if self.spread is None or unit in self.unbounded:
            return None
        return contrast(self.table, unit, base, self.spread)


def _log_mean(parts: Sequence[ClassFacts], measure: str, stand_in_s: float | None) -> float | None:
    values = [run_p95(part, measure) for part in parts]
    known = [v if stand_in_s is None or v is None else min(v, stand_in_s) for v in values]
    if any(v is None for v in known):
        return None
    return mean([math.log(max(v, STAMP_S)) if v < math.inf else v for v in known if v is not None])


def _met_share(parts: Sequence[ClassFacts], _: str, __: float | None) -> float | None:
    return mean([p.met / p.offered for p in parts]) if all(p.offered for p in parts) else None


Number = Callable[[Sequence[ClassFacts], str, float | None], float | None]


def _measured(setting: Setting, size_class: str, measure: str, number: Number) -> _Measured:
    table: Table = {}
    unbounded = set()
    for unit in (setting.base, *setting.candidates, *setting.twins):
        stand_in_s = setting.timeout_s if unit == setting.base else None
        parts = setting.by_round(unit, size_class, setting.mixed(size_class))
        row = {
            r: value
            for r, own in parts.items()
            if (value := number(own, measure, stand_in_s)) is not None
        }
        if any(math.isinf(v) for v in row.values()):
            unbounded.add(unit)
        else:
            table[unit] = row
    # The twin repeats the baseline: it bounds the harness, and must not count as one more cell.
    spread = spread_of(table, {*setting.failed, *setting.twins})
    return _Measured(table, spread, frozenset(unbounded))


def _primary(found: _Measured, unit: str, setting: Setting) -> Json:
    if unit in found.unbounded:
        return {"unbounded": True, "superior": False}
    made = found.contrast(unit, setting.base)
    if made is None:
        return {"not_compared": True, "superior": False}
    return {
        "ln": made.difference,
        "ratio": math.exp(made.difference),
        "gain": 1.0 - math.exp(made.difference),
        "low": math.exp(made.low(setting.alpha)),
        "high": math.exp(made.high(setting.alpha)),
        "se": made.se,
        "df": made.df,
        "p": made.p_less,
        "superior": False,
    }


def _correct(rows: Mapping[str, Mapping[str, Json]], setting: Setting) -> int:
    """Add Holm's p to every primary that was tested; return the size of the family."""
    tested = {
        f"{unit}/{name}": primary
        for unit, primaries in rows.items()
        for name, primary in primaries.items()
        if "p" in primary
    }
    names = sorted({name for primaries in rows.values() for name in primaries})
    groups = [[name] for name in names] if setting.family_by_measure else [names]
    size = len(rows) * (1 if setting.family_by_measure else len(names))
    for group in groups:
        own = {key: p["p"] for key, p in tested.items() if key.split("/", 1)[1] in group}
        for key, p in holm(own, size).items():
            tested[key]["p_holm"] = p
    for primary in tested.values():
        wide = primary["gain"] >= setting.margins["superior"]
        primary["superior"] = wide and primary["p_holm"] <= setting.alpha
    return size


def _latency_guard(found: _Measured, unit: str, setting: Setting) -> Json:
    limit = 1.0 + setting.margins["guard_latency"]
    made = found.contrast(unit, setting.base)
    if made is None:
        return {"held": False, "limit": limit, "unbounded": unit in found.unbounded}
    bound = math.exp(made.high(setting.alpha))
    return {
        "value": math.exp(made.difference),
        "bound": bound,
        "limit": limit,
        "held": bound <= limit,
    }


def _attainment_guard(found: _Measured, unit: str, setting: Setting) -> Json:
    limit = -setting.margins["guard_attainment_points"] / 100.0
    made = found.contrast(unit, setting.base)
    if made is None:
        return {"held": False, "limit": limit}
    bound = made.low(setting.alpha)
    return {"value": made.difference, "bound": bound, "limit": limit, "held": bound >= limit}


def _pool(
    setting: Setting, unit: str, size_class: str, places: Sequence[tuple[str, str]] = ()
) -> ClassFacts:
    pairs = set(places or setting.gates.get(size_class, ()))
    own = (s for s in setting.strata if s.unit == unit and (s.mix, s.rate) in pairs)
    return pooled([part for stratum in own for part in stratum.of_class(size_class)])


def _failures_guard(setting: Setting, unit: str, size_class: str) -> Json:
    own, base = _pool(setting, unit, size_class), _pool(setting, setting.base, size_class)
    if not own.offered or not base.offered:
        return {"held": False}
    value = own.failed / own.offered - base.failed / base.offered
    limit = setting.margins["guard_failures_points"] / 100.0 + 1.0 / own.offered
    return {"value": value, "bound": value, "limit": limit, "held": value <= limit + 1e-12}


def _output_differs(setting: Setting, unit: str) -> list[str]:
    """Say where responses are not as long as the baseline's, stratum by stratum.

    Pooled, longer ones in one stratum would hide shorter ones in another.
    """
    found = []
    for name in setting.class_order:
        for place in setting.gates.get(name, ()):
            own, base = (_pool(setting, u, name, [place]) for u in (unit, setting.base))
            if not own.told or not base.told:
                continue
            change = (own.tokens / own.told) / (base.tokens / base.told) - 1.0
            if abs(change) > setting.margins["output_tokens"]:
                how = "longer" if change > 0 else "shorter"
                at = f"{name} responses at {' '.join(place)}"
                found.append(f"{at} are {abs(change):.1%} {how} than the baseline's")
    return found


def _ratio(own: Sequence[float], base: Sequence[float]) -> float | None:
    if min(len(own), len(base)) < LEAST_P95:
        return None
    return quantile(own, 0.95) / max(quantile(base, 0.95), STAMP_S)


def _within_lengths(setting: Setting, unit: str) -> list[Json]:
    """Compare p95s among responses of like length, where lengths vary; it describes, no more."""
    found = []
    for name in setting.class_order:
        own, base = (_pool(setting, u, name).by_tokens for u in (unit, setting.base))
        for upper in sorted(own.keys() & base.keys()) if len({*own, *base}) > 1 else ():
            row = {"size_class": name, "tokens_at_most": upper}
            row |= {"n": len(own[upper]), "base_n": len(base[upper])}
            for place, key in enumerate(("ttft_p95", "e2e_p95")):
                values = ([r[place] for r in rows[upper]] for rows in (own, base))
                if (ratio := _ratio(*values)) is not None:
                    row[key] = ratio
            found.append(row)
    return found


def _guardrails(setting: Setting, found: Mapping[str, _Measured], unit: str) -> Json:
    shortest, *others = setting.class_order
    rails = {
        f"{shortest}_ttft_p95": _latency_guard(found[f"{shortest}_ttft_p95"], unit, setting),
        f"{shortest}_stall_p95": _latency_guard(found[f"{shortest}_stall_p95"], unit, setting),
    }
    for name in others:
        for word in ("ttft", "e2e"):
            key = f"{name}_{word}_p95"
            rails[key] = _latency_guard(found[key], unit, setting)
        key = f"{name}_attainment"
        rails[key] = _attainment_guard(found[key], unit, setting)
    for name in setting.class_order:
        rails[f"{name}_failures"] = _failures_guard(setting, unit, name)
    return rails


def _all_measured(setting: Setting) -> dict[str, _Measured]:
    shortest, *others = setting.class_order
    wanted = [(shortest, "ttft_s"), (shortest, "max_stall_s")]
    wanted += [(name, measure) for name in others for measure in ("ttft_s", "e2e_s")]
    found = {f"{n}_{WORDS[m]}_p95": _measured(setting, n, m, _log_mean) for n, m in wanted}
    for name in others:
        found[f"{name}_attainment"] = _measured(setting, name, "", _met_share)
    return found


def _row(setting: Setting, unit: str, primaries: Mapping[str, Json], rails: Json) -> Json:
    differs = _output_differs(setting, unit)
    for primary in primaries.values():
        primary["superior"] = primary["superior"] and not differs
    lengths = _within_lengths(setting, unit)
    return {
        "cell_id": unit,
        "primaries": primaries,
        "superior": [name for name, p in primaries.items() if p["superior"]],
        "unbounded": [name for name, p in primaries.items() if p.get("unbounded")],
        "output_differs": differs,
        "guardrails": rails,
        "guardrails_held": all(rail["held"] for rail in rails.values()),
        **({"by_output": lengths} if lengths else {}),
    }


def _spread_row(found: _Measured) -> Json | None:
    spread = found.spread
    if spread is None:
        return None
    return {
        "mse": spread.mse,
        "sd": math.sqrt(spread.mse),
        "df": spread.df,
        "cells": list(spread.units),
        "left_out": sorted({*spread.left_out, *found.unbounded}),
        "rounds": spread.rounds,
    }


def _would_decide(setting: Setting, found: Mapping[str, _Measured], row: Json, size: int) -> None:
    """Note from how many rounds on a gain that was seen, and not proved, would be proved."""
    for name, primary in row["primaries"].items():
        spread = found[name].spread
        wide = primary.get("gain", 0.0) >= setting.margins["superior"]
        if spread is not None and wide and not primary["superior"]:
            primary["more_rounds"] = rounds_for(spread, primary["ln"], setting.alpha / size)


def _twin_rows(setting: Setting, found: Mapping[str, _Measured], primaries: Sequence[str]) -> Json:
    keys = ("ratio", "low", "high", "unbounded", "not_compared")
    return {
        twin: {
            name: {k: v for k, v in _primary(found[name], twin, setting).items() if k in keys}
            for name in primaries
        }
        for twin in setting.twins
    }


def compare_units(setting: Setting) -> Json:
    """Return comparisons, spread, smallest gain that could have been shown, and the A/A floor.

    Args:
        setting: what is compared, with at least one class and the baseline's strata.
    """
    found = _all_measured(setting)
    shortest = setting.class_order[0]
    names = [f"{shortest}_ttft_p95", f"{shortest}_stall_p95"]
    rows = {
        unit: {name: _primary(found[name], unit, setting) for name in names}
        for unit in setting.candidates
    }
    size = _correct(rows, setting)
    made = [_row(setting, u, rows[u], _guardrails(setting, found, u)) for u in setting.candidates]
    for row in made:
        _would_decide(setting, found, row, size)
    spreads = {name: _spread_row(measured) for name, measured in found.items()}
    shown = {
        name: max(setting.margins["superior"], detectable(spread, setting.alpha / size))
        for name in names
        if (spread := found[name].spread) is not None and size
    }
    return {
        "comparisons": made,
        "spread": spreads,
        "smallest_gain": shown,
        "family": size,
        "aa": _twin_rows(setting, found, names),
    }
