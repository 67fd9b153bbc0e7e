"""Flattens analysis and records into rows of plain columns, the unit in every measured one's name.

An unbounded p95 has no value; beside it stand what it exceeds and how many failed. Names without a
unit are labels. Pure: no I/O, no clock.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadgen.record import Outcome, RequestRecord

__all__ = ["csv_bytes", "request_row", "run_rows", "stratum_rows"]

Json = Mapping[str, Any]
Row = dict[str, Any]
LABELS = ("run_id", "name", "unit", "mix", "rate", "repeat")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def _quantiles(figures: Json) -> Row:
    row: Row = {}
    for measure in ("ttft_s", "e2e_s", "max_stall_s"):
        word = measure.removesuffix("_s")
        for view in ("offered", "accepted"):
            for name in ("p50", "p95", "p99"):
                found = figures[measure][view][name]
                row[f"{word}_{view}_{name}_s"] = found.get("value")
                if view == "offered":
                    row[f"{word}_{view}_{name}_above_s"] = found.get("above_s")
    return row


def _class_row(figures: Json) -> Row:
    outcomes = {f"{o.value}_requests": figures["outcomes"][o.value] for o in Outcome}
    return {
        "offered_requests": figures["offered"],
        **outcomes,
        "met_requests": figures["met"],
        "late_requests": figures.get("late"),
        "attainment_ratio": figures.get("attainment"),
        "accepted_over_offered_ratio": figures.get("accepted_over_offered"),
        "goodput_requests_per_s": figures["goodput_per_s"],
        "output_tokens_per_ok_request": figures.get("output_tokens_per_ok"),
        **_quantiles(figures),
    }


def run_rows(analysis: Json) -> list[Row]:
    """Return one row per run and class."""
    return [
        {
            **{k: run.get(k) for k in LABELS},
            "size_class": name,
            "valid": run["valid"],
            "dispatch_lag_p99_ms": run["dispatch_lag_ms"]["p99"],
            "dispatch_lag_max_ms": run["dispatch_lag_ms"]["max"],
            **_class_row(figures),
        }
        for run in analysis["runs"]
        for name, figures in run["classes"].items()
    ]


def stratum_rows(analysis: Json) -> list[Row]:
    """Return one row per unit, mix, rate and class; none for a demonstration."""
    return [
        {
            "unit": row["cell_id"],
            "mix": row["mix"],
            "rate": row["rate"],
            "size_class": row["size_class"],
            "gate": row["gate"],
            "state": row["state"],
            "rounds_count": len(row["rounds"]),
            "attainment_low_ratio": row.get("low"),
            "attainment_high_ratio": row.get("high"),
            **_class_row(row),
        }
        for row in analysis.get("strata", ())
    ]


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1e6


def request_row(run_id: str, record: RequestRecord) -> Row:
    """Return one request; what was not measured is empty, and a failure has no latency."""
    ok, planned = record.outcome is Outcome.OK, record.planned_us
    first, last = record.first_event_us, record.last_byte_us
    return {
        "run_id": run_id,
        "seq": record.seq,
        "size_class": record.size_class,
        "phase": record.phase,
        "outcome": record.outcome.value,
        "outcome_code": record.outcome_code,
        "http_status": record.status,
        "planned_s": _seconds(planned),
        "dispatched_s": _seconds(record.dispatched_us),
        "first_event_s": _seconds(first),
        "last_byte_s": _seconds(last),
        "connect_wait_s": _seconds(record.connect_wait_us),
        "gateway_queue_ms": record.queue_ms,
        "ttft_s": (first - planned) / 1e6 if ok and first is not None else None,
        "e2e_s": (last - planned) / 1e6 if ok and last is not None else None,
        "max_stall_s": _seconds(record.max_stall_us) if ok else None,
        "prompt_planned_tokens": record.prompt_tokens_planned,
        "prompt_reported_tokens": record.prompt_tokens_reported,
        "completion_planned_tokens": record.completion_tokens_planned,
        "completion_reported_tokens": record.completion_tokens_reported,
        "stream_events": None if record.event_us is None else len(record.event_us),
        "response_bytes": record.response_bytes,
        "prompt_sha256": record.prompt_sha256,
    }


def _value(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is quoted: servers choose some texts."""
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def csv_bytes(rows: Iterable[Row]) -> bytes:
    """Return rows as CSV with a header; the columns are those of the first row."""
    found: Sequence[Row] = list(rows)
    out = io.StringIO(newline="")
    if found:
        writer = csv.DictWriter(out, list(found[0]), lineterminator="\r\n")
        writer.writeheader()
        writer.writerows({k: _value(v) for k, v in row.items()} for row in found)
    return out.getvalue().encode("utf-8")
