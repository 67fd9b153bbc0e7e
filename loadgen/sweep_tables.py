"""Words a sweep's strata, comparisons, checks and absences as rows of tables.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.page import Cell
from loadgen.tables import cell, verdict_line
from loadgen.words import NO_VERDICT, guard_words, measure_words, p_words

__all__ = [
    "CELL_COLUMNS",
    "GUARD_COLUMNS",
    "LAG_COLUMNS",
    "LENGTH_COLUMNS",
    "PREEMPTION_COLUMNS",
    "STRATUM_COLUMNS",
    "absences",
    "cell_rows",
    "checks",
    "conclusion_lines",
    "guard_rows",
    "lag_rows",
    "length_rows",
    "named_rows",
    "preemption_rows",
    "stratum_rows",
]

Json = Mapping[str, Any]
Row = tuple[str | Cell, ...]
STRATUM_COLUMNS = (
    "cell",
    "contract",
    "attainment",
    "its bounds",
    "goodput/s",
    "TTFT p50",
    "TTFT p95",
    "TTFT p99",
    "e2e p95",
    "stall p95",
    "offered",
    "ok",
    "refused",
    "failed",
    "accepted/offered",
    "TTFT p95 accepted",
    "e2e p95 accepted",
)
CELL_COLUMNS = ("cell", "contract", "mark", "against the baseline", "guardrails", "changes")
GUARD_COLUMNS = ("cell", "guardrail", "value", "its bound", "limit", "held")
LENGTH_COLUMNS = ("cell", "class", "tokens at most", "responses", "p95 TTFT", "p95 end to end")
PREEMPTION_COLUMNS = ("cell", "mix", "rate", "preemptions", "restarts", "runs", "fullest KV cache")
LAG_COLUMNS = (
    "cell",
    "runs",
    "dispatch lag p50",
    "worst p99",
    "worst",
    "prompt tokens as planned",
    "scrapes failed",
)
MARKS = {"pass": "✓ pass", "fail": "✗ fail", "undecided": "? undecided"}
KINDS = {"pass": "pass", "fail": "fail", "undecided": "open"}
REFUSED = ("rejected", "expired")


def state_cell(state: str) -> Cell:
    """Return a state as mark, word and colour: it is never told by colour alone."""
    return Cell(MARKS[state], KINDS[state])


def _bounds(row: Json) -> str:
    if "low" not in row:
        return "one round: none"
    return f"{max(0.0, row['low']):.1%} – {min(1.0, row['high']):.1%}"


def _p(row: Json, measure: str, name: str, view: str = "offered") -> str:
    own = row[measure][view]
    return cell(own[name], own["n"])


def _stratum(row: Json) -> Row:
    outcomes, n = row["outcomes"], row["offered"]
    refused = sum(outcomes[o] for o in REFUSED)
    return (
        row["cell_id"],
        state_cell(row["state"]) if row["gate"] else Cell("no gate", "dim"),
        f"{row['attainment']:.2%}" if "attainment" in row else "–",
        _bounds(row),
        f"{row['goodput_per_s']:.2f}",
        *(_p(row, "ttft_s", name) for name in ("p50", "p95", "p99")),
        _p(row, "e2e_s", "p95"),
        _p(row, "max_stall_s", "p95"),
        f"{n:,}",
        f"{outcomes['ok']:,}",
        f"{refused:,}",
        f"{n - outcomes['ok'] - refused:,}",
        f"{row['accepted_over_offered']:.1%}" if "accepted_over_offered" in row else "–",
        _p(row, "ttft_s", "p95", "accepted"),
        _p(row, "e2e_s", "p95", "accepted"),
    )


def stratum_rows(rows: Sequence[Json], units: Sequence[str]) -> list[Row]:
    """Return one row per unit, in the order of the units."""
    return [_stratum(row) for unit in units for row in rows if row["cell_id"] == unit]


def _primary(key: str, primary: Json, names: Sequence[str]) -> str:
    word = measure_words(key, names)
    if primary.get("unbounded"):
        return f"{word}: unbounded, a request in the p95 was never answered"
    if "ratio" not in primary:
        return f"{word}: not compared"
    mark = ", superior" if primary["superior"] else ""
    return (
        f"{word}: {primary['ratio'] - 1:+.1%} [{primary['low'] - 1:+.1%}, "
        f"{primary['high'] - 1:+.1%}], {p_words(primary['p_holm'])}{mark}"
    )


def _mark(row: Json, decision: Json) -> Cell:
    if all("not_compared" in primary for primary in row["primaries"].values()):
        return Cell("not compared yet", "dim words")
    if row["cell_id"] == decision.get("named"):
        return Cell("★ named by the verdict", "pass words")
    if row["superior"] and row["guardrails_held"]:
        return Cell("superior, guardrails held", "pass words")
    if row["superior"]:
        return Cell("superior, but a guardrail is not held", "open words")
    return Cell("not superior", "dim words")


def _changed(own: Json) -> str:
    lines = [
        f"{name}: {c['from']} → {c['to']}" if isinstance(c, Mapping) else str(name)
        for name, c in own.get("changed", {}).items()
    ]
    return "\n".join(lines) or "–"


def _rails(row: Json, names: Sequence[str]) -> Cell:
    rails = row["guardrails"]
    lost = [measure_words(k, names) for k, rail in rails.items() if not rail["held"]]
    if not any("bound" in rail for key, rail in rails.items() if not key.endswith("_failures")):
        return Cell("not measured yet", "dim words")
    if not lost:
        return Cell(f"✓ all {len(rails)} held", "pass words")
    return Cell(f"✗ not held: {', '.join(lost)}", "fail words")


def _compared(own: Json, row: Json | None, analysis: Json, decision: Json) -> Row:
    names = analysis["class_order"]
    if row is None:
        said = "the baseline" if own["cell_id"] == analysis["base"] else "not a candidate"
        nothing = Cell("–", "words")
        return (
            own["cell_id"],
            state_cell(own["state"]),
            Cell(said, "dim words"),
            nothing,
            nothing,
            Cell(_changed(own), "words"),
        )
    told = {k: p for k, p in row["primaries"].items() if "not_compared" not in p}
    primaries = "\n".join(_primary(k, p, names) for k, p in told.items()) or "–"
    differs = "".join(f"\n{said}" for said in row["output_differs"])
    return (
        own["cell_id"],
        state_cell(own["state"]),
        _mark(row, decision),
        Cell(primaries + differs, "words"),
        _rails(row, names),
        Cell(_changed(own), "words"),
    )


def cell_rows(analysis: Json, decision: Json) -> list[Row]:
    """Return one row per unit: its state, what it changes, how it compares, the verdict's mark."""
    rows = {row["cell_id"]: row for row in analysis["comparisons"]}
    return [
        _compared(own, rows.get(own["cell_id"]), analysis, decision) for own in analysis["cells"]
    ]


