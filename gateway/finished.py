"""One request at its end, and its line in the log: words, counts and milliseconds, no content.

Pure: no I/O, no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import orjson

from gateway.contract import CONTRACT
from gateway.domain import Outcome, Surface

__all__ = ["ESTIMATES", "Finished", "log_line"]

# The methods of classification that are no exact count.
ESTIMATES = frozenset(("estimate", "configured"))


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


_AS_IT_IS = (
    "trace_id", "key_id", "surface", "model", "size_class", "service_class", "arm", "pool",
    "engine", "stream", "prompt_tokens", "engine_prompt_tokens", "completion_tokens",
)  # fmt: skip
_VALUES = attrgetter(*_AS_IT_IS)


def log_line(finished: Finished) -> bytes:
    """One JSON line for a finished request: words, counts and milliseconds, and no content."""
    row = CONTRACT[finished.outcome]
    line: dict[str, object] = {
        "event": "request",
        "outcome": str(finished.outcome),  # half the time of its ``value``
        "status": finished.status or row.status or row.logged_status,
        "request_id": finished.request_id,
    }
    if line["status"] is None:
        del line["status"]
    known = zip(_AS_IT_IS, _VALUES(finished), strict=True)
    line |= {name: value for name, value in known if value is not None}
    if finished.classify_method in ESTIMATES:
        line["method"] = finished.classify_method
    _say_how_long(line, finished)
    line["retries"] = int(finished.retry_reason is not None)
    if finished.retry_reason is not None:
        line["retry_reason"] = finished.retry_reason
    if finished.detail is not None:
        line["detail"] = finished.detail
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _say_how_long(line: dict[str, object], finished: Finished) -> None:
    arrived_s = finished.arrived_s
    if finished.classify_s is not None:
        line["classify_ms"] = _ms(finished.classify_s)
    if finished.dispatched_s is not None:
        line["queue_ms"] = _ms(finished.dispatched_s - arrived_s)
    if finished.first_event_s is not None:
        line["ttft_ms"] = _ms(finished.first_event_s - arrived_s)
    if finished.max_stall_s is not None:
        line["max_stall_ms"] = _ms(finished.max_stall_s)
    line["e2e_ms"] = _ms(finished.ended_s - arrived_s)


def _ms(seconds: float) -> float:
    # Microseconds, cut after a half is added: ``round`` to three places takes four times as long.
    return int(seconds * 1e6 + 0.5) / 1e3
