"""Writes the demonstration's page: verdict first, then tables, figures and how to redo it.

It holds hashes and numbers, never prompt text. Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from loadgen.charts import dispatch_lag, distribution, oldest_age, predictions, queue_depth
from loadgen.page import Cell, Chooser, Page, Section, bullets, details, json_block, render, table
from loadgen.record import RequestRecord
from loadgen.tables import (
    COLUMNS,
    attempt_lines,
    change_lines,
    pool_lines,
    rows,
    verdict_line,
)

__all__ = ["Evidence", "contract_table", "render_report"]

Json = Mapping[str, Any]
Evidence = Sequence[tuple[str, Sequence[RequestRecord], Sequence[Json]]]
LAG_LIMIT_MS = 50.0


def _prediction_rows(analysis: Json) -> list[tuple[str, float, float]]:
    told, found = analysis.get("predictions", {}), []
    for run in analysis["runs"]:
        for name, figures in run["classes"].items():
            predicted = told.get(run["name"], {}).get(name, {}).get("ttft_p95_s")
            measured = figures["ttft_s"]["offered"]["p95"].get("value")
            if predicted is not None and measured is not None:
                found.append((f"{run['label']}, {name}", predicted, measured))
    return found


def _figures(analysis: Json, evidence: Evidence) -> list[Json]:
    records = [(label, own) for label, own, _ in evidence]
    samples = [(label, own) for label, _, own in evidence]
    limits = analysis["contract"]
    names = analysis["class_order"]
    figures: list[Json] = [distribution(records, n, limits[n]["ttft_s"]) for n in names]
    figures += [oldest_age(samples), queue_depth(samples), dispatch_lag(samples, LAG_LIMIT_MS)]
    if told := _prediction_rows(analysis):
        figures.append(predictions(told))
    return figures


def _invalid(analysis: Json) -> str:
    faults = [f"{r['label']}: {fault}" for r in analysis["runs"] for fault in r["faults"]]
    again = bullets(lines) if (lines := attempt_lines(analysis)) else ""
    if not faults:
        return f"<p>No run was invalid: the client kept its schedule in each.</p>{again}"
    return f'<div class="bad">{bullets(faults)}</div>{again}'


def _equalities(analysis: Json) -> list[str]:
    return [
        f"{r['label']}: prompt tokens equal to plan: {r['prompt_tokens']['equal']} of "
        f"{r['prompt_tokens']['of']}; dispatch lag p99 {r['dispatch_lag_ms']['p99']:.2f} ms"
        for r in analysis["runs"]
    ]


def contract_table(analysis: Json) -> str:
    """Return the contracts, a row per class; what a contract does not limit has a dash."""
    head = ("class", "TTFT", "max stall", "e2e", "attainment", "refused", "valid by")
    body = [
        (
            name,
            *(f"{limits[k]:g} s" for k in ("ttft_s", "max_stall_s", "e2e_s")),
            f"{limits['attainment']:.0%}",
            f"at most {limits['max_refused']:.0%}" if "max_refused" in limits else "–",
            Cell(limits.get("validator", "finish reason and usage"), "words"),
        )
        for name in analysis["class_order"]
        for limits in (analysis["contract"][name],)
    ]
    return table(head, body)


def _head(analysis: Json, decision: Json) -> str:
    intervals = analysis["intervals"]
    about = (
        f"{analysis['rate_per_s']:.1f} requests/s open loop, {intervals['ramp_s']:g} s ramp, "
        f"{intervals['window_s']:g} s window, drain at most {intervals['drain_s']:g} s. Latency "
        "counts from the planned arrival; a request that is not ok counts as unbounded."
    )
    return (
        f"<h1>Admission and isolation, one trace</h1>"
        f'<div class="verdict"><b>{escape(verdict_line(decision))}</b>'
        f"{bullets(decision['reasons'])}<div>Action: {escape(decision['action'])}. "
        f"Deployable: {'yes' if decision['deployable'] else 'no'}.</div></div>"
        f'<p class="dim">{escape(about)}</p>'
    )


def render_report(analysis: Json, decision: Json, evidence: Evidence, plotly_js: str) -> str:
    """Return the page.

    Args:
        analysis: of the folder.
        decision: that rests on it.
        evidence: per run its label, records and samples, for the figures.
        plotly_js: the plotting library's source.
    """
    choosers = [
        Chooser(f["layout"]["meta"]["title"], {"": f}) for f in _figures(analysis, evidence)
    ]
    reproduce = "<pre>make demo\nsluicegate bench verify out/demo</pre>"
    digests = details("SHA-256 of every input", json_block(decision["inputs"]))
    sections = (
        Section("Each way and class", table(COLUMNS, rows(analysis))),
        Section("Change against the first way", bullets(change_lines(analysis))),
        Section("Offered work of each pool", bullets(pool_lines(analysis))),
        Section("Figures", choosers=choosers),
        Section("What was invalid", _invalid(analysis)),
        Section("Checks", bullets(_equalities(analysis))),
        Section("Contract, fixed before the runs", contract_table(analysis)),
        Section("How to reproduce", reproduce + digests),
    )
    title = f"Sluicegate: {decision['verdict']}"
    sha256 = decision["inputs"]["analysis_sha256"]
    return render(Page(title, _head(analysis, decision), sections, sha256), plotly_js)
