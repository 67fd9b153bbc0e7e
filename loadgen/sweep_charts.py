"""Draws a sweep: comparisons, strata, distributions, seconds and parts of the first token's time.

The baseline is grey and wide, every other unit has a colour of its own in all figures; a second
class in the same figure is dashed. Pure: no I/O, no clock.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.charts import COLOURS, DASHES, LIMIT_LINE, TICKS_S, layout
from loadgen.curves import Key, StratumCurves
from loadgen.stats import mean, sd, t_quantile

__all__ = [
    "MEASURED",
    "between_rounds",
    "by_stratum",
    "comparison",
    "distribution",
    "over_time",
    "ttft_parts",
]

Json = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
GREY = "#8a8f94"
OTHERS = tuple(c for c in COLOURS if c != "#999999")
MEASURED = {"ttft_s": "time to first token", "e2e_s": "end to end", "max_stall_s": "longest stall"}
PARTS = {
    "client_s": ("the client's own lateness", "#999999"),
    "connection_s": ("waiting for a connection", "#56B4E9"),
    "gateway_queue_s": ("waiting in the gateway", "#E69F00"),
    "rest_s": ("transport, counting, engine queue and prefill", "#0072B2"),
}
RATIO_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2, 3, 5, 10)
WIDE = 0.7  # of the distance between two groups


def _colour(units: Sequence[str], unit: str) -> str:
    at = units.index(unit)
    return GREY if at == 0 else OTHERS[(at - 1) % len(OTHERS)]


def _line(units: Sequence[str], unit: str, dash: str = "solid") -> Json:
    width = 3 if units.index(unit) == 0 else 2
    return {"color": _colour(units, unit), "width": width, "dash": dash}


def _offset(at: int, of: int) -> float:
    return WIDE * ((at + 0.5) / of - 0.5)


def _vertical(x: float) -> Json:
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": LIMIT_LINE}


def _horizontal(y: float) -> Json:
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": LIMIT_LINE}


def _ratio(row: Mapping[str, Any], name: str) -> tuple[float, float | None, float] | None:
    """Return estimate, lower bound where there is one, and upper bound; None where unbounded."""
    primary = row["primaries"].get(name, {})
    if "ratio" in primary:
        return primary["ratio"], primary["low"], primary["high"]
    rail = row["guardrails"].get(name, {})
    return (rail["value"], None, rail["bound"]) if "bound" in rail else None


def comparison(rows: Rows, names: Mapping[str, str], margins: Mapping[str, float]) -> Json:
    """Draw every candidate's p95s over the baseline's, with their bounds.

    Args:
        rows: the comparisons.
        names: of measures, with a reader's word for each.
        margins: of the plan; a gain beyond the first line counts, a loss beyond the last is barred.
    """
    traces: list[Json] = []
    for at, (name, said) in enumerate(names.items()):
        told = [(n, _ratio(row, name)) for n, row in enumerate(rows)]
        found = [(n, ratio) for n, ratio in told if ratio is not None]
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [high - ratio for _, (ratio, _, high) in found],
            "arrayminus": [0 if low is None else ratio - low for _, (ratio, low, _) in found],
        }
        y = [n + _offset(at, len(names)) for n, _ in found]
        shape = {"mode": "markers", "marker": {"size": 8, "color": COLOURS[at]}}
        x = [ratio for _, (ratio, _, _) in found]
        traces.append({"name": said, "x": x, "y": y, "error_x": bars, **shape})
    units = [row["cell_id"] for row in rows]
    y_axis = {"tickvals": list(range(len(units))), "ticktext": units, "autorange": "reversed"}
    x_axis = {"type": "log", "tickvals": list(RATIO_TICKS)}
    x_axis["ticktext"] = [f"×{t:g}" for t in RATIO_TICKS]
    lines = (1.0 - margins["superior"], 1.0, 1.0 + margins["guard_latency"])
    made = layout(
        "comparison",
        "p95 over the baseline's (log; left is faster)",
        "",
        xaxis=x_axis,
        yaxis=y_axis,
        shapes=[_vertical(x) for x in lines],
        height=max(380, 90 + 70 * len(units)),
    )
    return {"data": traces, "layout": made}


def between_rounds(values: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """Return one-sided bounds of the mean over rounds; None for a single round."""
    if len(values) < 2:
        return None
    margin = t_quantile(1.0 - alpha, len(values) - 1) * sd(values) / math.sqrt(len(values))
    return mean(values) - margin, mean(values) + margin


def _attainment(row: Mapping[str, Any], _: float) -> tuple[float, float, float] | None:
    if "mean" not in row:
        return None
    low, high = row.get("low", row["mean"]), row.get("high", row["mean"])
    return row["mean"], max(0.0, low), min(1.0, high)


def _goodput(row: Mapping[str, Any], alpha: float) -> tuple[float, float, float] | None:
    value = row["goodput_per_s"]
    low, high = between_rounds(row["goodput_by_round"], alpha) or (value, value)
    return value, max(0.0, low), high


def _p95(row: Mapping[str, Any], measure: str) -> tuple[float, float, float] | None:
    value = row[measure]["offered"]["p95"].get("value")
    if value is None:
        return None
    runs = [v for v in row["per_run_p95"].get(measure, ()) if v is not None]
    return value, min(runs, default=value), max(runs, default=value)


def _shown(row: Mapping[str, Any], what: str, alpha: float) -> tuple[float, float, float] | None:
    if what in MEASURED:
        return _p95(row, what)
    return _attainment(row, alpha) if what == "attainment" else _goodput(row, alpha)


def by_stratum(rows: Rows, what: str, units: Sequence[str], alpha: float, limit: float) -> Json:
    """Draw one number of one class for every unit, side by side in each stratum.

    Args:
        rows: the class's strata.
        what: attainment, goodput_per_s or a measure, whose p95 is drawn.
        units: in order, the baseline first.
        alpha: of the look; bars are one-sided bounds over rounds, of a p95 its extreme runs.
        limit: the contract's.
    """
    strata = list(dict.fromkeys((row["mix"], row["rate"]) for row in rows))
    traces: list[Json] = []
    for at, unit in enumerate(units):
        own = [(row, _shown(row, what, alpha)) for row in rows if row["cell_id"] == unit]
        found = [(row, told) for row, told in own if told is not None]
        where = [strata.index((row["mix"], row["rate"])) for row, _ in found]
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [high - value for _, (value, _, high) in found],
            "arrayminus": [value - low for _, (value, low, _) in found],
        }
        shape = {"mode": "markers", "marker": {"size": 9, "color": _colour(units, unit)}}
        x = [w + _offset(at, len(units)) for w in where]
        y = [value for _, (value, _, _) in found]
        traces.append({"name": unit, "x": x, "y": y, "error_y": bars, **shape})
    names = ["<br>".join(pair) for pair in strata]
    words = {"attainment": "share of offered", "goodput_per_s": "requests per second"}
    x_axis = {"tickvals": list(range(len(strata))), "ticktext": names}
    x_axis["range"] = [-0.6, len(strata) - 0.4]
    y_axis: Json = {"rangemode": "tozero"} if what != "attainment" else {"tickformat": ".1%"}
    shapes = [] if what == "goodput_per_s" else [_horizontal(limit)]
    title = words.get(what, "seconds")
    made = layout(what, "mix, rate", title, xaxis=x_axis, yaxis=y_axis, shapes=shapes)
    return {"data": traces, "layout": made}


Curves = Mapping[Key, StratumCurves]


def distribution(curves: Curves, place: tuple[str, str, str], measure: str, told: Json) -> Json:
    """Draw the share of offered requests that had it within x seconds; dotted: of accepted alone.

    Args:
        curves: of all strata.
        place: class, mix and rate.
        measure: ttft_s, e2e_s or max_stall_s.
        told: the units in order, and the contract's limit in seconds.
    """
    name, mix, rate = place
    traces: list[Json] = []
    for unit in told["units"]:
        own = curves.get((unit, mix, rate))
        if own is None or name not in own.offered:
            continue
        line = {**_line(told["units"], unit), "shape": "hv"}
        x, y = own.offered[name][measure]
        traces.append({"name": unit, "mode": "lines", "line": line, "x": x, "y": y})
        if y and y[-1] < 1.0:
            x, y = own.accepted[name][measure]
            line = {**line, "dash": "dot", "width": 1}
            said = f"{unit}, accepted alone"
            traces.append({"name": said, "mode": "lines", "line": line, "x": x, "y": y})
    axis = {"type": "log", "tickvals": list(TICKS_S), "ticktext": [f"{t:g}" for t in TICKS_S]}
    y_axis = {"range": [0, 1.02], "tickformat": ".0%"}
    shapes = [_vertical(told["limit_s"])]
    made = layout(measure, "seconds (log)", "share", xaxis=axis, yaxis=y_axis, shapes=shapes)
    return {"data": traces, "layout": made}


def over_time(
    curves: Curves, units: Sequence[str], place: tuple[str, str], gauge: tuple[str, str]
) -> Json | None:
    """Draw a gauge over the seconds of a stratum, the largest of its runs; None if nobody looked.

    Args:
        curves: of all strata.
        units: in order.
        place: mix and rate.
        gauge: its key and its unit.
    """
    traces: list[Json] = []
    for unit in units:
        own = curves.get((unit, *place))
        lines = own.seconds.get(gauge[0], {}) if own else {}
        for at, (name, line) in enumerate(sorted(lines.items(), reverse=True)):
            seconds = sorted(line)
            style = _line(units, unit, DASHES[at % len(DASHES)])
            said = f"{unit}: {name}" if name else unit
            values = [round(line[s], 4) for s in seconds]
            shown = {"mode": "lines", "line": style, "x": seconds, "y": values}
            traces.append({"name": said, **shown})
    if not traces:
        return None
    y_axis = {"rangemode": "tozero"}
    return {
        "data": traces,
        "layout": layout(gauge[0], "seconds of the run", gauge[1], yaxis=y_axis),
    }


def ttft_parts(rows: Rows, units: Sequence[str], view: str) -> Json | None:
    """Draw what the time to the first token is made of, stacked, per unit; None if not measured.

    Args:
        rows: of one class in one stratum.
        units: in order.
        view: mean, or slowest for the slowest twentieth.
    """
    told = {row["cell_id"]: row["ttft_parts"][view] for row in rows if "ttft_parts" in row}
    if not told:
        return None
    names = [u for u in units if u in told]
    traces = [
        {
            "type": "bar",
            "name": said,
            "x": names,
            "y": [told[u].get(part, 0.0) for u in names],
            "marker": {"color": colour},
        }
        for part, (said, colour) in PARTS.items()
        if any(part in told[u] for u in names)
    ]
    made = layout("parts", "", "seconds", xaxis={"type": "category"})
    return {"data": traces, "layout": {**made, "barmode": "stack"}}
