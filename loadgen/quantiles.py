"""Decides what a set of values may be said to show: nearest-rank quantiles and their limits.

A quantile with too few requests to mean anything is `{"too_few": true}` with its n; one that lands
on an unbounded value is `{"value": null, "failed": n}` with the largest finite value as `above_s`.
Absent means not measured, null means measured and unbounded. Pure: no I/O, no clock.
"""

import math
from collections.abc import Sequence
from typing import Any

__all__ = ["LEVELS", "NEEDED", "quantile", "ranked", "summary"]

Json = dict[str, Any]
# With fewer requests the rank of the quantile is the maximum: n such that q^n < 0.05.
NEEDED = {"p50": 1, "p95": 59, "p99": 299}
LEVELS = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def ranked(ordered: Sequence[float], q: float) -> float:
    """Return the nearest-rank quantile of ascending values, at least one; never interpolated."""
    return ordered[max(1, math.ceil(q * len(ordered) - 1e-9)) - 1]


def quantile(values: Sequence[float], q: float) -> float:
    """Return the nearest-rank quantile of a non-empty sequence; never interpolated."""
    return ranked(sorted(values), q)


def _cell(ordered: Sequence[float], finite: int, name: str) -> Json:
    n = len(ordered)
    if n < NEEDED[name]:
        return {"too_few": True, "n": n, "needs": NEEDED[name]}
    value = ranked(ordered, LEVELS[name])
    if math.isfinite(value):
        return {"value": value}
    failed: Json = {"value": None, "failed": n - finite}
    return {**failed, "above_s": ordered[finite - 1]} if finite else failed


def summary(values: Sequence[float]) -> Json:
    """Return n and every quantile that n supports; infinity stands for a failed request."""
    ordered = sorted(values)
    finite = sum(map(math.isfinite, ordered))
    return {"n": len(ordered), **{name: _cell(ordered, finite, name) for name in LEVELS}}
