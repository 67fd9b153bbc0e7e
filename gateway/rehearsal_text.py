"""Says the record of a rehearsal as an operator reads it. Pure: no I/O, no clock."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.command import table_lines

__all__ = ["record_lines"]


def record_lines(record: Mapping[str, Any]) -> list[str]:
    """The phases, every figure with its threshold, and the verdict."""
    return [
        "",
        f"rehearsal {record['id']} of {record['route']}: {record['baseline']} -> {record['to']} "
        f"and back, by {record['by']}",
        *table_lines([_phase(row) for row in record["phases"]]),
        "",
        *table_lines([_check(row) for row in record["checks"]]),
        "",
        *_notes(record),
        f"{record['verdict'].upper()}{_stamp(record)}  digest {record['digest'][:16]}",
        *(f"  {why}" for why in record["why"]),
    ]


def _phase(row: Mapping[str, Any]) -> dict[str, Any]:
    ttft = row["ttft_s"] or {}
    went = " ".join(f"{pool}:{count}" for pool, count in row["by_pool"].items())
    return {
        "phase": row["phase"],
        "at": f"{row['at_s']:.1f} s",
        "requests": row["requests"],
        "went to": went,
        "failed": row["errors"],
        "refused": row["refused"],
        "late": row["late"],
        "stalled": row["stalled"],
        "TTFT p50": _ms(ttft.get("p50")),
        "p95": _ms(ttft.get("p95")),
        "prefill room": f"{row['prefill_peak']:.0%}",
    }


def _check(row: Mapping[str, Any]) -> dict[str, Any]:
    value = "never" if row["value"] is None else f"{row['value']:.4g}"
    sign = "<=" if row["most"] else ">="
    return {
        "check": row["name"],
        "figure": value,
        "threshold": f"{sign} {row['limit']:g}",
        "result": "ok" if row["passed"] else "FAIL",
    }


def _notes(record: Mapping[str, Any]) -> Iterator[str]:
    drain, capacity = record["drain"], record["capacity"]
    for phase, times in record["surge"].items():
        rows = [f"{n.replace('_', ' ')} x{v:g}" for n, v in times.items() if v is not None]
        yield f"{phase} against before: {', '.join(rows) or 'nothing to compare'}"
    yield f"drain: {drain['drained']} ended by themselves, {drain['ended']} cut off"
    for when, found in record["probes"].items():
        told = ", ".join(f"{p['size_class']} {_ms(p['ttft_s'])}" for p in found)
        yield f"warm probe {when}: {told}"
    if capacity is not None:
        needed = capacity["requests_per_s"] * capacity["mean_s"]
        yield (
            f"baseline: {needed:.1f} of {capacity['seats']} seats needed, "
            f"{capacity['prefill_needed_per_s']:.0f} of {capacity['prefill_tokens_per_s']:.0f} "
            "prompt tokens a second"
        )
    if "client" in record:
        seen = record["client"]
        yield f"callers saw: {seen['ended']} ended, {seen['failed']} failed"


def _stamp(record: Mapping[str, Any]) -> str:
    return "  (synthetic: simulated engines)" if record["synthetic"] else ""


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.0f} ms"
