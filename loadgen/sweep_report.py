"""Writes a sweep's page: the verdict and what to do, then the evidence in the order of doubt.

The same page serves policy arms and topologies, whose units are arms and topologies instead of
cells. It holds hashes and numbers, never prompt text. Pure: no I/O, no clock.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from loadgen.beside import arms_section, expected_section, isolation_section
from loadgen.causes import findings
from loadgen.curves import Key, StratumCurves
from loadgen.page import Cell, Page, Section, bullets, card, details, json_block, render, table
from loadgen.report import contract_table
from loadgen.reuse import COLUMNS, table_rows
from loadgen.sweep_figures import Drawn, class_figures, comparison_figure, time_figure
from loadgen.sweep_tables import (
    CELL_COLUMNS,
    GUARD_COLUMNS,
    LAG_COLUMNS,
    LENGTH_COLUMNS,
    PREEMPTION_COLUMNS,
    STRATUM_COLUMNS,
    absences,
    cell_rows,
    checks,
    guard_rows,
    lag_rows,
    length_rows,
    named_rows,
    preemption_rows,
    stratum_rows,
)
from loadgen.tables import verdict_line
from loadgen.words import GLOSSARY, headline, measure_words, next_steps, plain, what_it_is

__all__ = ["SweepEvidence", "render_sweep"]

Json = Mapping[str, Any]
FOLDED = 12  # a longer list is folded away
KINDS = ("pass", "fail", "undecided")
GOOD, STOP = ("retune", "retain"), ("invalid",)


@dataclass(frozen=True, slots=True)
class SweepEvidence:
    """What a page rests on.

    Args:
        plan: with rates, cells and the number of runs.
        analysis: of what there is.
        decision: that rests on it.
        curves: distributions and seconds of every stratum.
        identity: what was measured: a name and the values found, over all runs.
        topology: the analysis of topology runs, where the decision used one.
        arms: the analysis of policy arms, where there is one.
        expected: the analysis of the same plan in virtual time, where there is one.
        folder: its name, for the commands.
    """

    plan: Json
    analysis: Json
    decision: Json
    curves: Mapping[Key, StratumCurves]
    identity: Mapping[str, Sequence[str]] = field(default_factory=dict)
    topology: Json | None = None
    arms: Json | None = None
    expected: Json | None = None
    folder: str = "DIR"


def _units(analysis: Json) -> list[str]:
    return [cell["cell_id"] for cell in analysis["cells"]]


def _stamps(evidence: SweepEvidence) -> list[str]:
    analysis, planned = evidence.analysis, len(evidence.plan["runs"])
    said = []
    if analysis["missing"]:
        there = planned - len(analysis["missing"])
        said.append(
            f"Partial: {len(analysis['missing'])} of {planned} runs are not there yet "
            f"({there} are). The verdict is what would be said if nothing more came."
        )
    if not analysis["look"]["complete"]:
        said.append("No look of the plan is complete: states and comparisons are provisional.")
    if analysis["virtual"]:
        said.append(
            "Virtual time: the runs were computed with the simulated engines' scheduler, without "
            "sockets or servers. This is what to expect, not what was measured."
        )
    elif analysis["synthetic"]:
        said.append(
            "Synthetic: the engines were simulated. It shows how everything works together, and "
            "decides nothing about a deployment."
        )
    return said


def _verdict_box(evidence: SweepEvidence) -> str:
    decision, word = evidence.decision, evidence.decision["verdict"].partition("(")[0]
    tone = "good" if word in GOOD else "stop" if word in STOP else ""
    told = next_steps(evidence.analysis, decision)
    steps = [step.replace("`", "").replace(" DIR", f" {evidence.folder}") for step in told]
    reasons = plain(decision["reasons"], evidence.analysis)
    return (
        f'<div class="verdict {tone}"><b>{escape(headline(evidence.analysis, decision))}</b>'
        f'<div class="dim">{escape(verdict_line(decision))}</div>'
        f"<p><strong>Why</strong></p>{bullets(reasons)}{_in_numbers(evidence)}"
        f"<p><strong>What to do: {escape(decision['action'])}</strong></p>{bullets(steps)}"
        f"<p>Deployable: {'yes' if decision['deployable'] else 'no'}.</p></div>"
    )


def _in_numbers(evidence: SweepEvidence) -> str:
    named = evidence.decision.get("named")
    if named not in _units(evidence.analysis):
        return ""
    head, rows = named_rows(evidence.analysis, named)
    said = f"{evidence.analysis['base']} → {named}, of all offered requests:"
    return f"<p>{escape(said)}</p>{table(head, rows, stacked=True)}" if rows else ""


def _about(evidence: SweepEvidence) -> str:
    analysis, plan = evidence.analysis, evidence.plan
    times, look = analysis["intervals"], analysis["look"]
    planned = plan.get("strata") or plan["runs"]
    mixes = ", ".join(dict.fromkeys(row["mix"] for row in planned))
    return (
        f"{len(plan['runs'])} runs were planned: {len(_units(analysis))} configurations, mixes "
        f"{mixes}, {plan['rounds']} rounds. Each run offers its requests at planned moments, "
        f"whatever has been answered: {times['ramp_s']:g} s to warm up, {times['window_s']:g} s "
        f"observed, at most {times['drain_s']:g} s for what is still open. Judged after "
        f"{look['rounds']} rounds with a chance of error of {look['alpha']:g}. Latency counts from "
        "the planned moment; a request that was not answered validly counts as never answered."
    )


def _top(evidence: SweepEvidence) -> str:
    said = "<br>".join(map(escape, _stamps(evidence)))
    stamps = f'<p class="stamp">{said}</p>' if said else ""
    return (
        f"<h1>{escape(what_it_is(evidence.analysis['plan_kind']))}</h1>{stamps}"
        f'{_verdict_box(evidence)}<p class="dim">{escape(_about(evidence))}</p>'
    )


def _folded(lines: Sequence[str], what: str) -> str:
    html = bullets(lines)
    return details(f"{len(lines)} {what}", html) if len(lines) > FOLDED else html


def _gates(analysis: Json) -> str:
    lines = [
        f"{name}: {', '.join(' '.join(pair) for pair in pairs) or 'nowhere'}"
        for name, pairs in analysis["gates"].items()
    ]
    return f"<p>Where they decide (gates), as mix and rate:</p>{bullets(lines)}"


def _contracts(evidence: SweepEvidence) -> Section:
    rates = [
        f"{s['mix']} {s['rate']}: {s['rate_per_s']:g} requests/s"
        for s in evidence.plan.get("strata", ())
    ]
    offered = f"<p>Offered:</p>{bullets(rates)}" if rates else ""
    html = contract_table(evidence.analysis) + _gates(evidence.analysis) + offered
    return Section("Contracts, fixed before the runs", html)


def _punctual(analysis: Json) -> str:
    if analysis["virtual"]:
        return "<p>In virtual time no client can be late.</p>"
    lag = table(LAG_COLUMNS, lag_rows(analysis, _units(analysis)))
    return f"<h3>How punctual the client was</h3>{lag}"


def _repeated(analysis: Json) -> str:
    spoilt = sum("attempt" in row for row in analysis["invalid"])
    if not spoilt:
        return ""
    said = "1 attempt was" if spoilt == 1 else f"{spoilt} attempts were"
    return f" {said} invalid, kept, listed here and run again at once."


def _validity(evidence: SweepEvidence) -> Section:
    analysis, planned = evidence.analysis, len(evidence.plan["runs"])
    valid = sum(run["valid"] for run in analysis["runs"])
    said = (
        f"{valid} of {planned} planned runs are there and valid.{_repeated(analysis)} A run is "
        "invalid only where the measuring client failed; what a server does never makes a run "
        "invalid."
    )
    lost = absences(analysis)
    listed = _folded(lost, "runs or cells do not count") or (
        "<p>Nothing is missing, invalid, omitted or excluded.</p>"
    )
    noted = _folded(checks(analysis), "checks did not hold")
    html = f"<p>{escape(said)}</p>{listed}{noted}{_punctual(analysis)}"
    return Section("Validity: what is missing or invalid", html)


def _shown_gain(analysis: Json) -> list[str]:
    names = analysis["class_order"]
    said = [
        f"The smallest gain in {measure_words(k, names)} that these data could have shown: {v:.1%}"
        for k, v in analysis["smallest_gain"].items()
    ]
    said += [
        f"From run to run, {measure_words(k, names)} varies by {s['sd']:.1%}"
        + (f" (without {', '.join(s['left_out'])})" if s["left_out"] else "")
        for k, s in analysis["spread"].items()
        if s is not None and not k.endswith("attainment")
    ]
    for twin, primaries in analysis["aa"].items():
        told = [
            f"{measure_words(k, names)} {p['low'] - 1:+.1%} to {p['high'] - 1:+.1%}"
            for k, p in primaries.items()
            if "low" in p
        ]
        said.append(f"{twin} repeats {analysis['base']} and differs by {', '.join(told)}")
    return said


def _lengths(analysis: Json) -> str:
    rows = length_rows(analysis)
    said = "Responses of like length, against the baseline's (both counts given)"
    return details(said, table(LENGTH_COLUMNS, rows)) if rows else ""


def _compared(evidence: SweepEvidence, drawn: Drawn) -> Section:
    analysis = evidence.analysis
    level = 1.0 - analysis["look"]["alpha"]
    each = ", each measure by itself" if analysis["plan_kind"] == "arms" else ""
    said = (
        f"Every candidate against {analysis['base']} on the same arrivals, over the gates in which "
        f"several classes come together. In brackets one-sided {level:.0%} bounds; p is after "
        f"Holm's correction for {analysis['family']} comparisons{each}."
    )
    rows = guard_rows(analysis)
    html = (
        f"<p>{escape(said)}</p>{table(CELL_COLUMNS, cell_rows(analysis, evidence.decision))}"
        f"{bullets(_shown_gain(analysis))}"
        f"{details('Every guardrail with its bound', table(GUARD_COLUMNS, rows)) if rows else ''}"
        f"{_lengths(analysis)}"
    )
    return Section(f"Comparison with {analysis['base']}", html, comparison_figure(drawn))


def _states(rows: Sequence[Json]) -> str:
    if not rows[0]["gate"]:
        return "no gate"
    found = Counter(row["state"] for row in rows)
    return ", ".join(f"{found[state]} {state}" for state in KINDS if found[state])


def _class_section(evidence: SweepEvidence, name: str, drawn: Drawn) -> Section:
    analysis = evidence.analysis
    rows = [row for row in analysis["strata"] if row["size_class"] == name]
    if not rows:
        return Section(f"Class {name}", "<p>No valid run offered any request of this class.</p>")
    html, first = [], drawn.busiest(name)
    for mix, rate in drawn.strata:
        own = [row for row in rows if (row["mix"], row["rate"]) == (mix, rate)]
        if own:
            shown = table(STRATUM_COLUMNS, stratum_rows(own, drawn.units))
            said = f"{name} at {mix} {rate}: {_states(own)}"
            html.append(details(said, shown, opened=(mix, rate) == first))
    note = "<p>Bounds are one-sided over the rounds. Quantiles are of offered requests.</p>"
    return Section(f"Class {name}", note + "".join(html), class_figures(drawn, name, rows))


def _times(evidence: SweepEvidence, drawn: Drawn) -> Section:
    rows = preemption_rows(evidence.analysis)
    note = "<p>Preemptions are counted for whole engines: which class caused them is not known.</p>"
    shown = table(PREEMPTION_COLUMNS, rows) if rows else "<p>No engine exported preemptions.</p>"
    html = details("Preemptions by cell and stratum", note + shown)
    return Section("Second by second", html, time_figure(drawn))


def _explained(evidence: SweepEvidence) -> Section:
    kinds = {"seen": "fail", "not seen": "pass"}
    cards = (
        card(
            f.observation,
            Cell(f.seen, kinds.get(f.seen, "open")),
            (
                ("Numbers", f.numbers),
                ("First check", f.check),
                ("Candidate action", f.action),
                ("Rejected if", f.rejection),
            ),
        )
        for f in findings(evidence.analysis)
    )
    told = evidence.analysis["explain"]["fairness"]
    said = f"{told}, second by second above" if told.startswith("oldest") else told
    fairness = f"<p>Fairness: {escape(said)}.</p>"
    return Section("What the numbers point to", "".join(cards) + fairness)


def _reused(evidence: SweepEvidence) -> list[Section]:
    if "prefix_reuse" not in evidence.analysis:
        return []
    said = (
        "Share of prompt tokens that the engines did not compute, since another prompt had begun "
        "alike. By class as the answers told it, inside the observation; the engines' own counters "
        "are of all classes and include the ramp. The first prompt of a session finds nothing, "
        "and only whole blocks are found."
    )
    shown = table(COLUMNS, table_rows(evidence.analysis))
    return [Section("Prefix cache: what was found", f"<p>{escape(said)}</p>{shown}")]


def _beside(evidence: SweepEvidence) -> list[Section]:
    found = []
    if evidence.topology is not None:
        cost = evidence.decision.get("cost", {}).get("said", ())
        found.append(isolation_section(evidence.topology, cost))
    if evidence.arms is not None:
        found.append(arms_section(evidence.arms))
    if evidence.expected is not None:
        found.append(expected_section(evidence.expected, evidence.analysis))
    return found


def _measured(evidence: SweepEvidence) -> Section:
    baseline = evidence.plan.get("baseline", {})
    rows = [(name, Cell("\n".join(values), "words")) for name, values in evidence.identity.items()]
    if baseline:
        rows.append(("baseline", Cell(str(baseline.get("said", baseline.get("source"))), "words")))
    args = {c["cell_id"]: c["args"] for c in evidence.plan.get("cells", ()) if "args" in c}
    shown = details("Complete arguments of every cell", json_block(args)) if args else ""
    return Section("What was measured", table(("what", "value"), rows) + shown)


def _glossary() -> Section:
    items = "".join(f"<dt>{escape(w)}</dt><dd>{escape(m)}</dd>" for w, m in GLOSSARY)
    return Section("Glossary", f"<dl>{items}</dl>")


def _reproduce(evidence: SweepEvidence) -> Section:
    inputs, name = evidence.decision["inputs"], escape(evidence.folder)
    commands = (
        f"<pre>sluicegate bench verify {name}     # recomputes every digest, analysis, decision\n"
        f"sluicegate bench analyse {name}    # the analysis anew, from the records\n"
        f"sluicegate bench decide {name}     # the verdict anew, from the analysis\n"
        f"sluicegate bench report {name}     # this page\n"
        f"sluicegate bench timeline {name} RUN_ID     # one run, second by second</pre>"
    )
    named = {k: v for k, v in inputs.items() if k != "runs"}
    digests = json_block(named) + details(
        "SHA-256 of every run's files", json_block(inputs["runs"])
    )
    return Section("How to reproduce", commands + digests)


def render_sweep(evidence: SweepEvidence, plotly_js: str) -> str:
    """Return the page.

    Args:
        evidence: what it rests on.
        plotly_js: the plotting library's source.
    """
    analysis, decision = evidence.analysis, evidence.decision
    drawn = Drawn.of(analysis, evidence.plan, evidence.curves)
    sections = [
        _contracts(evidence),
        _validity(evidence),
        _compared(evidence, drawn),
        *(_class_section(evidence, name, drawn) for name in analysis["class_order"]),
        _times(evidence, drawn),
        _explained(evidence),
        *_reused(evidence),
        *_beside(evidence),
        _measured(evidence),
        _reproduce(evidence),
        _glossary(),
    ]
    title = f"Sluicegate: {decision['verdict']}"
    sha256 = decision["inputs"]["analysis_sha256"]
    return render(Page(title, _top(evidence), sections, sha256, contents=True), plotly_js)
