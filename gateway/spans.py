"""Decides which spans a finished request is: one for the whole, and one for each stage it came to.

No span holds prompt text, a credential or a caller's name. Stages are in seconds of the gateway's
clock, spans in nanoseconds since 1970. Pure: no I/O, no clock.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gateway.domain import Outcome
from gateway.traceparent import TraceContext
from gateway.visit import Visit

__all__ = ["Span", "Stage", "attributes", "spans", "stages"]

# Ends for which the server is to blame, as the conventions for HTTP spans have it.
_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Stage:
    """One child span, in seconds of the gateway's clock."""

    name: str
    began_s: float
    ended_s: float


def stages(visit: Visit, ended_s: float) -> Iterator[Stage]:
    """What a finished request went through, as far as it came."""
    waited_from_s = visit.arrived_s
    if visit.classified_s is not None and visit.classify_s is not None:
        waited_from_s = visit.classified_s
        yield Stage("classify", waited_from_s - visit.classify_s, waited_from_s)
    dispatched_s, first_s = visit.marks.dispatched_s, visit.marks.first_event_s
    if visit.classified_s is not None:
        yield Stage("queue", waited_from_s, ended_s if dispatched_s is None else dispatched_s)
    if dispatched_s is not None:
        yield Stage("first_byte", dispatched_s, ended_s if first_s is None else first_s)
    if first_s is not None:
        yield Stage("stream", first_s, ended_s)


def attributes(visit: Visit) -> dict[str, str | int | bool]:
    """What the server span says of a finished request: words from the configuration, counts."""
    found: Mapping[str, str | int | bool | None] = {
        "http.response.status_code": visit.status,
        "sluicegate.outcome": visit.outcome.value,
        "sluicegate.request_id": visit.request_id,
        "sluicegate.surface": visit.surface.value if visit.surface else None,
        "sluicegate.model": visit.model,
        "sluicegate.size_class": visit.size_class,
        "sluicegate.service_class": visit.principal.service_class if visit.principal else None,
        "sluicegate.pool": visit.pool,
        "sluicegate.engine": visit.engine,
        "sluicegate.stream": visit.stream,
        "sluicegate.retries": int(visit.retry_reason is not None),
        "gen_ai.usage.input_tokens": visit.prompt_tokens,
        "gen_ai.usage.output_tokens": visit.completion_tokens,
    }
    return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Span:
    """One span as a value; times are nanoseconds since 1970."""

    name: str
    span_id: str
    parent_id: str | None
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, str | int | bool] = field(default_factory=dict)
    server: bool = False
    failed: bool = False


def spans(
    visit: Visit, trace: TraceContext, ended_s: float, ended_ns: int, fresh: Callable[[int], str]
) -> Iterator[Span]:
    """The spans of a request that is over: its stages, then the whole.

    Args:
        visit: the request.
        trace: its context.
        ended_s: when it ended, on the gateway's clock.
        ended_ns: the same moment since 1970.
        fresh: makes an id of so many random bytes, in hex.
    """
    # From the end backwards: the wall clock is read once, and may have been set meanwhile.
    zero_ns = ended_ns - _ns(ended_s)
    for stage in stages(visit, ended_s):
        began_ns, done_ns = zero_ns + _ns(stage.began_s), zero_ns + _ns(stage.ended_s)
        yield Span(stage.name, fresh(8), trace.span_id, began_ns, done_ns)
    yield Span(
        visit.surface.value if visit.surface else "request",
        trace.span_id,
        trace.parent_id,
        zero_ns + _ns(visit.arrived_s),
        ended_ns,
        attributes(visit),
        server=True,
        failed=_failed(visit),
    )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _failed(visit: Visit) -> bool:
    return (visit.status or 0) >= _SERVER_ERROR or visit.outcome is Outcome.STREAM_INTERRUPTED
