"""Decides whether the engine takes a request, as vLLM's native admission does.

Counts are sequences in the engine and prompt tokens still in prefill.
"""

from dataclasses import dataclass

from loadgen.engine.core import EngineCore
from loadgen.engine.faults import FaultPlan, parse_faults
from loadgen.engine.refusals import ApiError

__all__ = ["BUSY", "Faults", "Gate", "Limits"]

BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Native admission: None where unlimited."""

    queued_requests: int | None = None
    queued_tokens: int | None = None


@dataclass(slots=True)
class Faults:
    """The planned faults and how many data events and streams have gone out since."""

    plan: FaultPlan
    events: int = 0
    streams: int = 0


class Gate:
    """Native admission and the faults that stand in its place."""

    def __init__(self, core: EngineCore, limits: Limits, faults: Faults) -> None:
        self.core = core
        self._limits = limits
        self.faults = faults
        self._apply()

    def admit(self, sequences: int) -> None:
        """Let that many new sequences in.

        Raises:
            ApiError: The engine is full; status 503.
        """
        limits, core = self._limits, self.core
        above = limits.queued_requests is not None and (
            core.unfinished + sequences > limits.queued_requests
        )
        if above or self.faults.plan.reject:
            core.metrics.rejected("max_num_queued_reqs")
            raise ApiError(503, BUSY, "Service Unavailable")
        if limits.queued_tokens is not None and core.prefill_tokens_queued >= limits.queued_tokens:
            core.metrics.rejected("max_num_queued_tokens")
            raise ApiError(503, BUSY, "Service Unavailable")

    def replan(self, texts: list[str]) -> None:
        """Put other faults in place of all before; their counts start anew.

        Raises:
            ValueError: A fault can't be read, or only makes sense at the start.
        """
        plan = parse_faults(texts)
        if plan.slow_start_s:
            raise ValueError("slow-start: a running engine can't start slowly")
        self.faults.plan, self.faults.events, self.faults.streams = plan, 0, 0
        self.core.resume()
        self._apply()

    def _apply(self) -> None:
        if self.faults.plan.hang_scheduler:
            self.core.freeze()
