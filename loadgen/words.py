"""Words a sweep for people who were not there: what its terms mean, what its verdict asks for.

Pure: no I/O, no clock.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "GLOSSARY",
    "MEASURE_WORDS",
    "NO_VERDICT",
    "broken_guards",
    "guard_words",
    "headline",
    "measure_words",
    "next_steps",
    "p_words",
    "plain",
    "what_it_is",
]

Json = Mapping[str, Any]
GLOSSARY = (
    (
        "TTFT",
        "Time to first token: from the moment a request was planned to be sent until the first "
        "piece of its answer came. Waiting anywhere on the way is inside it.",
    ),
    (
        "stall",
        "The longest pause between two pieces of one answer after the first: what a reader "
        "sees as the text stopping.",
    ),
    ("end to end", "From the planned sending until the last byte of the answer (e2e)."),
    (
        "p50, p95, p99",
        "Of a hundred requests, 50, 95 or 99 were at least this fast. Never "
        "interpolated; with too few requests for a p95 to mean anything the page says n/a.",
    ),
    (
        "offered",
        "Every request that was planned, whatever became of it. A request that was refused "
        "or failed counts as never answered, so a p95 can be unbounded: “> 3 s (7 failed)”.",
    ),
    (
        "accepted",
        "Only the requests that were answered validly. It hides refusals, so it is for "
        "description and never decides.",
    ),
    ("contract", "The limits that a class of requests was promised, written before the runs."),
    ("attainment", "The share of offered requests that met every limit of their contract."),
    ("goodput", "Requests per second that met every limit of their contract."),
    ("class", "Requests of one size: short and long prompts are promised different things."),
    (
        "cell, B0",
        "One complete configuration of the engine. B0 is the baseline; C1, C2 and so on "
        "each change something in it.",
    ),
    (
        "mix, rate, stratum",
        "A mix is which share of requests is of which class; a rate is how many "
        "come per second (near: close to what the engine can carry, low: well below). A stratum is "
        "one mix at one rate. A gate is a stratum where the contract decides.",
    ),
    (
        "round",
        "One repetition of everything, with arrivals of its own that are the same for every cell.",
    ),
    (
        "pass, fail, undecided",
        "What is proved. Undecided means that the data prove neither; it is "
        "never counted as a failure.",
    ),
    (
        "superior",
        "At least 10 % faster by estimate, and so clear that chance would seldom show it "
        "(after correcting for how many comparisons are made: Holm).",
    ),
    (
        "guardrail",
        "Something a candidate must be shown not to harm: the long class's times, what is "
        "answered, the short class's other latency.",
    ),
    (
        "preemption",
        "The engine ran out of room for what it had begun and threw work away to redo "
        "later. It is counted for a whole engine, not for a class.",
    ),
    (
        "KV cache",
        "Where an engine keeps what it has read of each prompt; when it is full, requests "
        "wait or are preempted.",
    ),
    (
        "prefill, decode",
        "Reading a prompt (prefill) and writing its answer token by token (decode). "
        "Both share each step of the engine.",
    ),
    (
        "client-faulty",
        "A run in which the measuring client itself could not keep its schedule. Such "
        "a run says nothing about the server: it is kept, shown and run again.",
    ),
    ("synthetic", "Made with simulated engines: how the rule behaves, not how your hardware does."),
)
MEASURE_WORDS = {
    "ttft_p95": "p95 TTFT",
    "stall_p95": "p95 stall",
    "e2e_p95": "p95 end to end",
    "attainment": "attainment",
    "failures": "failures",
}
NO_VERDICT = "There is no verdict for runs of this kind"
MISSING = re.compile(r"incomplete: (\S+) is missing")
HOLM = re.compile(r"Holm p ([0-9.e-]+)")
GATES = "in every gate stratum"
NAMED = 3  # of many alike, as many are named
SMALL_P = 0.001
NO_BREAK = "\u00a0"
KINDS = {
    "sweep": "Sweep of engine settings",
    "prefix_reuse": "Prompts that begin alike, with and without a prefix cache",
    "arms": "What the gateway's policies buy",
    "topology": "Shared engines against engines per class",
}


def what_it_is(plan_kind: str) -> str:
    """Return the page's heading."""
    return KINDS.get(plan_kind, plan_kind)


def measure_words(key: str, class_order: Sequence[str]) -> str:
    """Return a reader's word for a measure's key, for example short_ttft_p95."""
    for name in class_order:
        if key.startswith(f"{name}_"):
            rest = key.removeprefix(f"{name}_")
            return f"{name} {MEASURE_WORDS.get(rest, rest)}"
    return key


def _difference(key: str, value: float) -> str:
    if key.endswith(("_attainment", "_failures")):
        return f"{value * 100:+.2f} points"
    return f"{value - 1:+.1%}"


