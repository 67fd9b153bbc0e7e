"""Shows one run second by second: what was offered and answered, who waited, what engines held.

As rows of small bars for a terminal, as a page, or as JSON. Every line keeps its seconds apart; a
second in which nobody looked is a gap, never a zero. Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from loadgen.charts import COLOURS, DASHES, layout
from loadgen.page import Chooser, Page, Section, render
from loadgen.record import RequestRecord
from loadgen.seconds import GAUGES, counts, gauge

__all__ = ["Line", "sparkline", "timeline", "timeline_json", "timeline_page"]

BARS = "▁▂▃▄▅▆▇█"
NONE = " "
COUNT_UNITS = {
    "offered": "requests",
    "ok": "requests",
    "refused": "requests",
    "failed": "requests",
    "in_flight": "requests",
    "output": "events",
}
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing over the seconds of a run.

    Args:
        title: what it is.
        unit: of its values.
        size_class: "" where it is of all classes.
        values: by second; seconds in which nobody looked are absent.
    """

    title: str
    unit: str
    size_class: str
    values: Mapping[int, float]


def _counted(records: Sequence[RequestRecord]) -> list[Line]:
    found = []
    for name in sorted({r.size_class for r in records}, reverse=True):
        own = counts([r for r in records if r.size_class == name])
        found += [Line(k.replace("_", " "), COUNT_UNITS[k], name, v) for k, v in own.items()]
    order = list(COUNT_UNITS)
    return sorted(found, key=lambda line: order.index(line.title.replace(" ", "_")))


def timeline(records: Sequence[RequestRecord], samples: Sequence[Row]) -> list[Line]:
    """Return everything that is known of each second of a run.

    Args:
        records: of all requests, ramp included.
        samples: the rows of every second.
    """
    looked = [
        Line(g.title, g.unit, name, values)
        for g in GAUGES
        for name, values in sorted(gauge(samples, g).items(), reverse=True)
    ]
    return [*_counted(records), *looked]


def _groups(seconds: range, columns: int) -> list[range]:
    step = max(1, -(-len(seconds) // columns))
    return [seconds[n : n + step] for n in range(0, len(seconds), step)]


def sparkline(values: Mapping[int, float], seconds: range, columns: int) -> str:
    """Return one bar per second, or per few seconds their largest; a space where nobody looked.

    Args:
        values: by second.
        seconds: to be shown.
        columns: at most so many bars.
    """
    top = max((values[s] for s in seconds if s in values), default=0.0)
    shown = []
    for group in _groups(seconds, columns):
        known = [values[s] for s in group if s in values]
        level = max(known, default=0.0) / top if top > 0.0 else 0.0
        shown.append(BARS[round(level * (len(BARS) - 1))] if known else NONE)
    return "".join(shown)


def timeline_json(run_id: str, lines: Sequence[Line]) -> dict[str, Any]:
    """Return the lines as JSON: seconds beside values."""
    return {
        "kind": "timeline",
        "run_id": run_id,
        "lines": [
            {
                "title": line.title,
                "unit": line.unit,
                **({"size_class": line.size_class} if line.size_class else {}),
                "t_s": sorted(line.values),
                "values": [line.values[s] for s in sorted(line.values)],
            }
            for line in lines
        ],
    }


def _figure(lines: Sequence[Line]) -> dict[str, Any]:
    traces = []
    for n, line in enumerate(lines):
        seconds = sorted(line.values)
        style = {"color": COLOURS[n % len(COLOURS)], "width": 2, "dash": DASHES[n % len(DASHES)]}
        values = [round(line.values[s], 4) for s in seconds]
        name = line.size_class or line.title
        traces.append({"name": name, "mode": "lines", "line": style, "x": seconds, "y": values})
    y_axis = {"rangemode": "tozero"}
    made = layout(lines[0].title, "seconds of the run", lines[0].unit, yaxis=y_axis, height=300)
    return {"data": traces, "layout": {**made, "showlegend": True}}


def timeline_page(run_id: str, lines: Sequence[Line], sha256: str, plotly_js: str) -> str:
    """Return the lines as a page, a figure for each title.

    Args:
        run_id: of the run.
        lines: from `timeline`.
        sha256: of its requests file.
        plotly_js: the plotting library's source.
    """
    titles = dict.fromkeys(line.title for line in lines)
    choosers = [
        Chooser(title, {"": _figure([line for line in lines if line.title == title])})
        for title in titles
    ]
    top = f"<h1>{escape(run_id)}, second by second</h1><p class='dim'>requests.jsonl {sha256}</p>"
    page = Page(f"Sluicegate: {run_id}", top, [Section("Every second", "", choosers)], sha256)
    return render(page, plotly_js)
