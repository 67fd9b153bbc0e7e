"""One request at its end, and its line in the log: words, counts and milliseconds, no content.

Pure: no I/O, no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from gateway.contract import CONTRACT
from gateway.domain import Outcome, Surface

__all__ = ["Finished", "log_line"]


@dataclass(slots=True)
class Finished:
    """One request at its end. Times are on the gateway's clock; ``None``: did not come to that.

    ``offered`` says that it was counted as such before. Not frozen: one is made per request, and
    a frozen one of so many fields takes four times as long.
    """

    outcome: Outcome
    request_id: str
    surface: Surface | None
    arrived_s: float
    ended_s: float
    status: int | None = None
    key_id: str | None = None
    trace_id: str | None = None
    model: str | None = None
    size_class: str | None = None
    service_class: str | None = None
    arm: str | None = None
    pool: str | None = None
    engine: str | None = None
    stream: bool = False
    prompt_tokens: int | None = None
    engine_prompt_tokens: int | None = None
    completion_tokens: int | None = None
    classify_s: float | None = None
    classify_method: str | None = None
    dispatched_s: float | None = None
    first_event_s: float | None = None
    max_stall_s: float | None = None
    gaps: Sequence[int] = ()
    gaps_sum_s: float = 0.0
    retry_reason: str | None = None
    offered: bool = False
    detail: str | None = None


def log_line(finished: Finished) -> bytes:
    """One JSON line for a finished request: words, counts and milliseconds, and no content."""
    row = CONTRACT[finished.outcome]
    line = {
        "event": "request",
        "outcome": str(finished.outcome),  # half the time of its ``value``
        "status": finished.status or row.status or row.logged_status,
        "request_id": finished.request_id,
        "trace_id": finished.trace_id,
        "key_id": finished.key_id,
        "surface": finished.surface,
        "model": finished.model,
        "size_class": finished.size_class,
        "service_class": finished.service_class,
        "arm": finished.arm,
        "pool": finished.pool,
        "engine": finished.engine,
        "stream": finished.stream,
        "prompt_tokens": finished.prompt_tokens,
        "engine_prompt_tokens": finished.engine_prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "classify_ms": _ms(finished.classify_s),
        "queue_ms": _ms(finished.dispatched_s, finished.arrived_s),
        "ttft_ms": _ms(finished.first_event_s, finished.arrived_s),
        "max_stall_ms": _ms(finished.max_stall_s),
        "e2e_ms": _ms(finished.ended_s, finished.arrived_s),
        "retries": int(finished.retry_reason is not None),
        "retry_reason": finished.retry_reason,
        "detail": finished.detail,
    }
    present = {key: value for key, value in line.items() if value is not None}
    return orjson.dumps(present, option=orjson.OPT_APPEND_NEWLINE)


def _ms(end_s: float | None, start_s: float = 0.0) -> float | None:
    # Microseconds, cut after a half is added: ``round`` to three places takes four times as long.
    return None if end_s is None else int((end_s - start_s) * 1e6 + 0.5) / 1e3
