"""Turns what the wire showed into one record per planned request, after the run.

Nothing here runs while anything is measured. Times become microseconds from the run's start.
Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from loadgen.capture import Capture
from loadgen.events import Response, Verdict, judge, max_stall_us, read_events
from loadgen.record import Outcome, RequestRecord
from loadgen.trace import Arrival, planned_part
from loadgen.validators import task_fault

__all__ = ["Axis", "Seen", "Task", "records"]


# The client had as many connections or bytes open as it may; the run is invalid.
CLIENT_CAP = "client_cap"


@dataclass(frozen=True, slots=True)
class Task:
    """What a response is held to: the forced length, and validators by prompt digest."""

    forced_length: bool = True
    validators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


PLAIN = Task()


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of requests, by sequence number: the wire's story, and what the client ended."""

    captures: Mapping[int, Capture]
    ended: Mapping[int, Outcome]


@dataclass(frozen=True, slots=True)
class Axis:
    """The run's time: microseconds since its start, stretched by the scale.

    `time_scale` is how much faster than recorded time the run went.
    """

    t0_ns: int
    time_scale: float = 1.0

    def us(self, at_ns: int | None) -> int | None:
        """Return an instant of the monotonic clock on this axis."""
        return None if at_ns is None else self.long_us(at_ns - self.t0_ns)

    def long_us(self, length_ns: int) -> int:
        """Return how long something took."""
        return (
            length_ns // 1000 if self.time_scale == 1.0 else int(length_ns * self.time_scale / 1e3)
        )


def _number(headers: Mapping[bytes, bytes], name: bytes) -> float | None:
    with suppress(ValueError):  # a header that is no number was not measured
        return float(headers.get(name, b""))
    return None


def _wire(capture: Capture, axis: Axis) -> dict[str, Any]:
    sent, asked = capture.sent_ns, capture.asked_ns
    queue_ms = _number(capture.headers, b"x-sluicegate-queue-ms")
    return {
        "status": capture.status,
        "connect_wait_us": None if sent is None or asked is None else axis.long_us(sent - asked),
        "dispatched_us": axis.us(sent),
        "first_byte_us": axis.us(capture.head_ns),
        "last_byte_us": axis.us(capture.end_ns),
        "queue_ms": None if queue_ms is None else queue_ms * axis.time_scale,
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
        "cached_tokens": response.cached_tokens,
    }


def _judged(
    planned: dict[str, Any], capture: Capture, response: Response | None, task: Task
) -> Verdict:
    tokens = planned["completion_tokens_planned"] if task.forced_length else None
    body = bytes(capture.body)
    found = judge(capture.status, capture.headers, body, capture.fault, response, tokens)
    validator = task.validators.get(planned["prompt_sha256"])
    if found.outcome is not Outcome.OK or validator is None or response is None:
        return found
    fault = task_fault(validator, response)
    return found if fault is None else Verdict(Outcome.INVALID_RESPONSE, fault)


def _record(
    planned: dict[str, Any], capture: Capture, ended: Outcome | None, axis: Axis, task: Task
) -> RequestRecord:
    reads = [(axis.long_us(at - axis.t0_ns), length) for at, length in capture.reads]
    response = read_events(bytes(capture.body), reads) if capture.status == 200 else None
    verdict = _judged(planned, capture, response, task) if ended is None else Verdict(ended)
    return RequestRecord(
        **planned,
        **_wire(capture, axis),
        **_events(response),
        outcome=verdict.outcome,
        outcome_code=verdict.code,
    )


def _unsent(planned: dict[str, Any], ended: Outcome | None) -> RequestRecord:
    code = CLIENT_CAP if ended is Outcome.NOT_SENT else None
    return RequestRecord(**planned, outcome=Outcome.NOT_SENT, outcome_code=code)


def records(
    trace: Sequence[Arrival],
    ramp_s: float,
    seen: Seen,
    axis: Axis,
    task: Task = PLAIN,
) -> list[RequestRecord]:
    """Return one record per planned request, in planned order.

    Args:
        trace: what was planned.
        ramp_s: arrivals before this are not observed.
        seen: what was sent, and what the client ended itself.
        axis: the run's time.
        task: what a response is held to.
    """
    made = []
    for arrival in trace:
        planned, capture = planned_part(arrival, ramp_s), seen.captures.get(arrival.seq)
        ended = seen.ended.get(arrival.seq)
        made.append(
            _unsent(planned, ended)
            if capture is None
            else _record(planned, capture, ended, axis, task)
        )
    return made
