"""Fits the coefficients of an engine step's cost to measured steps.

Least squares of relative errors, so that a step of 5 ms and one of 500 ms count alike; a
coefficient that would be negative is held at zero. Columns: the step itself, a prefill in it,
prompt tokens, decoding sequences, tokens of context attended, pairs of a prompt token and one
before it. Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.engine.cost import StepCost
from loadgen.quantiles import quantile
from loadgen.record import BenchError

__all__ = ["NAMES", "Fit", "Point", "fit_steps", "predicted_s", "step_model"]

NAMES = (
    *("base_s", "per_prefill_s", "prefill_token_s"),
    *("decode_sequence_s", "kv_token_s", "prefill_pair_s"),
)
NEAR = 0.05  # largest relative error of a fit that needs nothing more


@dataclass(frozen=True, slots=True)
class Point:
    """What some steps did and how long they took; `repeats` is how many stand behind it."""

    kind: str
    seconds: float
    steps: float
    prefill_steps: float = 0.0
    prefill_tokens: float = 0.0
    decode_sequences: float = 0.0
    kv_tokens: float = 0.0
    prefill_pairs: float = 0.0
    repeats: int = 1

    @property
    def row(self) -> tuple[float, ...]:
        """The columns, in the order of NAMES."""
        work = self.prefill_tokens, self.decode_sequences, self.kv_tokens, self.prefill_pairs
        return (self.steps, self.prefill_steps, *work)


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients and each point's relative error, predicted over measured less one."""

    coefficients: Mapping[str, float]
    errors: tuple[float, ...]

    @property
    def median_error(self) -> float:
        """The median of the absolute relative errors."""
        return quantile([abs(e) for e in self.errors], 0.5)

    @property
    def squares(self) -> float:
        """The sum of the squares of the relative errors."""
        return sum(e * e for e in self.errors)

    @property
    def max_error(self) -> float:
        """The largest absolute relative error."""
        return max(abs(e) for e in self.errors)


def _eliminated(rows: list[list[float]]) -> list[float]:
    """Solve a square system whose last column is the right side (partial pivoting)."""
    size = len(rows)
    for k in range(size):
        pivot = max(range(k, size), key=lambda i: abs(rows[i][k]))
        rows[k], rows[pivot] = rows[pivot], rows[k]
        if abs(rows[k][k]) < 1e-12:
            raise BenchError("step model: the measured steps do not tell the coefficients apart")
        for i in range(size):
            if i != k:
                factor = rows[i][k] / rows[k][k]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return [rows[k][size] / rows[k][k] for k in range(size)]


def _least_squares(table: Sequence[Sequence[float]], columns: Sequence[int]) -> dict[int, float]:
    """Fit ones by these columns, each brought to a like size first."""
    sizes = {c: max(abs(row[c]) for row in table) or 1.0 for c in columns}
    scaled = [[row[c] / sizes[c] for c in columns] for row in table]
    normal = [
        [
            *(sum(r[i] * r[j] for r in scaled) for j in range(len(columns))),
            sum(r[i] for r in scaled),
        ]
        for i in range(len(columns))
    ]
    return {c: x / sizes[c] for c, x in zip(columns, _eliminated(normal), strict=True)}


def predicted_s(coefficients: Mapping[str, float], point: Point) -> float:
    """Return what a point should take."""
    return sum(coefficients[name] * x for name, x in zip(NAMES, point.row, strict=True))


def fit_steps(points: Sequence[Point]) -> Fit:
    """Return the coefficients that explain the points best, none of them negative.

    Pairs go with the square of a prompt, so that what disturbs the largest prompts looks like them:
    they have a cost only where some point is far off without, and the squares are halved with it.

    Raises:
        BenchError: the points are too few or too alike.
    """
    if any(p.seconds <= 0 for p in points):
        raise BenchError("step model: a measured step took no time")
    plain = _fitted(points, range(len(NAMES) - 1))
    if plain.max_error < NEAR:
        return plain
    paired = _fitted(points, range(len(NAMES)))
    return paired if 2 * paired.squares < plain.squares else plain


def _fitted(points: Sequence[Point], columns: Sequence[int]) -> Fit:
    """Fit by some of the columns, those that nothing has left out."""
    table = [[x / p.seconds for x in p.row] for p in points]
    used = [c for c in columns if any(row[c] for row in table)]
    if len(points) < len(used):
        raise BenchError(f"step model: {len(points)} measurements for {len(used)} coefficients")
    found = _least_squares(table, used)
    while used and min(found.values()) < 0:
        used.remove(min(found, key=lambda c: found[c] * max(row[c] for row in table)))
        found = _least_squares(table, used)
    coefficients = {name: found.get(c, 0.0) for c, name in enumerate(NAMES)}
    errors = tuple(predicted_s(coefficients, p) / p.seconds - 1.0 for p in points)
    return Fit(coefficients, errors)


def step_model(fit: Fit, points: Sequence[Point], source: str, more: Mapping[str, Any]) -> Any:
    """Return the step-model file: coefficients, source, and what they were fitted to."""
    cost = StepCost(**fit.coefficients, source=source)
    rows = [
        {k: v for k, v in asdict(p).items() if v} | {"error": e}
        for p, e in zip(points, fit.errors, strict=True)
    ]
    told = {"median_error": fit.median_error, "max_error": fit.max_error, "points": rows, **more}
    return {**asdict(cost), "fit": told}
