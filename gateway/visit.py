"""What is known of one request while it passes through the gateway.

Filled stage by stage in ``app``; read once at the end, for the metrics and the log line.
"""

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
    retries: int = 0
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
        return Finished(
            outcome=self.outcome,
            request_id=self.request_id,
            surface=self.surface,
            arrived_s=self.arrived_s,
            ended_s=ended_s,
            status=self.status,
            key_id=principal.key_id if principal else None,
            trace_id=self.trace_id,
            model=self.model,
            size_class=self.size_class,
            service_class=principal.service_class if principal else None,
            arm=None if self.arm is None else str(self.arm),
            pool=self.pool,
            engine=self.engine,
            stream=self.stream,
            prompt_tokens=self.prompt_tokens,
            engine_prompt_tokens=self.engine_prompt_tokens,
            completion_tokens=self.completion_tokens,
            classify_s=self.classify_s,
            classify_method=self.classify_method,
            dispatched_s=marks.dispatched_s,
            first_event_s=marks.first_event_s,
            max_stall_s=marks.max_gap_s if marks.events > 1 else None,
            gaps=marks.gaps,
            gaps_sum_s=(marks.last_event_s or 0.0) - (marks.first_event_s or 0.0),
            retries=self.retries,
            offered=self.offered,
            detail=self.detail,
        )