def named_rows(analysis: Json, unit: str) -> tuple[tuple[str, ...], list[Row]]:
    """Return head and rows of a unit's p95s beside the baseline's, where several classes meet."""
    first, *others = analysis["class_order"]
    wanted = [(first, "ttft_s"), (first, "max_stall_s")]
    wanted += [(name, measure) for name in others for measure in ("ttft_s", "e2e_s")]
    held = {(r["cell_id"], r["size_class"], r["mix"], r["rate"]): r for r in analysis["strata"]}
    places = [tuple(pair) for name in others for pair in analysis["gates"].get(name, ())]
    rows: list[Row] = []
    for place in dict.fromkeys(places):
        pairs = [
            (held.get((analysis["base"], name, *place)), held.get((unit, name, *place)), measure)
            for name, measure in wanted
        ]
        rows.append((" ".join(place), *(_beside(*pair) for pair in pairs)))
    words = {"ttft_s": "p95 TTFT", "max_stall_s": "p95 stall", "e2e_s": "p95 end to end"}
    return ("mix and rate", *(f"{name} {words[m]}" for name, m in wanted)), rows


def _beside(base: Json | None, own: Json | None, measure: str) -> str:
    if base is None or own is None:
        return "–"
    return f"{_p(base, measure, 'p95')} → {_p(own, measure, 'p95')}"


