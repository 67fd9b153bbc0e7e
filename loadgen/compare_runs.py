"""Decides whether two results differ: under which contracts, by how much, and beyond chance.

Strata that both hold are compared by their rounds: paired where both replayed the same arrivals,
else as two samples of unequal spread (Welch, its degrees of freedom rounded down). The family of
all tests is corrected by Holm; only what is still beyond chance counts as a difference. Without
two rounds on each side nothing is tested, and the figures alone are told. What has a number in one
result alone, as where the other's p95 falls on a request that failed, can't be tested: such results
are not called the same. Pure: no I/O, no clock.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from loadgen.stats import holm, mean, sd, t_quantile, t_tail

__all__ = ["compare_results", "contract_differences", "lopsided"]

Json = Mapping[str, Any]
Key = tuple[str, str, str, str]
LIMITS = ("ttft_s", "max_stall_s", "e2e_s", "attainment", "max_refused", "validator")
MEASURES = ("ttft_s", "e2e_s", "max_stall_s")
CONFIDENCE = 0.95
STAMP_S = 1e-6  # nothing is measured finer; it keeps the logarithm of a zero gap finite


@dataclass(frozen=True, slots=True)
class _Difference:
    """B less A: estimate, standard error, degrees of freedom."""

    value: float
    se: float
    df: int

    @property
    def p(self) -> float:
        """Two-sided p of there being no difference."""
        if self.se == 0.0:
            return 0.0 if self.value else 1.0
        return min(1.0, 2.0 * t_tail(abs(self.value) / self.se, self.df))

    def interval(self) -> tuple[float, float]:
        """Return the two-sided interval at the level above."""
        margin = t_quantile(0.5 + CONFIDENCE / 2.0, self.df) * self.se
        return self.value - margin, self.value + margin


def _paired(a: Sequence[float], b: Sequence[float]) -> _Difference:
    steps = [y - x for x, y in zip(a, b, strict=True)]
    return _Difference(mean(steps), sd(steps) / math.sqrt(len(steps)), len(steps) - 1)


def _apart(a: Sequence[float], b: Sequence[float]) -> _Difference:
    parts = [sd(values) ** 2 / len(values) for values in (a, b)]
    total = sum(parts)
    below = sum(p**2 / (len(v) - 1) for p, v in zip(parts, (a, b), strict=True))
    df = max(1, math.floor(total**2 / below)) if below else len(a) + len(b) - 2
    return _Difference(mean(b) - mean(a), math.sqrt(total), df)


def _difference(
    a: Sequence[float | None], b: Sequence[float | None], *, paired: bool
) -> _Difference | None:
    """None where a round is unbounded or there are fewer than two on a side."""
    own = [v for v in a if v is not None]
    other = [v for v in b if v is not None]
    if len(own) < len(a) or len(other) < len(b) or min(len(own), len(other)) < 2:
        return None
    same = paired and len(own) == len(other)
    return _paired(own, other) if same else _apart(own, other)


def contract_differences(a: Json, b: Json) -> list[str]:
    """Return every limit in which the contracts of two analyses differ."""
    said = []
    for name in sorted({*a["contract"], *b["contract"]}):
        one, other = a["contract"].get(name), b["contract"].get(name)
        if one is None or other is None:
            said.append(f"{name}: only {'B' if one is None else 'A'} has a contract")
            continue
        said += [
            f"{name}.{limit}: {one.get(limit)} in A, {other.get(limit)} in B"
            for limit in LIMITS
            if one.get(limit) != other.get(limit)
        ]
    return said


def _key(row: Json) -> Key:
    return row["cell_id"], row["mix"], row["rate"], row["size_class"]


def _demo_rows(analysis: Json) -> Iterable[dict[str, Any]]:
    for run in analysis["runs"]:
        for name, found in run["classes"].items():
            p95 = {m: [found[m]["offered"]["p95"].get("value")] for m in MEASURES}
            place = {"cell_id": run["name"], "mix": "", "rate": "", "size_class": name}
            shares = [found["attainment"]] if "attainment" in found else []
            yield {**place, "attainments": shares, "per_run_p95": p95, "rounds": [run["repeat"]],
                   "goodput_by_round": [found["goodput_per_s"]]}  # fmt: skip


def _strata(analysis: Json) -> dict[Key, Json]:
    rows = analysis["strata"] if "strata" in analysis else _demo_rows(analysis)
    return {_key(row): row for row in rows}


def _logs(values: Sequence[float | None]) -> list[float | None]:
    return [None if v is None else math.log(max(v, STAMP_S)) for v in values]


def _attainments(row: Json) -> Sequence[float | None]:
    found: Sequence[float | None] = row.get("attainments", ())
    return found


def _goodput(row: Json) -> Sequence[float | None]:
    found: Sequence[float | None] = row["goodput_by_round"]
    return found


def _log_p95(measure: str, row: Json) -> Sequence[float | None]:
    return _logs(row["per_run_p95"].get(measure, ()))


Numbers = Callable[[Json], Sequence[float | None]]
# What is compared: a number per round, and whether it is a logarithm, so that B/A is a ratio.
TOLD: Mapping[str, tuple[Numbers, bool]] = {
    "attainment": (_attainments, False),
    "goodput_per_s": (_goodput, False),
    **{f"{m.removesuffix('_s')}_p95_s": (partial(_log_p95, m), True) for m in MEASURES},
}


def _figures(values: Sequence[float | None], *, ratio: bool) -> float | None:
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None
    return math.exp(mean(known)) if ratio else mean(known)


def _row(key: Key, name: str, one: Json, other: Json, *, paired: bool) -> dict[str, Any]:
    numbers, ratio = TOLD[name]
    a, b = numbers(one), numbers(other)
    unit, mix, rate, size_class = key
    row: dict[str, Any] = {
        "cell_id": unit,
        "mix": mix,
        "rate": rate,
        "size_class": size_class,
        "measure": name,
        "a": _figures(a, ratio=ratio),
        "b": _figures(b, ratio=ratio),
    }
    made = _difference(a, b, paired=paired and one["rounds"] == other["rounds"])
    if made is None:
        return row
    low, high = made.interval()
    scale = math.exp if ratio else float
    return {
        **row,
        "ratio" if ratio else "difference": scale(made.value),
        "low": scale(low),
        "high": scale(high),
        "p": made.p,
    }


def _rows(a: Json, b: Json, *, paired: bool) -> list[dict[str, Any]]:
    mine, theirs = _strata(a), _strata(b)
    common = [key for key in mine if key in theirs]
    return [
        _row(key, name, mine[key], theirs[key], paired=paired) for key in common for name in TOLD
    ]


def _judge(rows: Sequence[dict[str, Any]]) -> None:
    tested = {str(n): row["p"] for n, row in enumerate(rows) if "p" in row}
    for number, p in holm(tested).items() if tested else ():
        rows[int(number)]["p_holm"] = p
        rows[int(number)]["differs"] = p <= 1.0 - CONFIDENCE


def _only(a: Json, b: Json) -> list[str]:
    mine, theirs = _strata(a), _strata(b)
    said = [f"only in A: {' '.join(k for k in key if k)}" for key in mine if key not in theirs]
    return said + [
        f"only in B: {' '.join(k for k in key if k)}" for key in theirs if key not in mine
    ]


def lopsided(rows: Iterable[Json]) -> list[Json]:
    """Return the rows that have a number in one of two results alone."""
    return [row for row in rows if (row["a"] is None) != (row["b"] is None)]


def compare_results(
    a: tuple[Json, Json], b: tuple[Json, Json], *, same_arrivals: bool
) -> dict[str, Any]:
    """Compare two results.

    Args:
        a: analysis and decision.
        b: analysis and decision.
        same_arrivals: both replayed the same traces, so that rounds may be paired.
    """
    contracts = contract_differences(a[0], b[0])
    rows = _rows(a[0], b[0], paired=same_arrivals)
    _judge(rows)
    differing = [row for row in rows if row.get("differs")]
    in_one = len(lopsided(rows))
    verdicts = {"a": a[1]["verdict"], "b": b[1]["verdict"]}
    alone = _only(a[0], b[0])
    differ = bool(contracts or differing or alone) or verdicts["a"] != verdicts["b"]
    return {
        "kind": "comparison",
        "same_contracts": not contracts,
        "contracts": contracts,
        "same_arrivals": same_arrivals,
        "verdicts": verdicts,
        "only_in_one": alone,
        "rows": rows,
        "differing": len(differing),
        "tested": sum("p" in row for row in rows),
        "number_in_one": in_one,
        "differ": differ,
        "same": not (differ or in_one),
    }
