"""Says how far a simulated sweep is from a measured one, run by run: TTFT of each class."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.files import read_bytes, read_json
from loadgen.quantiles import quantile
from loadgen.record import Outcome, RequestRecord, decode_requests

__all__ = ["compare_lines", "differences"]

Json = Mapping[str, Any]
LEVELS = {"p50": 0.50, "p95": 0.95}


def _ttft_s(records: Sequence[RequestRecord], size_class: str) -> list[float]:
    return [
        (r.first_event_us - r.planned_us) / 1e6
        for r in records
        if r.size_class == size_class
        and r.phase == "observed"
        and r.outcome is Outcome.OK
        and r.first_event_us is not None
    ]


def differences(
    told: Sequence[RequestRecord], found: Sequence[RequestRecord]
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return per class and level the simulated and the measured TTFT, of ok requests, in seconds.

    A class that either side lacks is left out.
    """
    names = sorted({r.size_class for r in told})
    both = {name: (_ttft_s(told, name), _ttft_s(found, name)) for name in names}
    return {
        name: {level: (quantile(a, q), quantile(b, q)) for level, q in LEVELS.items()}
        for name, (a, b) in both.items()
        if a and b
    }


def _records(folder: Path, run_id: str) -> Sequence[RequestRecord]:
    path = folder / "runs" / run_id / "requests.jsonl"
    return decode_requests(read_bytes(path), str(path))[1] if path.is_file() else ()


def compare_lines(simulated: Path, measured: Path) -> Iterator[str]:
    """Yield a line per run and class, and at the end the median and the largest difference.

    Raises:
        BenchError: a plan or a record is unreadable.
    """
    off: dict[str, list[float]] = {level: [] for level in LEVELS}
    for run in read_json(measured / "plan.json")["runs"]:
        found = _records(measured, run["run_id"])
        for name, levels in differences(_records(simulated, run["run_id"]), found).items():
            parts = []
            for level, (told_s, found_s) in levels.items():
                off[level].append(told_s / found_s - 1)
                parts.append(f"{level} {told_s:.3f} for {found_s:.3f} s ({off[level][-1]:+.0%})")
            yield f"{run['run_id']} {name}: TTFT simulated for measured {', '.join(parts)}"
    yield from (_summary(level, values) for level, values in off.items())


def _summary(level: str, values: Sequence[float]) -> str:
    if not values:
        return f"TTFT {level}: no run is in both"
    apart = [abs(v) for v in values]
    usual, high = quantile(apart, 0.5), quantile(apart, 0.95)
    return (
        f"TTFT {level} over {len(values)} runs and classes: {quantile(values, 0.5):+.1%} in the "
        f"middle, apart by {usual:.1%} (median), {high:.1%} (p95), {max(apart):.1%} (largest)"
    )
