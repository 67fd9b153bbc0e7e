"""Decides which figures of a sweep a reader may choose from, and which is shown at first.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.curves import Key, StratumCurves
from loadgen.page import Chooser
from loadgen.seconds import GAUGES
from loadgen.sweep_charts import (
    MEASURED,
    by_stratum,
    comparison,
    distribution,
    over_time,
    ttft_parts,
)
from loadgen.words import measure_words

__all__ = ["Drawn", "class_figures", "comparison_figure", "time_figure"]

Json = Mapping[str, Any]
Place = tuple[str, str]
VIEWS = {"mean of all": "mean", "mean of the slowest 5 %": "slowest"}
NUMBERS = {
    **{f"p95 {said}": measure for measure, said in MEASURED.items()},
    "attainment": "attainment",
    "goodput": "goodput_per_s",
}
COMPARED = ("ttft_p95", "stall_p95", "e2e_p95")


@dataclass(frozen=True, slots=True)
class Drawn:
    """What figures are made of: the analysis, its units and strata in order, the curves."""

    analysis: Json
    units: Sequence[str]
    strata: Sequence[Place]
    curves: Mapping[Key, StratumCurves]

    @classmethod
    def of(cls, analysis: Json, plan: Json, curves: Mapping[Key, StratumCurves]) -> "Drawn":
        """Order the strata as the plan has them, else as they were run."""
        there = dict.fromkeys((row["mix"], row["rate"]) for row in analysis["strata"])
        planned = [(s["mix"], s["rate"]) for s in plan.get("strata", ())]
        strata = [p for p in planned if p in there] + [p for p in there if p not in planned]
        units = [cell["cell_id"] for cell in analysis["cells"]]
        base = analysis["base"]
        if base in units:
            units = [base, *(u for u in units if u != base)]
        return cls(analysis, units, strata, curves)

    def rows(self, name: str) -> list[Json]:
        """Return the class's strata, in order."""
        own = [row for row in self.analysis["strata"] if row["size_class"] == name]
        return sorted(own, key=lambda row: self.strata.index((row["mix"], row["rate"])))

    def busiest(self, name: str) -> Place:
        """Return the place to begin with: the class's last gate, else the last place it was in."""
        places = [(row["mix"], row["rate"]) for row in self.rows(name)]
        gates = [tuple(pair) for pair in self.analysis["gates"].get(name, ())]
        gated = [place for place in places if place in gates]
        return (gated or places)[-1]


def _said(place: Place) -> str:
    return " ".join(place)


def comparison_figure(drawn: Drawn) -> list[Chooser]:
    """Return the candidates' p95s over the baseline's; nothing without a comparison."""
    rows, names = drawn.analysis["comparisons"], drawn.analysis["class_order"]
    keys = dict.fromkeys(
        k for row in rows for k in (*row["primaries"], *row["guardrails"]) if k.endswith(COMPARED)
    )
    figure = comparison(rows, {k: measure_words(k, names) for k in keys}, drawn.analysis["margins"])
    if not any(trace["x"] for trace in figure["data"]):
        return []
    note = (
        "Left of 1 is faster than the baseline. The truth is unlikely to lie beyond a bar; "
        "the dotted lines are the gain that counts, no difference, and the loss that is barred."
    )
    return [Chooser("Candidates against the baseline", {"": figure}, note=note)]


def _numbers(drawn: Drawn, name: str, rows: Sequence[Json]) -> Chooser:
    alpha, contract = drawn.analysis["look"]["alpha"], drawn.analysis["contract"][name]
    figures = {
        said: by_stratum(rows, what, drawn.units, alpha, contract.get(what, 0.0))
        for said, what in NUMBERS.items()
    }
    note = (
        "Bars: one-sided bounds over the rounds; of a p95, its extreme runs. Dotted: the "
        "contract. A p95 that is never reached has no dot; the tables say so."
    )
    return Chooser(
        f"{name}: every cell side by side", figures, [("show", list(NUMBERS))], note=note
    )


def _distributions(drawn: Drawn, name: str, rows: Sequence[Json]) -> Chooser:
    contract = drawn.analysis["contract"][name]
    places = list(dict.fromkeys((row["mix"], row["rate"]) for row in rows))
    figures = {
        f"{said}|{_said(place)}": distribution(
            drawn.curves,
            (name, *place),
            measure,
            {"units": drawn.units, "limit_s": contract[measure]},
        )
        for measure, said in MEASURED.items()
        for place in places
    }
    axes = [("show", list(MEASURED.values())), ("at", [_said(p) for p in places])]
    start = [axes[0][1][0], _said(drawn.busiest(name))]
    note = (
        "The share of offered requests that had it within x seconds, all rounds together. A curve "
        "that ends below 100 % has failures; its dotted companion leaves them out."
    )
    return Chooser(f"{name}: distributions", figures, axes, start, note)


def _parts(drawn: Drawn, name: str, rows: Sequence[Json]) -> list[Chooser]:
    figures = {}
    for place in dict.fromkeys((row["mix"], row["rate"]) for row in rows):
        own = [row for row in rows if (row["mix"], row["rate"]) == place]
        for said, view in VIEWS.items():
            if (figure := ttft_parts(own, drawn.units, view)) is not None:
                figures[f"{said}|{_said(place)}"] = figure
    if not figures:
        return []
    places = list(dict.fromkeys(key.partition("|")[2] for key in figures))
    wanted = _said(drawn.busiest(name))
    start = [next(iter(VIEWS)), wanted if wanted in places else places[0]]
    axes = [("show", list(VIEWS)), ("at", places)]
    note = "What nobody measured apart stays in the last part."
    title = f"{name}: what the time to the first token is made of"
    return [Chooser(title, figures, axes, start, note)]


def class_figures(drawn: Drawn, name: str, rows: Sequence[Json]) -> list[Chooser]:
    """Return a class's figures; nothing if it was never offered."""
    if not rows:
        return []
    own = drawn.rows(name)
    return [
        _numbers(drawn, name, own),
        _distributions(drawn, name, own),
        *_parts(drawn, name, own),
    ]


def time_figure(drawn: Drawn) -> list[Chooser]:
    """Return what was looked at every second, by stratum; nothing if nobody looked."""
    figures = {
        f"{gauge.title}|{_said(place)}": figure
        for gauge in GAUGES
        for place in drawn.strata
        if (figure := over_time(drawn.curves, drawn.units, place, (gauge.key, gauge.unit)))
    }
    if not figures:
        return []
    titles = list(dict.fromkeys(key.partition("|")[0] for key in figures))
    places = [_said(place) for place in drawn.strata]
    start = [titles[0], _said(drawn.busiest(drawn.analysis["class_order"][-1]))]
    note = (
        "In every second the largest of the rounds. Solid and dashed lines tell the classes apart "
        "where a number is known per class; click a name in the legend to hide its line."
    )
    axes = [("show", titles), ("at", places)]
    return [Chooser("Every second", figures, axes, start, note)]
