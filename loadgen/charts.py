"""Turns analysed numbers and recorded rows into figures, as plain Plotly JSON.

Colours follow the class, line styles the way; texts take their colour from the page, so that one
figure serves light and dark. Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.record import Outcome, RequestRecord

__all__ = [
    "COLOURS",
    "DASHES",
    "LIMIT_LINE",
    "TICKS_S",
    "dispatch_lag",
    "distribution",
    "layout",
    "oldest_age",
    "predictions",
    "queue_depth",
]

Json = dict[str, Any]
# Okabe and Ito: told apart under the common colour vision deficiencies, on white and on black.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#999999", "#CC79A7", "#E69F00", "#56B4E9", "#B8A200")
TICKS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
ZERO_LEFT_OUT = "a class that never waited has no line"
LIMIT_LINE = {"color": "#888", "width": 1, "dash": "dot"}
DASHES = ("solid", "dash", "dot", "dashdot")


def layout(title: str, x: str, y: str, **more: Any) -> Json:
    """Return what all figures have in common: title, axes, legend above, no colour of their own."""
    return {
        "meta": {"title": title},
        "xaxis": {"title": {"text": x}, "automargin": True, **more.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, "automargin": True, **more.pop("yaxis", {})},
        "legend": {"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom"},
        "margin": {"l": 52, "r": 12, "t": 20, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "height": 380,
        "hovermode": "closest",
        **more,
    }


def _line(index: int) -> Json:
    return {"color": COLOURS[index % len(COLOURS)], "width": 2}


def distribution(
    runs: Sequence[tuple[str, Sequence[RequestRecord]]], size_class: str, limit_s: float
) -> Json:
    """Draw the share of offered requests whose first event came within x seconds.

    A way's curve ends below 1 by the share that never got one: failures are not left out.
    """
    traces: list[Json] = []
    for index, (label, records) in enumerate(runs):
        own = [r for r in records if r.size_class == size_class and r.phase == "observed"]
        waits = sorted(
            (r.first_event_us - r.planned_us) / 1e6
            for r in own
            if r.first_event_us is not None and r.outcome is Outcome.OK
        )
        if own:
            shares = [(n + 1) / len(own) for n in range(len(waits))]
            x = {"x": [round(w, 4) for w in waits], "y": [round(s, 4) for s in shares]}
            shape = {"color": _line(index)["color"], "width": 2, "shape": "hv"}
            traces.append({"name": label, "mode": "lines", "line": shape, **x})
    title = f"{size_class}: time to first event from planned arrival, all offered"
    axis = {"type": "log", "tickvals": list(TICKS_S), "ticktext": [f"{t:g}" for t in TICKS_S]}
    limit = {"type": "line", "x0": limit_s, "x1": limit_s, "y0": 0, "y1": 1, "yref": "paper"}
    shapes = [{**limit, "line": LIMIT_LINE}]
    y = {"range": [0, 1.02], "tickformat": ".0%"}
    made = layout(title, "seconds (log)", "share", xaxis=axis, yaxis=y, shapes=shapes)
    return {"data": traces, "layout": made}


def _series(
    runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], key: str, title: str, y: str
) -> Json:
    traces: list[Json] = []
    for index, (label, samples) in enumerate(runs):
        rows = [s for s in samples if s.get("source") == "gateway" and s.get("up")]
        names = sorted({name for row in rows for name in row.get(key, {})}, reverse=True)
        for number, name in enumerate(names):
            values = [row.get(key, {}).get(name) for row in rows]
            if not any(values):
                continue
            line = {**_line(index), "dash": DASHES[number % len(DASHES)]}
            x = {"x": [row["t_s"] for row in rows], "y": values}
            traces.append({"name": f"{label}: {name}", "mode": "lines", "line": line, **x})
    return {"data": traces, "layout": layout(title, "seconds of the run", y)}


def oldest_age(runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Json:
    """Draw the age of the oldest request waiting in the gateway, per way and class."""
    title = f"Oldest waiting request in the gateway ({ZERO_LEFT_OUT})"
    return _series(runs, "oldest_age_s", title, "seconds")


def queue_depth(runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Json:
    """Draw how many requests wait in the gateway, per way and class."""
    title = f"Requests waiting in the gateway ({ZERO_LEFT_OUT})"
    return _series(runs, "queue_depth", title, "requests")


def dispatch_lag(runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], limit_ms: float) -> Json:
    """Draw how late the client itself was, second by second."""
    traces: list[Json] = []
    for index, (label, samples) in enumerate(runs):
        rows = [s for s in samples if s.get("source") == "client"]
        x = {"x": [r["t_s"] for r in rows], "y": [r["dispatch_lag_ms"] for r in rows]}
        traces.append({"name": label, "mode": "lines+markers", "line": _line(index), **x})
    limit = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit_ms, "y1": limit_ms}
    title = "Client: worst dispatch lag of each second"
    made = layout(
        title, "seconds of the run", "milliseconds", shapes=[{**limit, "line": LIMIT_LINE}]
    )
    return {"data": traces, "layout": made}


def predictions(rows: Sequence[tuple[str, float, float]]) -> Json:
    """Draw predicted beside measured p95 of the time to first event."""
    labels = [label for label, _, _ in rows]
    bars = [
        {"type": "bar", "name": name, "x": labels, "y": values, "marker": {"color": colour}}
        for name, colour, values in (
            ("predicted", COLOURS[3], [p for _, p, _ in rows]),
            ("measured", COLOURS[1], [m for _, _, m in rows]),
        )
    ]
    title = "p95 time to first event: predicted in virtual time, and measured"
    made = layout(title, "", "seconds (log)", yaxis={"type": "log"})
    return {"data": bars, "layout": {**made, "barmode": "group"}}
