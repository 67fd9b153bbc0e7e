"""Computes the few distributions a verdict rests on: Student's t, binomial tails, Holm's steps.

Plain arithmetic on top of the logarithm of the gamma function, so that analysis needs no numeric
library and another machine gets the same nine digits; the tests hold every function to scipy.
Pure: no I/O, no clock.
"""

import math
from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "at_least",
    "at_most",
    "first_round",
    "holm",
    "mean",
    "needed",
    "sd",
    "t_quantile",
    "t_tail",
]

TINY = 1e-300
PRECISION = 4e-16  # two units in the last place: less is never reached by some arguments
MOST_TERMS = 20_000
MOST_STEPS = 100
MOST_ROUNDS = 60


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of a non-empty sequence."""
    return math.fsum(values) / len(values)


def sd(values: Sequence[float]) -> float:
    """Return the sample's standard deviation (n - 1); 0.0 for a single value."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def _away_from_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY


def _fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function (modified Lentz)."""
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    total = d
    for m in range(1, MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        step = 1.0
        for term in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + term * d)
            c = _away_from_zero(1.0 + term / c)
            step = c * d
            total *= step
        if abs(step - 1.0) < PRECISION:
            break
    return total


def _beta_ratio(a: float, b: float, x: float, y: float) -> float:
    """Regularised incomplete beta function at x, given y = 1 - x without its rounding."""
    if x <= 0.0 or y <= 0.0:
        return 0.0 if x <= 0.0 else 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_front + a * math.log(x) + b * math.log(y))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, y) / b


def t_tail(t: float, df: int) -> float:
    """Return P(T > t) of Student's t with df >= 1 degrees of freedom."""
    square = t * t
    half = 0.5 * _beta_ratio(df / 2.0, 0.5, df / (df + square), square / (df + square))
    return half if t >= 0.0 else 1.0 - half


def _t_density(t: float, df: int) -> float:
    log = math.lgamma((df + 1) / 2.0) - math.lgamma(df / 2.0) - 0.5 * math.log(df * math.pi)
    return math.exp(log - (df + 1) / 2.0 * math.log1p(t * t / df))


def t_quantile(level: float, df: int) -> float:
    """Return t with P(T <= t) = level, for 0 < level < 1: Newton's steps, kept in a bracket."""
    if level < 0.5:
        return -t_quantile(1.0 - level, df)
    tail, low, high = 1.0 - level, 0.0, 1.0
    while t_tail(high, df) > tail:
        low, high = high, high * 2.0
    t = 0.5 * (low + high)
    for _ in range(MOST_STEPS):
        over = t_tail(t, df) - tail
        low, high = (t, high) if over > 0.0 else (low, t)
        step = over / _t_density(t, df)
        if abs(step) <= 1e-14 * t:
            break
        t = t + step if low < t + step < high else 0.5 * (low + high)
    return t


def at_most(count: int, n: int, p: float) -> float:
    """Return P(X <= count) for X binomial(n, p)."""
    if count >= n:
        return 1.0
    return 0.0 if count < 0 else _beta_ratio(n - count, count + 1.0, 1.0 - p, p)


def at_least(count: int, n: int, p: float) -> float:
    """Return P(X >= count) for X binomial(n, p)."""
    if count <= 0:
        return 1.0
    return 0.0 if count > n else _beta_ratio(count, n - count + 1.0, p, 1.0 - p)


def needed(level: float, misses: int, alpha: float) -> int:
    """Return from how many requests on, with so many misses, a quantile of the level is certified.

    At alpha 0.05: p95 from 59 with no miss and 93 with one, p99 from 299 and 473.
    """
    low, high = misses, 2 * misses + 2
    while at_most(misses, high, 1.0 - level) >= alpha:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if at_most(misses, middle, 1.0 - level) >= alpha else (low, middle)
        )
    return high


def first_round(low: int, reached: Callable[[int], bool]) -> int | None:
    """Return the first number of rounds, from `low` to sixty, that reaches what more only keep."""
    high = MOST_ROUNDS
    if low > high or not reached(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle + 1, high)
    return high


def holm(p_values: Mapping[str, float], family: int | None = None) -> dict[str, float]:
    """Return Holm's adjusted p per name.

    Args:
        p_values: of the tests that could be made.
        family: how many were planned; those that could not be made count as p = 1.
    """
    size = max(family or 0, len(p_values))
    adjusted: dict[str, float] = {}
    worst = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda k: (p_values[k], k))):
        worst = max(worst, min(1.0, (size - rank) * p_values[name]))
        adjusted[name] = worst
    return adjusted