def guard_rows(analysis: Json) -> list[Row]:
    """Return one row per candidate and guardrail."""
    found: list[Row] = []
    for row in analysis["comparisons"]:
        for key, rail in row["guardrails"].items():
            held = Cell("✓ held", "pass") if rail["held"] else Cell("✗ not held", "fail")
            word = measure_words(key, analysis["class_order"])
            found.append((row["cell_id"], word, *guard_words(key, rail), held))
    return found


def conclusion_lines(analysis: Json, decision: Json) -> list[str]:
    """Return the verdict and its reasons, for a terminal."""
    verdict = verdict_line(decision, virtual=analysis.get("virtual", False))
    none = [NO_VERDICT] if decision["verdict"] == "none" else []
    return [verdict, *none, *decision["reasons"], *decision.get("more_rounds", ())]


def length_rows(analysis: Json) -> list[Row]:
    """Return one row per candidate and strata of like output length; none where it was forced."""
    return [
        (
            row["cell_id"],
            own["size_class"],
            f"{own['tokens_at_most']:,}",
            f"{own['n']:,} and {own['base_n']:,}",
            *(f"{own[k] - 1:+.1%}" if k in own else "n/a" for k in ("ttft_p95", "e2e_p95")),
        )
        for row in analysis["comparisons"]
        for own in row.get("by_output", ())
    ]


def preemption_rows(analysis: Json) -> list[Row]:
    """Return one row per unit and stratum whose engines exported their preemptions."""
    found: list[Row] = []
    for s in analysis["explain"]["strata"]:
        if (told := s.get("preemptions")) is None:
            continue
        usage = f"{told['max_kv_usage']:.0%}" if "max_kv_usage" in told else "–"
        counts = (f"{told[k]:g}" for k in ("delta", "restarts", "runs"))
        found.append((s["cell_id"], s["mix"], s["rate"], *counts, usage))
    return found


def _lag(unit: str, runs: Sequence[Json]) -> Row:
    lags = [run["dispatch_lag_ms"] for run in runs]
    equal, told = (sum(run["prompt_tokens"][k] for run in runs) for k in ("equal", "of"))
    failed = sum(e.get("scrapes_failed", 0) for run in runs for e in run["engines"])
    return (
        unit,
        str(len(runs)),
        *(
            f"{value:.2f} ms"
            for value in (
                sorted(lag["p50"] for lag in lags)[len(lags) // 2],
                max(lag["p99"] for lag in lags),
                max(lag["max"] for lag in lags),
            )
        ),
        f"{equal:,} of {told:,}",
        str(failed),
    )


def lag_rows(analysis: Json, units: Sequence[str]) -> list[Row]:
    """Return per unit how punctual the client was, and what else is checked of its runs."""
    by_unit = {u: [r for r in analysis["runs"] if r["unit"] == u] for u in units}
    return [_lag(unit, runs) for unit, runs in by_unit.items() if runs]


def checks(analysis: Json) -> list[str]:
    """Return what should hold in a run and does not; it is shown, and makes no run invalid."""
    return [f"{run['run_id']}: {said}" for run in analysis["runs"] for said in run["checks"]]


def _attempt(row: Json) -> str:
    which = f", attempt {row['attempt']}" if "attempt" in row else ""
    return f"invalid: {row['run_id']}{which}: {'; '.join(row['faults'])}"


def absences(analysis: Json) -> list[str]:
    """Return everything that was planned and does not count, each with its reason."""
    said = [f"missing: {run_id}" for run_id in analysis["missing"]]
    said += [_attempt(row) for row in analysis["invalid"]]
    for kind in ("omitted", "excluded"):
        said += [f"{kind}: {row['cell_id']}: {row['reason']}" for row in analysis[kind]]
    said += [f"effective values unverified: {unit}" for unit in analysis["unverified"]]
    return said
