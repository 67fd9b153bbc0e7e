"""Says how far a simulated sweep is from a measured one: by run, by stratum and over all.

Compared are TTFT, end to end and the longest stall of ok requests, of each class. The error stands
for each stratum by itself: a median over everything would hide where the model is weak.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.facts import MEASURES
from loadgen.files import read_bytes, read_json
from loadgen.quantiles import quantile
from loadgen.record import BenchError, Outcome, RequestRecord, decode_requests

__all__ = ["compare_lines", "differences"]

Json = Mapping[str, Any]
LEVELS = {"p50": 0.50, "p95": 0.95}
WORDS = {"ttft_s": "TTFT", "e2e_s": "e2e", "max_stall_s": "stall"}
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Apart:
    """Simulated over measured, less one, of one number in one run."""

    stratum: str
    size_class: str
    number: str
    share: float


def _values_s(records: Sequence[RequestRecord], size_class: str, measure: str) -> list[float]:
    own = (
        MEASURES[measure](r)
        for r in records
        if r.size_class == size_class and r.phase == "observed" and r.outcome is Outcome.OK
    )
    return [value for value in own if value is not None]


def differences(
    told: Sequence[RequestRecord], found: Sequence[RequestRecord]
) -> dict[str, dict[str, Pair]]:
    """Return per class and number what was simulated and what was measured, in seconds.

    Numbers are named "TTFT p95"; what either side lacks is left out.
    """
    names = sorted({r.size_class for r in told})
    return {name: own for name in names if (own := _of_class(told, found, name))}


def _of_class(
    told: Sequence[RequestRecord], found: Sequence[RequestRecord], name: str
) -> dict[str, Pair]:
    both = {m: (_values_s(told, name, m), _values_s(found, name, m)) for m in MEASURES}
    return {
        f"{WORDS[measure]} {level}": (quantile(a, q), quantile(b, q))
        for measure, (a, b) in both.items()
        if a and b
        for level, q in LEVELS.items()
    }


def _records(folder: Path, run_id: str) -> Sequence[RequestRecord]:
    path = folder / "runs" / run_id / "requests.jsonl"
    return decode_requests(read_bytes(path), str(path))[1] if path.is_file() else ()


def _scale(folder: Path, runs: Iterable[Json]) -> float | None:
    paths = (folder / "runs" / run["run_id"] / "config.json" for run in runs)
    first = next((path for path in paths if path.is_file()), None)
    return None if first is None else float(read_json(first).get("time_scale", 1.0))


def _same_scale(simulated: Path, measured: Path, runs: Sequence[Json]) -> None:
    scales = {folder: _scale(folder, runs) for folder in (simulated, measured)}
    for folder, scale in scales.items():
        if scale is None:
            raise BenchError(f"{folder}: holds no run of the plan of {measured}")
    if scales[simulated] != scales[measured]:
        raise BenchError(
            f"{simulated}: simulated at time scale {scales[simulated]:g}, but {measured} was "
            f"measured at {scales[measured]:g}; simulate with --time-scale {scales[measured]:g}"
        )


def compare_lines(simulated: Path, measured: Path) -> Iterator[str]:
    """Yield a line per run and class, then one per stratum, class and number, then one over all.

    Raises:
        BenchError: a plan or a record is unreadable, or the two went at different time scales.
    """
    runs = read_json(measured / "plan.json")["runs"]
    _same_scale(simulated, measured, runs)
    off: list[_Apart] = []
    for run in runs:
        found = _records(measured, run["run_id"])
        for name, numbers in differences(_records(simulated, run["run_id"]), found).items():
            parts = []
            for number, (told_s, found_s) in numbers.items():
                share = told_s / found_s - 1 if found_s else 0.0
                off.append(_Apart(f"{run['mix']} {run['rate']}", name, number, share))
                parts.append(f"{number} {told_s:.3f} for {found_s:.3f} s ({share:+.0%})")
            yield f"{run['run_id']} {name}: simulated for measured {', '.join(parts)}"
    yield from _by_stratum(off)
    yield from _over_all(off)


def _by_stratum(off: Sequence[_Apart]) -> Iterator[str]:
    for stratum, name in dict.fromkeys((a.stratum, a.size_class) for a in off):
        own = [a for a in off if (a.stratum, a.size_class) == (stratum, name)]
        said = (
            f"{number} {quantile(values, 0.5):+.1%} ({min(values):+.1%} to {max(values):+.1%})"
            for number, values in _by_number(own).items()
        )
        runs = max(len(values) for values in _by_number(own).values())
        yield f"{stratum} {name}, {runs} runs, median and extremes: {', '.join(said)}"


def _by_number(off: Sequence[_Apart]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for apart in off:
        found.setdefault(apart.number, []).append(apart.share)
    return found


def _over_all(off: Sequence[_Apart]) -> Iterator[str]:
    for number, values in _by_number(off).items():
        apart = [abs(v) for v in values]
        yield (
            f"{number} over {len(values)} runs and classes: {quantile(values, 0.5):+.1%} in the "
            f"middle, apart by {quantile(apart, 0.5):.1%} (median), {quantile(apart, 0.95):.1%} "
            f"(p95), {max(apart):.1%} (largest)"
        )
