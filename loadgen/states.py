"""Decides whether requests prove that a contract is met, prove that it is not, or prove neither.

pass: so few misses would be unlikely (below alpha) if the class only just met its target, and the
mean of the runs, less its uncertainty, reaches the target. fail: so many misses would be unlikely
if it did meet it, and the mean of the runs, plus its uncertainty, stays below. Else undecided: lack
of proof is never proof of failure. The bound on run means is there because requests queue together,
so that the binomial bound alone is far from its nominal error. Pure: no I/O, no clock.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from loadgen.stats import at_least, at_most, first_round, mean, sd, t_quantile

__all__ = ["Evidence", "State", "describe", "more_rounds", "state_of", "worst"]


class State(StrEnum):
    """What is proved of a contract."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Pooled offered requests, how many of them missed, and each run's share that did not."""

    n: int
    misses: int
    attainments: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over runs."""
        return mean(self.attainments)

    def margin(self, alpha: float) -> float:
        """Return the one-sided uncertainty of the mean over runs; infinite for a single run."""
        rounds = len(self.attainments)
        if rounds < 2:
            return math.inf
        return t_quantile(1.0 - alpha, rounds - 1) * sd(self.attainments) / math.sqrt(rounds)

    def repeated(self, rounds: int) -> "Evidence":
        """Return what so many rounds would hold if they went on like these."""
        factor = rounds / len(self.attainments)
        return Evidence(round(self.n * factor), round(self.misses * factor), self.attainments)


def _judge(evidence: Evidence, target: float, alpha: float, margin: Callable[[], float]) -> State:
    if target >= 1.0:  # not one may miss: a single miss is proof, none is all that can be asked
        return State.FAIL if evidence.misses else State.PASS
    n, misses = evidence.n, evidence.misses
    if at_most(misses, n, 1.0 - target) < alpha and evidence.mean - margin() >= target:
        return State.PASS
    if at_least(misses, n, 1.0 - target) < alpha and evidence.mean + margin() < target:
        return State.FAIL
    return State.UNDECIDED


def state_of(evidence: Evidence, target: float, alpha: float) -> State:
    """Return what the evidence proves of a target attainment at one look's alpha."""
    if not evidence.n:
        return State.UNDECIDED
    return _judge(evidence, target, alpha, lambda: evidence.margin(alpha))


def more_rounds(evidence: Evidence, target: float, alpha: float, goal: State) -> int | None:
    """Return how many rounds like these would prove the goal; None beyond sixty.

    The runs' spread is taken as it was seen; a single run shows none.
    """
    if not evidence.n or len(evidence.attainments) < 2:
        return None
    spread = sd(evidence.attainments)

    def reached(rounds: int) -> bool:
        def margin() -> float:
            return t_quantile(1.0 - alpha, rounds - 1) * spread / math.sqrt(rounds)

        return _judge(evidence.repeated(rounds), target, alpha, margin) is goal

    return first_round(len(evidence.attainments) + 1, reached)


def describe(evidence: Evidence, target: float, alpha: float) -> dict[str, Any]:
    """Return the numbers that a state rests on."""
    if not evidence.n:
        return {"n": 0, "misses": 0, "attainments": []}
    figures: dict[str, Any] = {
        "n": evidence.n,
        "misses": evidence.misses,
        "attainments": list(evidence.attainments),
        "mean": evidence.mean,
        "sd": sd(evidence.attainments),
        "p_so_few": at_most(evidence.misses, evidence.n, 1.0 - target),
        "p_so_many": at_least(evidence.misses, evidence.n, 1.0 - target),
    }
    if len(evidence.attainments) > 1:
        margin = evidence.margin(alpha)
        figures |= {"low": evidence.mean - margin, "high": evidence.mean + margin}
    return figures


def worst(states: Iterable[State]) -> State:
    """Return fail if one fails, pass if all pass (at least one), else undecided."""
    found: Sequence[State] = list(states)
    if State.FAIL in found:
        return State.FAIL
    return State.PASS if found and set(found) == {State.PASS} else State.UNDECIDED