def guard_words(key: str, rail: Json) -> tuple[str, str, str]:
    """Return a guardrail's value, its bound and its limit."""
    value, bound = (
        _difference(key, rail[part]) if part in rail else "unbounded or not measured"
        for part in ("value", "bound")
    )
    return value, bound, _difference(key, rail["limit"]) if "limit" in rail else "–"


def broken_guards(analysis: Json) -> list[str]:
    """Return a line per candidate that is superior in something and guardrail that it breaks."""
    said = []
    for row in analysis["comparisons"]:
        for key, rail in row["guardrails"].items() if row["superior"] else ():
            if not rail["held"]:
                value, bound, limit = guard_words(key, rail)
                told = value if bound == value else f"{value}, bound {bound}"
                word = measure_words(key, analysis["class_order"])
                at = f"{row['cell_id']} against {analysis['base']}: {word}"
                said.append(f"{at} {told}: guardrail {limit} not held")
    return said


def p_words(p: float) -> str:
    """Return a p value; how far below a thousandth it lies rests on tails that nobody has seen."""
    said = "p < 0.001" if p < SMALL_P else f"p = {p:.2g}"
    return said.replace(" ", NO_BREAK)


def plain(lines: Iterable[str], analysis: Json) -> list[str]:
    """Return sentences with words instead of keys, runs that lack named together."""
    keys = [f"{name}_{rest}" for name in analysis["class_order"] for rest in MEASURE_WORDS]
    words = {key: measure_words(key, analysis["class_order"]) for key in keys}
    words[GATES] = "at every mix and rate where its contract decides"
    shown = [_replaced(line, words) for line in _joined(list(lines))]
    return [HOLM.sub(lambda found: f"Holm {p_words(float(found[1]))}", line) for line in shown]


def _joined(lines: Sequence[str]) -> list[str]:
    """Say what is missing in one line instead of one for each run."""
    lost = [found[1] for line in lines if (found := MISSING.fullmatch(line))]
    if len(lost) <= NAMED:
        return list(lines)
    more = f"{', '.join(lost[:NAMED])} and {len(lost) - NAMED} more"
    others = [line for line in lines if not MISSING.fullmatch(line)]
    return [f"{len(lost)} runs that the verdict needs are missing: {more}", *others]


def _replaced(line: str, words: Mapping[str, str]) -> str:
    for key, word in words.items():
        line = line.replace(key, word)
    return line


def headline(analysis: Json, decision: Json) -> str:
    """Return the verdict as a sentence."""
    word, _, rest = decision["verdict"].partition("(")
    named, base = rest.removesuffix(")"), analysis["base"]
    return {
        "retain": f"Keep {base}: nothing that was tried is shown to be better",
        "retune": f"{named} is better than the baseline {base}",
        "isolate": "Each class needs engines of its own",
        "capacity": f"More engines are needed for: {named}",
        "inconclusive": f"Not decided: keep {base}",
        "invalid": "These runs cannot decide anything yet",
    }.get(word, f"What was measured against {base}")


def _changes(cell: Json) -> list[str]:
    return [
        f"{name}: {change['from']} → {change['to']}" if isinstance(change, Mapping) else name
        for name, change in cell.get("changed", {}).items()
    ]


def _retune(analysis: Json, decision: Json) -> list[str]:
    cell: Json = next((c for c in analysis["cells"] if c["cell_id"] == decision["named"]), {})
    steps = [f"Change in the engine's arguments: {'; '.join(_changes(cell)) or 'see the cell'}."]
    if decision["deployable"]:
        steps.append(
            "Send a small share of traffic to engines with it, behind a route that can be turned "
            "back, and watch both classes before all of it."
        )
    return steps


def _by_verdict(analysis: Json, decision: Json) -> list[str]:
    word = decision["verdict"].partition("(")[0]
    if word == "retune":
        return _retune(analysis, decision)
    steps = {
        "retain": ["Change nothing: nothing that was tried is shown to be better."],
        "isolate": [
            "Give each class engines of its own, as in the isolated topology below, and weigh what "
            "that costs."
        ],
        "capacity": ["Add engines for the class named: neither settings nor isolation can help."],
        "inconclusive": ["Keep the baseline. What would decide:", *decision.get("more_rounds", ())],
        "invalid": [
            "Decide nothing on this. Complete the runs with `sluicegate bench run DIR --resume`, "
            "then analyse and decide again."
        ],
    }
    return steps.get(word, [f"{NO_VERDICT}: the contrasts stand above."])


def next_steps(analysis: Json, decision: Json) -> list[str]:
    """Return what the verdict asks the reader to do, and why not to deploy where that is so."""
    against = decision.get("not_deployable", ())
    steps = plain(_by_verdict(analysis, decision), analysis)
    if decision["verdict"].startswith(("retune", "isolate")) and against:
        steps.append(f"Not to be deployed on the strength of this: {'; '.join(against)}.")
    return steps
