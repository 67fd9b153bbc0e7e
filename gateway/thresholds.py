"""Decides what a canary is aborted for: what is measured, how much is too much, how it is written.

A threshold is absolute (``limit``), relative to the stable arm (``margin``), or both. Rates and
attainments are parts of 1, ages are seconds. As text, in the command line::

    error_rate=0.02           more than 2 % of the candidate's requests fail
    error_rate=+0.01          over 1 % more of them fail than of the stable arm's
    error_rate=0.02,+0.01     both at once
    ttft_attainment=0.95,-0.03

Pure: no I/O, no clock.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = [
    "Metric",
    "Threshold",
    "ThresholdError",
    "defaults",
    "from_json",
    "from_text",
    "to_json",
]

WINDOW_S, MIN_WINDOW_S, MAX_WINDOW_S = 60.0, 2.0, 3600.0
MIN_COUNT, MAX_COUNT = 50, 1_000_000
AGE_SAMPLES = 3


class Metric(StrEnum):
    """What of an arm is watched."""

    ERROR_RATE = "error_rate"
    REFUSALS = "refusals"
    TTFT_ATTAINMENT = "ttft_attainment"
    STALL_ATTAINMENT = "stall_attainment"
    OLDEST_AGE = "oldest_age_s"

    @property
    def wants_much(self) -> bool:
        """Whether more of it is better."""
        return self in {Metric.TTFT_ATTAINMENT, Metric.STALL_ATTAINMENT}


class ThresholdError(ValueError):
    """A threshold that can't be; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """One reason to abort.

    ``limit``: the largest rate or age, or the least attainment. ``margin``: by how much the
    candidate may be worse than the stable arm. Over the last ``window_s`` seconds each arm needs
    ``min_count`` requests; of ages, so many samples one after another, whatever the window.

    Raises:
        ThresholdError: neither a limit nor a margin, or one out of range.
    """

    metric: Metric
    limit: float | None = None
    margin: float | None = None
    window_s: float = WINDOW_S
    min_count: int = MIN_COUNT

    def __post_init__(self) -> None:
        most = MAX_WINDOW_S if self.metric is Metric.OLDEST_AGE else 1.0
        if self.limit is None and self.margin is None:
            raise ThresholdError(f"{self.metric}: needs a limit, a margin to stable, or both")
        for value in (self.limit, self.margin):
            if value is not None and not 0.0 <= value <= most:
                raise ThresholdError(f"{self.metric}: {value:g} is not between 0 and {most:g}")
        if not MIN_WINDOW_S <= self.window_s <= MAX_WINDOW_S:
            raise ThresholdError(
                f"{self.metric}: window_s must be between {MIN_WINDOW_S:g} and {MAX_WINDOW_S:g}"
            )
        if not 1 <= self.min_count <= MAX_COUNT:
            raise ThresholdError(f"{self.metric}: min_count must be between 1 and {MAX_COUNT}")

    @property
    def bad_limit(self) -> float | None:
        """The limit as the most of what is bad: of an attainment, the part that misses it."""
        if self.limit is None or not self.metric.wants_much:
            return self.limit
        return 1.0 - self.limit


def defaults(ttft_limit_s: float) -> tuple[Threshold, ...]:
    """What a canary is watched for unless something else is asked, for a class of this contract.

    All of them ask for both: too much, and clearly more than on the stable arm.
    """
    return (
        Threshold(Metric.ERROR_RATE, 0.02, 0.01),
        Threshold(Metric.REFUSALS, 0.05, 0.03),
        Threshold(Metric.TTFT_ATTAINMENT, 0.95, 0.03),
        Threshold(Metric.STALL_ATTAINMENT, 0.95, 0.03),
        Threshold(
            Metric.OLDEST_AGE,
            min(ttft_limit_s, MAX_WINDOW_S),
            min(ttft_limit_s / 2, MAX_WINDOW_S),
            min_count=AGE_SAMPLES,
        ),
    )


def from_text(text: str, window_s: float = WINDOW_S, min_count: int = MIN_COUNT) -> Threshold:
    """Read a threshold as it is written in the command line.

    Raises:
        ThresholdError: it can't be read.
    """
    name, _, values = text.partition("=")
    metric = _metric(name.strip())
    limit = margin = None
    sign = "-" if metric.wants_much else "+"
    for part in values.split(","):
        word = part.strip()
        value = _number(text, word.removeprefix(sign))
        if word.startswith(sign) and margin is None:
            margin = value
        elif not word.startswith(("+", "-")) and limit is None:
            limit = value
        else:
            wanted = f"{metric}=LIMIT, {metric}={sign}MARGIN or {metric}=LIMIT,{sign}MARGIN"
            raise ThresholdError(f"{text}: write {wanted}")
    return Threshold(metric, limit, margin, window_s, _least(metric, min_count))


def from_json(rows: Sequence[Mapping[str, Any]]) -> tuple[Threshold, ...]:
    """Read thresholds as the admin API and the state hold them.

    Raises:
        ThresholdError: one can't be read, or two are about the same metric.
    """
    found = tuple(map(_from_row, rows))
    if len({t.metric for t in found}) < len(found):
        raise ThresholdError("two thresholds of one metric")
    if not found:
        raise ThresholdError("no threshold: a canary needs one to be watched by")
    return found


def to_json(threshold: Threshold) -> dict[str, Any]:
    """The threshold as ``from_json`` reads it."""
    limit, margin = _keys(threshold.metric)
    row = {
        "metric": str(threshold.metric),
        limit: threshold.limit,
        margin: threshold.margin,
        "window_s": threshold.window_s,
        "min_count": threshold.min_count,
    }
    return {key: value for key, value in row.items() if value is not None}


def _from_row(row: Mapping[str, Any]) -> Threshold:
    metric = _metric(str(row.get("metric", "")))
    limit, margin = _keys(metric)
    unknown = row.keys() - {"metric", limit, margin, "window_s", "min_count"}
    if unknown:
        raise ThresholdError(f"{metric}: unknown key {min(unknown)!r}; known: {limit}, {margin}")
    for key in row.keys() - {"metric"}:
        if isinstance(row[key], bool) or not isinstance(row[key], int | float | None):
            raise ThresholdError(f"{metric}: {key} must be a number")
    window_s, min_count = row.get("window_s"), row.get("min_count")
    return Threshold(
        metric,
        row.get(limit),
        row.get(margin),
        WINDOW_S if window_s is None else float(window_s),
        _least(metric, MIN_COUNT) if min_count is None else int(min_count),
    )


def _keys(metric: Metric) -> tuple[str, str]:
    return ("min", "below_stable") if metric.wants_much else ("max", "above_stable")


def _least(metric: Metric, min_count: int) -> int:
    return AGE_SAMPLES if metric is Metric.OLDEST_AGE else min_count


def _metric(name: str) -> Metric:
    try:
        return Metric(name)
    except ValueError:
        known = ", ".join(Metric)
        raise ThresholdError(f"{name!r} is not watched; known are {known}") from None


def _number(text: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise ThresholdError(f"{text}: {word!r} is no number") from None
    if not math.isfinite(value):
        raise ThresholdError(f"{text}: {word!r} is no number")
    return value
