"""What is known of one request while it passes through the gateway.

Filled stage by stage in ``app``; read once at the end, for the metrics and the log line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.domain import Arm, Outcome, Principal, Surface
from gateway.lifetime import Ending, Timeline
from gateway.observe import Finished
from gateway.sent import Sent
from gateway.traceparent import TraceContext

__all__ = ["Visit"]


@dataclass(slots=True, eq=False)
class Visit:
    """One request from its headers to its end. ``None``: did not come to that."""

    request_id: str
    upstream_id: str
    arrived_s: float
    marks: Timeline
    ending: Ending
    sent: Sent
    pass_on: Callable[[bytes], bool] | None = None
    answer: Callable[[int, Sequence[tuple[bytes, bytes]], bytes], bool] | None = None
    surface: Surface | None = None
    outcome: Outcome = Outcome.INTERNAL_ERROR
    status: int | None = None
    committed: bool = False
    trace_id: str | None = None
    trace: TraceContext | None = None
    principal: Principal | None = None
    model: str | None = None
    size_class: str | None = None
    arm: Arm | None = None
    pool: str | None = None
    engine: str | None = None
    stream: bool = False
    body_bytes: int = 0
    prompt_tokens: int | None = None
    engine_prompt_tokens: int | None = None
    completion_tokens: int | None = None
    classify_s: float | None = None
    classified_s: float | None = None
    classify_method: str | None = None
    queue_s: float | None = None
    retry_reason: str | None = None
    offered: bool = False
    detail: str | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What every answer to this request carries, as far as it is known now."""
        found = [(b"x-request-id", self.request_id.encode())]
        if self.size_class is not None:
            found.append((b"x-sluicegate-class", self.size_class.encode()))
        if self.queue_s is not None:
            found.append((b"x-sluicegate-queue-ms", b"%d" % round(self.queue_s * 1e3)))
        return found

    def finished(self, ended_s: float) -> Finished:
        """The request as the observer takes it."""
        marks, principal = self.marks, self.principal
        # By position, as wherever a value is made for every request: names cost as much again.
        return Finished(
            self.outcome, self.request_id, self.surface, self.arrived_s, ended_s, self.status,
            principal.key_id if principal else None, self.trace_id, self.model, self.size_class,
            principal.service_class if principal else None,
            None if self.arm is None else str(self.arm), self.pool, self.engine, self.stream,
            self.prompt_tokens, self.engine_prompt_tokens, self.completion_tokens,
            self.classify_s, self.classify_method, marks.dispatched_s, marks.first_event_s,
            marks.max_gap_s if marks.events > 1 else None, marks.gaps,
            (marks.last_event_s or 0.0) - (marks.first_event_s or 0.0),
            self.retry_reason, self.offered, self.detail,
        )  # fmt: skip
