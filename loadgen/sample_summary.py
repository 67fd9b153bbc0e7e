"""Summarises the rows of every second: what engines and gateway said while a run lasted.

A counter that falls has restarted and counts from zero; its rise is of the whole engine, whichever
class caused it. What nobody exported is absent. Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

__all__ = [
    "counter_delta",
    "engines",
    "oldest_ages",
    "oldest_unanswered",
    "prefix_counters",
    "prefix_hit_share",
    "queue_depths",
]

Json = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]


def counter_delta(rows: Rows, key: str) -> Json | None:
    """Return a counter's rise and its restarts: a fall begins again from zero."""
    values = [row[key] for row in rows if key in row]
    if not values:
        return None
    steps = list(pairwise(values))
    rise = sum(b - a if b >= a else b for a, b in steps)
    return {"delta": rise, "restarts": sum(b < a for a, b in steps)}


def _largest(rows: Rows, key: str) -> float | None:
    return max((r[key] for r in rows if key in r), default=None)


def _idle_share(rows: Rows) -> float | None:
    told = [r for r in rows if "running" in r]
    if not told:
        return None
    idle = sum(1 for r in told if r["running"] == 0 and r.get("waiting", 0) == 0)
    return idle / len(told)


def engines(samples: Rows) -> list[Json]:
    """Return per engine its largest gauges, preemptions, share of idle seconds, failed scrapes."""
    rows = [s for s in samples if s.get("source") == "engine"]
    found = []
    for number in sorted({r["engine"] for r in rows}):
        own = [r for r in rows if r["engine"] == number]
        summary = {
            "engine": number,
            "scrapes_failed": sum(not r["up"] for r in own),
            "max_running": _largest(own, "running"),
            "max_waiting": _largest(own, "waiting"),
            "max_kv_usage": _largest(own, "kv_usage"),
            "idle_share": _idle_share(own),
            "preemptions": counter_delta(own, "preemptions_total"),
        }
        found.append({k: v for k, v in summary.items() if v is not None})
    return found


def _largest_by_class(samples: Rows, source: str, key: str) -> Json:
    rows = [s[key] for s in samples if s.get("source") == source and key in s]
    names = sorted({name for row in rows for name in row})
    return {name: max(row.get(name, 0.0) for row in rows) for name in names}


def oldest_ages(samples: Rows) -> Json:
    """Return the largest oldest age per class: the gateway's; {} where none was recorded."""
    return _largest_by_class(samples, "gateway", "oldest_age_s")


def queue_depths(samples: Rows) -> Json:
    """Return the largest queue depth per class that the gateway showed."""
    return _largest_by_class(samples, "gateway", "queue_depth")


def oldest_unanswered(samples: Rows) -> Json:
    """Return per class the largest age of a sent request without a first byte, by the client."""
    return _largest_by_class(samples, "client", "oldest_unanswered_s")


def prefix_counters(samples: Rows) -> Json | None:
    """Return what all engines' prefix caches were asked and had, in tokens; None if untold."""
    rows = [s for s in samples if s.get("source") == "engine"]
    sums = {"queries": 0.0, "hits": 0.0}
    for number in sorted({r["engine"] for r in rows}):
        own = [r for r in rows if r["engine"] == number]
        for name in sums:
            told = counter_delta(own, f"prefix_cache_{name}_total")
            sums[name] += 0.0 if told is None else told["delta"]
    if not sums["queries"]:
        return None
    return {**sums, "hit_rate": sums["hits"] / sums["queries"]}


def prefix_hit_share(samples: Rows) -> float | None:
    """Return prefix-cache hits over prompt tokens, of all engines; None where not exported."""
    hits = tokens = 0.0
    rows = [s for s in samples if s.get("source") == "engine"]
    for number in sorted({r["engine"] for r in rows}):
        own = [r for r in rows if r["engine"] == number]
        hit, told = (
            counter_delta(own, k) for k in ("prefix_cache_hits_total", "prompt_tokens_total")
        )
        hits, tokens = (
            hits + (hit or {"delta": 0})["delta"],
            tokens + (told or {"delta": 0})["delta"],
        )
    return hits / tokens if tokens else None
