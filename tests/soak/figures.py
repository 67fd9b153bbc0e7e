"""What a soak has shown: outcomes, refusal latency, attainment, memory, what is left."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from tests.soak.load import Offered

__all__ = ["LIMITS_S", "Sample", "attainment", "outcomes", "refusal_ms", "slope_kib_per_min"]

# Per size class: first token, longest stall, end; as the gateway of the soak is configured.
LIMITS_S = {"short": (0.5, 0.5, 30.0), "long": (5.0, 1.0, 120.0)}
REFUSED = {429, 503}


@dataclass(frozen=True, slots=True)
class Sample:
    """The gateway's process at one moment, seconds from the start."""

    at_s: float
    rss_kib: int
    descriptors: int


def outcomes(done: Iterable[Offered]) -> Counter[str]:
    return Counter(offered.result.outcome for offered in done)


def refusal_ms(done: Iterable[Offered]) -> dict[str, float]:
    """Quantiles of the time from the last body byte to the refusal, by size class.

    Those that waited in the queue first (``queue_expired``) are no quick refusals and left out.
    """
    rows: dict[str, list[float]] = {}
    for offered in done:
        result = offered.result
        quick = result.status in REFUSED and result.outcome not in {"queue_expired", "no_engine"}
        if quick and result.first_s is not None:
            rows.setdefault(offered.size, []).append(result.first_s * 1e3)
    return {
        f"{size} {name}": _rank(sorted(values), q)
        for size, values in sorted(rows.items())
        for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


def _rank(ordered: Sequence[float], q: float) -> float:
    return round(ordered[max(0, math.ceil(q * len(ordered)) - 1)], 2)


def attainment(done: Iterable[Offered]) -> dict[str, str]:
    """Admitted streams that met their class's contract, by class; who left on purpose is left out.

    Admitted is everything that was not refused: what expired in the queue, too.
    """
    admitted = [
        o
        for o in done
        if o.stream
        and not o.leaves
        and o.size in LIMITS_S
        and (o.result.status not in REFUSED or o.result.outcome == "queue_expired")
    ]
    rows = {}
    by_class = sorted(admitted, key=lambda o: (o.size, o.service))
    for (size, service), group in groupby(by_class, key=lambda o: (o.size, o.service)):
        results = list(group)
        met = sum(_met(o) for o in results)
        rows[f"{size} {service}"] = f"{met}/{len(results)} = {met / len(results):.1%}"
    return rows


def _met(offered: Offered) -> bool:
    first_s, stall_s, end_s = LIMITS_S[offered.size]
    result = offered.result
    return (
        result.outcome == "completed"
        and result.first_s is not None
        and result.first_s <= first_s
        and result.stall_s <= stall_s
        and result.end_s <= end_s
    )


def slope_kib_per_min(samples: Sequence[Sample]) -> float:
    """Least-squares growth of the resident set, the first fifth left out as warm-up."""
    kept = samples[len(samples) // 5 :]
    if len(kept) < 2:
        return 0.0
    mean_s = sum(s.at_s for s in kept) / len(kept)
    mean_kib = sum(s.rss_kib for s in kept) / len(kept)
    over = sum((s.at_s - mean_s) * (s.rss_kib - mean_kib) for s in kept)
    under = sum((s.at_s - mean_s) ** 2 for s in kept)
    return round(60.0 * over / under, 1)
