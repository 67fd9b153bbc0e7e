"""Words what was measured beside a sweep: policy arms, engines per class, and what was expected.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.page import Cell, Section, bullets, details, table
from loadgen.sweep_tables import CELL_COLUMNS, cell_rows
from loadgen.tables import cell

__all__ = ["arms_section", "expected_section", "isolation_section"]

Json = Mapping[str, Any]
MEASURES = {"TTFT p95": "ttft_s", "e2e p95": "e2e_s", "stall p95": "max_stall_s"}
APART_COLUMNS = ("class", "at", *MEASURES)
EXPECTED_COLUMNS = ("cell", "class", "at", *MEASURES, "attainment")
MEDIAN_OF = 0.5


def arms_section(arms: Json) -> Section:
    """Return what the gateway's policies buy, on one engine configuration.

    Args:
        arms: the analysis of the policy arms.
    """
    note = (
        "<p>The sweep varies the engine with admission off. Here the engine stays and the policy "
        "varies, on the same arrivals: admission by the gateway, priorities in the engine, "
        "both.</p>"
    )
    return Section(
        "What the gateway's policies buy", note + table(CELL_COLUMNS, cell_rows(arms, {}))
    )


def isolation_section(topology: Json, cost: Sequence[str]) -> Section:
    """Return how engines per class fared on equal hardware.

    Args:
        topology: the analysis of the topology runs.
        cost: sentences on what the split costs.
    """
    kinds = {"pass": "pass", "fail": "fail"}
    rows = [
        (
            c["cell_id"],
            Cell(c["state"], kinds.get(c["state"], "open")),
            Cell("\n".join(c["reasons"]), "words"),
        )
        for c in topology["cells"]
    ]
    html = table(("topology", "contract", "why"), rows) + bullets(cost)
    return Section("Engines per class on equal hardware", html)


def _pair(expected: str, measured: str) -> str:
    return f"{expected} → {measured}"


def _p95(row: Json, measure: str) -> str:
    own = row[measure]["offered"]
    return cell(own["p95"], own["n"])


def _share(row: Json) -> str:
    return f"{row['attainment']:.1%}" if "attainment" in row else "–"


def _key(row: Json) -> tuple[str, str, str, str]:
    return row["cell_id"], row["size_class"], row["mix"], row["rate"]


def _ratios(pairs: Sequence[tuple[Json, Json]], measure: str) -> list[float]:
    told = [(a[measure]["offered"]["p95"], b[measure]["offered"]["p95"]) for a, b in pairs]
    return [
        b["value"] / a["value"] for a, b in told if a.get("value") and b.get("value") is not None
    ]


def _off(pairs: Sequence[tuple[Json, Json]]) -> list[str]:
    said = []
    for name, measure in MEASURES.items():
        off = sorted(abs(r - 1.0) for r in _ratios(pairs, measure))
        if off:
            middle = off[int(MEDIAN_OF * (len(off) - 1))]
            said.append(
                f"{name}: measured differs from expected by {middle:.0%} in the median and "
                f"{off[-1]:.0%} at most, over {len(off)} strata"
            )
    return said


def _apart(ratios: Sequence[float]) -> str:
    if not ratios:
        return "–"
    off = sorted(r - 1.0 for r in ratios)
    middle = off[int(MEDIAN_OF * (len(off) - 1))]
    return f"{_percent(middle)} ({_percent(off[0])} to {_percent(off[-1])})"


def _percent(share: float) -> str:
    return f"{round(share, 2) + 0.0:+.0%}"  # the sum makes no sign of what rounds to nothing


def _apart_rows(
    pairs: Sequence[tuple[Json, Json]], classes: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return one row per class and stratum: a median over all would hide where they differ."""
    found = {_key(own)[1:] for _, own in pairs}
    places = sorted(found, key=lambda place: (classes.index(place[0]), place))
    grouped = {p: [pair for pair in pairs if _key(pair[1])[1:] == p] for p in places}
    return [
        (name, f"{mix} {rate}", *(_apart(_ratios(own, m)) for m in MEASURES.values()))
        for (name, mix, rate), own in grouped.items()
    ]


def expected_section(expected: Json, measured: Json) -> Section:
    """Return what virtual time foretold beside what was measured, and how far they are apart.

    Args:
        expected: the analysis of the plan in virtual time.
        measured: the sweep's own.
    """
    known = {_key(row): row for row in expected["strata"]}
    pairs = [(known[_key(row)], row) for row in measured["strata"] if _key(row) in known]
    rows = [
        (
            own["cell_id"],
            own["size_class"],
            f"{own['mix']} {own['rate']}",
            *(_pair(_p95(told, m), _p95(own, m)) for m in MEASURES.values()),
            _pair(_share(told), _share(own)),
        )
        for told, own in pairs
    ]
    note = (
        "<p>What virtual time foretold, on the same arrivals. Measured over foretold, less one: "
        "the middle cell, and the extremes.</p>"
    )
    apart = table(APART_COLUMNS, _apart_rows(pairs, measured["class_order"]))
    every = details("Every cell: foretold → measured", table(EXPECTED_COLUMNS, rows))
    return Section("Expected and measured", note + apart + bullets(_off(pairs)) + every)
