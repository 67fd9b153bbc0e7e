"""Reduces the runs of a sweep to what the report draws: distributions and seconds per stratum.

Distributions keep a hundred quantiles of all rounds together, exact and by nearest rank, in the
offered view (a failure never comes, so the curve ends below one) and of accepted requests alone.
Pure: no I/O, no clock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.facts import MEASURES
from loadgen.quantiles import ranked
from loadgen.record import Outcome, RequestRecord
from loadgen.seconds import GAUGES, gauge, largest

__all__ = ["Key", "RunCurves", "StratumCurves", "join_curves", "run_curves"]

Key = tuple[str, str, str]
Values = Mapping[str, Mapping[str, tuple[float, ...]]]
Seconds = Mapping[str, Mapping[str, Mapping[int, float]]]
SHARES = (0.005, *(n / 100 for n in range(1, 100)), 0.995, 1.0)
Curve = tuple[list[float], list[float]]


@dataclass(frozen=True, slots=True)
class RunCurves:
    """One run: by class and measure its values in seconds (infinite if never), and its gauges."""

    key: Key
    values: Values
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class StratumCurves:
    """The runs of a unit at one mix and rate, ready to be drawn.

    Args:
        offered: by class and measure, seconds and the share of offered requests.
        accepted: the same of answered requests alone.
        seconds: by gauge and class, the largest of the runs in every second.
    """

    offered: Mapping[str, Mapping[str, Curve]]
    accepted: Mapping[str, Mapping[str, Curve]]
    seconds: Seconds


def _value(record: RequestRecord, measure: str) -> float | None:
    return MEASURES[measure](record) if record.outcome is Outcome.OK else math.inf


def run_curves(
    run: Mapping[str, Any],
    records: Sequence[RequestRecord],
    samples: Sequence[Mapping[str, Any]],
) -> RunCurves:
    """Reduce a run.

    Args:
        run: its row in the analysis.
        records: of all requests, ramp included.
        samples: the rows of every second.
    """
    observed = [r for r in records if r.phase == "observed"]
    values: dict[str, dict[str, tuple[float, ...]]] = {}
    for name in dict.fromkeys(r.size_class for r in observed):
        own = [r for r in observed if r.size_class == name]
        values[name] = {
            m: tuple(v for r in own if (v := _value(r, m)) is not None) for m in MEASURES
        }
    seconds = {g.key: lines for g in GAUGES if (lines := gauge(samples, g))}
    return RunCurves((run["unit"], run["mix"], run["rate"]), values, seconds)


def _curve(values: Sequence[float]) -> Curve:
    """A hundred quantiles; those that land on a failure are left out, so the curve ends early."""
    ordered = sorted(values)
    pairs = [(ranked(ordered, q), q) for q in SHARES] if ordered else []
    finite = [(round(v, 4), q) for v, q in pairs if v < math.inf]
    return [v for v, _ in finite], [q for _, q in finite]


def _curves(runs: Sequence[RunCurves], *, accepted: bool) -> dict[str, dict[str, Curve]]:
    names = dict.fromkeys(name for run in runs for name in run.values)
    found: dict[str, dict[str, Curve]] = {}
    for name in names:
        for measure in MEASURES:
            own = (v for run in runs if name in run.values for v in run.values[name][measure])
            kept = [v for v in own if not accepted or v < math.inf]
            found.setdefault(name, {})[measure] = _curve(kept)
    return found


def _seconds(runs: Sequence[RunCurves]) -> Seconds:
    keys = dict.fromkeys(key for run in runs for key in run.seconds)
    return {key: largest(run.seconds.get(key, {}) for run in runs) for key in keys}


def join_curves(runs: Iterable[RunCurves]) -> dict[Key, StratumCurves]:
    """Join the runs of each stratum, in the order in which strata first appear."""
    groups: dict[Key, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(run.key, []).append(run)
    return {
        key: StratumCurves(
            offered=_curves(own, accepted=False),
            accepted=_curves(own, accepted=True),
            seconds=_seconds(own),
        )
        for key, own in groups.items()
    }
