"""Compares units with the baseline: two-way analysis, unit and round, of one number per run set.

A cell and its runs of a round share one engine, so its strata are not replicates: the number is
their mean, one per unit and round, and the error is what unit and round together leave over.
`table[unit][round]` holds ln Q, or an attainment. Pure: no I/O, no clock.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from loadgen.stats import first_round, mean, t_quantile, t_tail

__all__ = ["Contrast", "Spread", "contrast", "detectable", "rounds_for", "spread_of"]

Table = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class Spread:
    """The error of a two-way table: mean square, its degrees of freedom, whose it is."""

    mse: float
    df: int
    units: tuple[str, ...]
    left_out: tuple[str, ...]
    rounds: int

    def se(self, rounds: int | None = None) -> float:
        """Return the standard error of a difference of two units' means over the rounds."""
        return math.sqrt(2.0 * self.mse / (rounds or self.rounds))


@dataclass(frozen=True, slots=True)
class Contrast:
    """A unit less the baseline: difference of means, standard error, degrees of freedom."""

    difference: float
    se: float
    df: int

    @property
    def p_less(self) -> float:
        """One-sided p of the unit not being below the baseline."""
        if self.se == 0.0:
            return 0.0 if self.difference < 0.0 else 1.0
        return t_tail(-self.difference / self.se, self.df)

    def high(self, alpha: float) -> float:
        """Return the one-sided upper bound of the difference."""
        return self.difference + t_quantile(1.0 - alpha, self.df) * self.se

    def low(self, alpha: float) -> float:
        """Return the one-sided lower bound of the difference."""
        return self.difference - t_quantile(1.0 - alpha, self.df) * self.se


def spread_of(table: Table, left_out: Collection[str] = ()) -> Spread | None:
    """Return the error over the units that have every round; None with fewer than two by two.

    Args:
        table: one number per unit and round.
        left_out: units that stay out of the error; they are named.
    """
    rounds = sorted({r for row in table.values() for r in row})
    whole = [u for u, row in table.items() if u not in left_out and len(row) == len(rounds)]
    if len(whole) < 2 or len(rounds) < 2:
        return None
    df = (len(whole) - 1) * (len(rounds) - 1)
    unit_mean = {u: mean([table[u][r] for r in rounds]) for u in whole}
    round_mean = {r: mean([table[u][r] for u in whole]) for r in rounds}
    grand = mean(list(unit_mean.values()))
    left = (table[u][r] - unit_mean[u] - round_mean[r] + grand for u in whole for r in rounds)
    outside = tuple(u for u in table if u not in whole)
    return Spread(math.fsum(x * x for x in left) / df, df, tuple(whole), outside, len(rounds))


def contrast(table: Table, unit: str, base: str, spread: Spread) -> Contrast | None:
    """Return the unit less the baseline over the rounds that both have; None if there are none."""
    own, other = table.get(unit, {}), table.get(base, {})
    common = sorted(own.keys() & other.keys())
    if not common:
        return None
    difference = mean([own[r] - other[r] for r in common])
    return Contrast(difference, spread.se(len(common)), spread.df)


def detectable(spread: Spread, alpha: float) -> float:
    """Return the smallest relative fall of Q that such a spread lets a test at alpha see."""
    return 1.0 - math.exp(-t_quantile(1.0 - alpha, spread.df) * spread.se())


def rounds_for(spread: Spread, difference: float, alpha: float) -> int | None:
    """Return from how many rounds on a true difference below zero would be seen; None beyond 60.

    Args:
        spread: as seen; its units stay, its rounds grow.
        difference: as seen, negative.
        alpha: of the test, after correction for how many are made.
    """

    def seen(rounds: int) -> bool:
        df = (len(spread.units) - 1) * (rounds - 1)
        return -difference >= t_quantile(1.0 - alpha, df) * spread.se(rounds)

    return first_round(spread.rounds + 1, seen)
