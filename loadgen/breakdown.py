"""Splits the time to the first token into the parts that were measured.

The client's own lateness, waiting for a connection, waiting in the gateway where its answer says
so, and the rest: transport, counting, the engine's queue and prefill. A part that nobody measured
is absent and stays in the rest. Seconds. Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.record import RequestRecord
from loadgen.stats import mean

__all__ = ["pooled_parts", "ttft_parts"]

Json = dict[str, Any]
SLOWEST_SHARE = 0.05


def _parts(record: RequestRecord) -> dict[str, float] | None:
    first, sent = record.first_event_us, record.dispatched_us
    if first is None or sent is None:
        return None
    waited = (record.connect_wait_us or 0) / 1e6
    parts = {"client_s": (sent - record.planned_us) / 1e6 - waited, "connection_s": waited}
    queued = 0.0
    if record.queue_ms is not None:
        queued = parts["gateway_queue_s"] = record.queue_ms / 1e3
    return {**parts, "rest_s": (first - sent) / 1e6 - queued}


def _means(rows: Sequence[Mapping[str, float]]) -> Json:
    names = sorted({name for row in rows for name in row})
    return {name: mean([row.get(name, 0.0) for row in rows]) for name in names}


def ttft_parts(ok: Sequence[RequestRecord]) -> Json:
    """Return the mean of each part, of all ok responses and of the slowest twentieth; {} if none.

    Args:
        ok: responses of one class that were valid.
    """
    rows = [row for r in ok if (row := _parts(r)) is not None]
    if not rows:
        return {}
    rows.sort(key=lambda row: sum(row.values()))
    slowest = rows[-max(1, round(SLOWEST_SHARE * len(rows))) :]
    return {"n": len(rows), "mean": _means(rows), "slowest": _means(slowest)}


def pooled_parts(parts: Sequence[Mapping[str, Any]]) -> Json:
    """Join the parts of several runs, each by its number of responses."""
    total = sum(p["n"] for p in parts)
    if not total:
        return {}
    joined: Json = {"n": total}
    for view in ("mean", "slowest"):
        names = sorted({name for p in parts for name in p[view]})
        joined[view] = {
            name: sum(p["n"] * p[view].get(name, 0.0) for p in parts) / total for name in names
        }
    return joined
