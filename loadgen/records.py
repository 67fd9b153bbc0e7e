"""Turns what the wire showed into one record per planned request, after the run.

Nothing here runs while anything is measured. Times become microseconds from the run's start.
Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from loadgen.capture import Capture
from loadgen.events import Response, Verdict, judge, max_stall_us, read_events
from loadgen.record import Outcome, RequestRecord
from loadgen.trace import Arrival

__all__ = ["records"]


def _us(at_ns: int | None, t0_ns: int) -> int | None:
    return None if at_ns is None else (at_ns - t0_ns) // 1000


def _number(headers: Mapping[bytes, bytes], name: bytes) -> float | None:
    with suppress(ValueError):  # a header that is no number was not measured
        return float(headers.get(name, b""))
    return None


def _planned(arrival: Arrival, phase: str) -> dict[str, Any]:
    return {
        "seq": arrival.seq,
        "size_class": arrival.size_class,
        "phase": phase,
        "planned_us": arrival.offset_us,
        "prompt_tokens_planned": arrival.input_tokens,
        "completion_tokens_planned": arrival.output_tokens,
        "prompt_sha256": arrival.prompt_sha256,
    }


def _wire(capture: Capture, t0_ns: int) -> dict[str, Any]:
    sent, asked = capture.sent_ns, capture.asked_ns
    return {
        "status": capture.status,
        "connect_wait_us": None if sent is None or asked is None else (sent - asked) // 1000,
        "dispatched_us": _us(sent, t0_ns),
        "first_byte_us": _us(capture.head_ns, t0_ns),
        "last_byte_us": _us(capture.end_ns, t0_ns),
        "queue_ms": _number(capture.headers, b"x-sluicegate-queue-ms"),
        "response_bytes": len(capture.body) or None,
    }


def _events(response: Response | None) -> dict[str, Any]:
    if response is None:
        return {}
    times = response.event_us
    return {
        "first_event_us": times[0] if times else None,
        "event_us": times or None,
        "max_stall_us": max_stall_us(times),
        "finish_reason": response.finish_reason,
        "prompt_tokens_reported": response.prompt_tokens,
        "completion_tokens_reported": response.completion_tokens,
    }


def _record(
    planned: dict[str, Any], capture: Capture, ended: Outcome | None, t0_ns: int
) -> RequestRecord:
    body = bytes(capture.body)
    reads = [((at - t0_ns) // 1000, length) for at, length in capture.reads]
    response = read_events(body, reads) if capture.status == 200 else None
    tokens = planned["completion_tokens_planned"]
    verdict = (
        judge(capture.status, capture.headers, body, capture.fault, response, tokens)
        if ended is None
        else Verdict(ended)
    )
    return RequestRecord(
        **planned,
        **_wire(capture, t0_ns),
        **_events(response),
        outcome=verdict.outcome,
        outcome_code=verdict.code,
    )


def records(
    trace: Sequence[Arrival],
    ramp_s: float,
    captures: Mapping[int, Capture],
    ended: Mapping[int, Outcome],
    t0_ns: int,
) -> list[RequestRecord]:
    """Return one record per planned request, in planned order.

    Args:
        trace: what was planned.
        ramp_s: arrivals before this are not observed.
        captures: what was sent, by sequence number.
        ended: what the client itself ended, and as what.
        t0_ns: the run's start on the monotonic clock.
    """
    made = []
    for arrival in trace:
        phase = "ramp" if arrival.offset_us < ramp_s * 1e6 else "observed"
        planned, capture = _planned(arrival, phase), captures.get(arrival.seq)
        made.append(
            RequestRecord(**planned, outcome=Outcome.NOT_SENT)
            if capture is None
            else _record(planned, capture, ended.get(arrival.seq), t0_ns)
        )
    return made
