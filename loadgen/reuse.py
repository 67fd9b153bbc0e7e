"""Says how much of the prompts the engines found in their prefix caches, per cell and class.

Two accounts stand side by side: what the answers said of themselves, by class and inside the
observation, and what the engines' own counters say, of all classes and with the ramp. A share is
of prompt tokens. Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["COLUMNS", "hit_lines", "hit_rows", "planned_rate", "table_rows"]

Json = Mapping[str, Any]
SUMS = ("requests", "prompt_tokens", "cached_tokens")
COLUMNS = (
    "cell",
    "class and where",
    "answers that told",
    "prompt tokens",
    "of them cached",
    "hit rate",
    "begin alike, by the plan",
    "hit rate by the engines' counters",
)


def planned_rate(plan: Json, size_class: str) -> float:
    """Return which share of a class's prompt tokens the plan lets begin alike; 0 where none."""
    own = plan.get("reuse", {}).get(size_class)
    if own is None:
        return 0.0
    prompt_tokens = plan["classes"][size_class]["prompt_tokens"]
    return float(own["share"] * own["shared_tokens"] / prompt_tokens)


def _engines(runs: Sequence[Json], row: Json) -> dict[str, Any]:
    place = row["cell_id"], row["mix"], row["rate"]
    told = [
        run["prefix_cache"]
        for run in runs
        if (run["unit"], run["mix"], run["rate"]) == place
        and run["repeat"] in row["rounds"]
        and "prefix_cache" in run
    ]
    queries, hits = (sum(one[k] for one in told) for k in ("queries", "hits"))
    return (
        {"engines": {"queries": queries, "hits": hits, "hit_rate": hits / queries}} if told else {}
    )


def hit_rows(strata: Sequence[Json], runs: Sequence[Json], plan: Json) -> list[dict[str, Any]]:
    """Return one row per cell, mix, rate and class; what nobody told is absent.

    Args:
        strata: the analysis's rows.
        runs: its valid runs.
        plan: says what begins alike.
    """
    names = ("cell_id", "mix", "rate", "size_class")
    cells = [cell["cell_id"] for cell in plan["cells"]]

    def place(row: Json) -> tuple[int, str, str, int]:
        at = plan["class_order"].index(row["size_class"])
        return cells.index(row["cell_id"]), row["mix"], row["rate"], at

    return [
        {
            **{k: row[k] for k in names},
            "planned_rate": planned_rate(plan, row["size_class"]),
            **row.get("prefix_cache", {}),
            **_engines(runs, row),
        }
        for row in sorted(strata, key=place)
    ]


def _share(row: Json) -> str:
    return f"{row['hit_rate']:.1%}" if "hit_rate" in row else "not told"


def hit_lines(analysis: Json) -> list[str]:
    """Return a sentence for each cell, mix and rate, for the terminal."""
    places: dict[tuple[str, str, str], list[Json]] = {}
    for row in analysis.get("prefix_reuse", ()):
        places.setdefault((row["cell_id"], row["mix"], row["rate"]), []).append(row)
    return [_line(*place, rows) for place, rows in places.items()]


def _line(cell_id: str, mix: str, rate: str, rows: Sequence[Json]) -> str:
    told = ", ".join(f"{row['size_class']} {_share(row)}" for row in rows)
    planned = ", ".join(f"{row['planned_rate']:.1%}" for row in rows)
    own = rows[0].get("engines")
    counted = "" if own is None else f"; by the engines' own counters {_share(own)} of all classes"
    return (
        f"{cell_id} at {mix} {rate}: prompt tokens found in the cache: {told} "
        f"(begin alike by the plan: {planned}{counted})"
    )


def table_rows(analysis: Json) -> list[tuple[str, ...]]:
    """Return the rows as the columns name them."""
    return [
        (
            row["cell_id"],
            f"{row['size_class']} at {row['mix']} {row['rate']}",
            *(f"{row[k]:,}" if k in row else "–" for k in SUMS),
            _share(row),
            f"{row['planned_rate']:.1%}",
            _share(row["engines"]) if "engines" in row else "–",
        )
        for row in analysis["prefix_reuse"]
    ]
