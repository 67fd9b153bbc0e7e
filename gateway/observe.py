"""Counts and describes what happened to requests: metrics, and one log line per request.

Every metric stands in one table; labels come from the configuration alone, so the number of
series is bounded by ``series_bound`` whatever callers send. A request is counted as offered once
(when its class is known, or at its end), and recorded once at its end. What is waiting is read
at scrape time from the admission core, so a request that never leaves is seen to age. Neither
metrics nor log hold prompt text or credentials.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry, generate_latest

from gateway.config import Settings, SizeClass
from gateway.domain import Outcome, Surface
from gateway.finished import ESTIMATES, Finished, log_line
from gateway.live import Reading
from gateway.occupancy import WATCH_STATES, EngineLoad, FlowLoad, Gauges, Occupancy
from gateway.progress import Pace, PriorityState
from gateway.tallies import BOUNDS_S, Count, Kind, Tallies

__all__ = [
    "METRICS",
    "UNKNOWN",
    "WATCH_STATES",
    "EngineLoad",
    "Finished",
    "FlowLoad",
    "Observer",
    "Occupancy",
    "log_line",
    "series_bound",
]

UNKNOWN = "unknown"
_FLOW = ("size_class", "service_class")
_METHODS = ("kitoken", "tokenizers", "ids", "estimate", "configured")
_CLASSIFICATION = "sluicegate_classification_seconds"
# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_COMPLETED, _CLIENT_CANCELLED = Outcome.COMPLETED, Outcome.CLIENT_CANCELLED
_PHASES = ("queued", "before_first_byte", "mid_stream")
_RETRY_REASONS = ("unreachable", "rejected", "disconnected")  # attempt.py gives them


# Names are fixed: dashboards, alert rules and the bench read them. Counters gain "_total".
METRICS: Mapping[str, Kind] = MappingProxyType(
    {
        "sluicegate_offered": Kind("counter", _FLOW, "Requests received."),
        "sluicegate_outcomes": Kind(
            "counter", (*_FLOW, "outcome"), "Requests ended, by class and outcome."
        ),
        "sluicegate_answers": Kind(
            "counter", ("surface", "outcome"), "Requests ended, by surface."
        ),
        "sluicegate_would_refuse": Kind(
            "counter", (*_FLOW, "outcome"), "Refusals decided and not acted on (observe mode)."
        ),
        "sluicegate_goodput": Kind("counter", _FLOW, "Requests that met every limit of a class."),
        "sluicegate_prompt_tokens": Kind("counter", _FLOW, "Prompt tokens of admitted requests."),
        "sluicegate_count_mismatches": Kind(
            "counter", _FLOW, "Exact counts of a prompt that differ from the engine's."
        ),
        "sluicegate_output_tokens": Kind("counter", _FLOW, "Output tokens engines reported."),
        "sluicegate_canary_aborts": Kind(
            "counter", ("route",), "Canaries that their watch took back."
        ),
        "sluicegate_cancelled": Kind("counter", ("phase",), "Callers that left, by phase."),
        "sluicegate_retries": Kind(
            "counter", ("pool", "reason"), "Requests sent to a second engine, and why."
        ),
        "sluicegate_queue_wait_seconds": Kind("histogram", _FLOW, "Arrival to dispatch."),
        "sluicegate_ttft_seconds": Kind("histogram", _FLOW, "Arrival to first data event."),
        "sluicegate_engine_ttft_seconds": Kind("histogram", _FLOW, "Dispatch to first event."),
        "sluicegate_chunk_gap_seconds": Kind("histogram", _FLOW, "Between reads with events."),
        "sluicegate_max_stall_seconds": Kind("histogram", _FLOW, "Longest gap between events."),
        "sluicegate_e2e_seconds": Kind("histogram", _FLOW, "Arrival to end."),
        "sluicegate_classification_seconds": Kind(
            "histogram", ("method",), "Rendering and counting a prompt."
        ),
        "sluicegate_in_flight": Kind("gauge", _FLOW, "Requests running in engines."),
        "sluicegate_queue_depth": Kind("gauge", _FLOW, "Requests waiting."),
        "sluicegate_queue_tokens": Kind("gauge", _FLOW, "Prompt tokens waiting."),
        "sluicegate_queue_bytes": Kind("gauge", _FLOW, "Body bytes waiting."),
        "sluicegate_oldest_waiting_age_seconds": Kind("gauge", _FLOW, "Age of the oldest."),
        "sluicegate_queue_depth_limit": Kind("gauge", _FLOW, "Requests that may wait."),
        "sluicegate_oldest_waiting_age_limit_seconds": Kind("gauge", _FLOW, "No age is above it."),
        "sluicegate_engine_up": Kind("gauge", ("engine",), "1 if the engine is in use."),
        "sluicegate_engine_epoch": Kind("gauge", ("engine",), "Starts of the engine seen."),
        "sluicegate_engine_slots": Kind("gauge", ("engine",), "Sequences in flight."),
        "sluicegate_engine_prefill_tokens": Kind("gauge", ("engine",), "Tokens in prefill."),
        "sluicegate_engine_kv_tokens": Kind("gauge", ("engine",), "KV tokens charged."),
        "sluicegate_engine_slots_limit": Kind("gauge", ("engine",), "Limit now in force."),
        "sluicegate_engine_prefill_tokens_limit": Kind("gauge", ("engine",), "Limit in force."),
        "sluicegate_engine_kv_tokens_limit": Kind("gauge", ("engine",), "Limit now in force."),
        "sluicegate_engine_progress": Kind(
            "gauge", ("engine", "progress"), "1 for what the engine's count of steps says."
        ),
        "sluicegate_engine_priority": Kind(
            "gauge", ("engine", "priority"), "1 for what is known of its priorities."
        ),
        "sluicegate_engine_prefilling": Kind(
            "gauge", ("engine", "size_class"), "Requests in prefill."
        ),
        "sluicegate_route_revision": Kind("gauge", (), "Revision of the route table."),
        "sluicegate_route_candidate_weight": Kind(
            "gauge", ("route",), "Part of a route's callers that get its candidate pool."
        ),
        "sluicegate_canary_watch": Kind(
            "gauge", ("route", "state"), "1 for the state of the route's last canary."
        ),
        "sluicegate_draining": Kind("gauge", (), "1 while the gateway drains."),
        "sluicegate_reload_refused": Kind("gauge", (), "1 if the last reload changed nothing."),
        "sluicegate_drain_remaining": Kind("gauge", (), "Requests a drain still waits for."),
    }
)


class Observer:
    """The metrics of one gateway, in its own registry.

    ``occupancy`` is called at each scrape. Values outside the configuration are counted as
    ``unknown``, never as a new series.
    """

    def __init__(self, settings: Settings, occupancy: Callable[[], Occupancy]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._tallies = Tallies(METRICS, BOUNDS_S)
        self.use(settings)
        self.registry.register(self._tallies)
        self.registry.register(Gauges(METRICS, occupancy))

    def use(self, settings: Settings) -> None:
        """Take the names of another configuration; what was counted under names it has stays.

        The counters of a class, pool or route that it no longer has vanish from the page, so that
        ``series_bound`` holds however often names change; one that comes back begins at 0.
        """
        self._limits = {size.name: size for size in settings.sizes}
        self._services = frozenset(settings.document.service)
        self._pools = frozenset(settings.document.pool)
        self._tallies.keep(
            {
                "size_class": {*self._limits, UNKNOWN},
                "service_class": {*self._services, UNKNOWN},
                "pool": self._pools,
                "route": {f"{route.model}/{route.size}" for route in settings.document.route},
            }
        )
        self._flows: dict[tuple[str | None, str | None], _FlowTallies] = {}
        self._answers: dict[tuple[str | None, Outcome], Count] = {}
        self._methods = {m: self._tallies.spread(_CLASSIFICATION, m) for m in _METHODS}

    def offered(self, size_class: str | None, service_class: str | None) -> None:
        """Count a request whose class is known now; ``record`` does so for all others."""
        self._flow(size_class, service_class).offered.value += 1

    def would_refuse(
        self, size_class: str | None, service_class: str | None, outcome: Outcome
    ) -> None:
        """Count a refusal that observe mode decided and did not act on."""
        labels = self._flow(size_class, service_class).labels
        self._tallies.count("sluicegate_would_refuse", *labels, outcome).value += 1

    def canary_aborted(self, route: str) -> None:
        """Count a canary that its watch took back."""
        self._tallies.count("sluicegate_canary_aborts", route).value += 1

    def refused_at_edge(self, outcome: Outcome) -> None:
        """Count a request that ended before it could be read: it has no surface and no line."""
        self.offered(None, None)
        self._tallies.count("sluicegate_outcomes", UNKNOWN, UNKNOWN, outcome).value += 1

    def record(self, finished: Finished) -> None:
        """Count a request at its end. Call it exactly once per request."""
        size_class, service_class = finished.size_class, finished.service_class
        flow = self._flows.get((size_class, service_class)) or self._flow(size_class, service_class)
        outcome, count = finished.outcome, self._tallies.count
        if not finished.offered:
            flow.offered.value += 1
        ended = flow.outcomes.get(outcome) or flow.ended(outcome)
        ended.value += 1
        answered = self._answers.get((finished.surface, outcome))
        if answered is None:
            answered = count("sluicegate_answers", finished.surface or UNKNOWN, outcome)
            self._answers[finished.surface, outcome] = answered
        answered.value += 1
        if finished.retry_reason in _RETRY_REASONS and finished.pool in self._pools:
            count("sluicegate_retries", finished.pool, finished.retry_reason).value += 1
        if outcome is _CLIENT_CANCELLED:
            count("sluicegate_cancelled", _phase(finished)).value += 1
        method = self._methods.get(finished.classify_method or "")
        if finished.classify_s is not None and method is not None:
            method.note(finished.classify_s)
        if finished.dispatched_s is not None:
            flow.ran(finished, finished.dispatched_s)

    def reading(self, now: float) -> Reading:
        """What the counters that the console shows say now."""
        tallies = self._tallies
        return Reading(
            now,
            {(a, b, c): n for (a, b, c), n in tallies.counted("sluicegate_outcomes").items()},
            {(a, b): n for (a, b), n in tallies.spreads("sluicegate_ttft_seconds").items()},
            {(a, b): n for (a, b), n in tallies.spreads("sluicegate_chunk_gap_seconds").items()},
        )

    def page(self) -> bytes:
        """The metrics page in Prometheus' text format."""
        return generate_latest(self.registry)

    def _flow(self, size_class: str | None, service_class: str | None) -> "_FlowTallies":
        # Both may be any text until they are known to be configured: those are not kept.
        found = self._flows.get((size_class, service_class))
        if found is None:
            size = size_class if size_class in self._limits else None
            service = service_class if service_class in self._services else None
            limits = self._limits.get(size or "")
            found = _FlowTallies(self._tallies, (size or UNKNOWN, service or UNKNOWN), limits)
            if size == size_class and service == service_class:
                self._flows[size, service] = found
        return found


class _FlowTallies:
    """What is counted of one (size class, service class), found once.

    Args:
        tallies: where all of it stands.
        labels: the two.
        limits: what a request of this size must meet to be goodput, where it is known.
    """

    def __init__(self, tallies: Tallies, labels: tuple[str, str], limits: SizeClass | None) -> None:
        self.labels = labels
        self.outcomes: dict[Outcome, Count] = {}
        self._tallies, self._limits = tallies, limits
        self.offered = tallies.count("sluicegate_offered", *labels)
        self._goodput = tallies.count("sluicegate_goodput", *labels)
        self._prompt_tokens = tallies.count("sluicegate_prompt_tokens", *labels)
        self._mismatches = tallies.count("sluicegate_count_mismatches", *labels)
        self._output_tokens = tallies.count("sluicegate_output_tokens", *labels)
        self._queue_wait = tallies.spread("sluicegate_queue_wait_seconds", *labels)
        self._ttft = tallies.spread("sluicegate_ttft_seconds", *labels)
        self._engine_ttft = tallies.spread("sluicegate_engine_ttft_seconds", *labels)
        self._gaps = tallies.spread("sluicegate_chunk_gap_seconds", *labels)
        self._max_stall = tallies.spread("sluicegate_max_stall_seconds", *labels)
        self._e2e = tallies.spread("sluicegate_e2e_seconds", *labels)

    def ended(self, outcome: Outcome) -> Count:
        """The counter of an end; kept in ``outcomes``, where it is looked for first."""
        found = self._tallies.count("sluicegate_outcomes", *self.labels, outcome)
        self.outcomes[outcome] = found
        return found

    def ran(self, finished: Finished, dispatched_s: float) -> None:
        """Count a request that had reached an engine."""
        arrived_s, first_s = finished.arrived_s, finished.first_event_s
        self._queue_wait.note(dispatched_s - arrived_s)
        if first_s is not None:
            self._ttft.note(first_s - arrived_s)
            self._engine_ttft.note(first_s - dispatched_s)
            self._streamed(finished)
        prompt_tokens = finished.prompt_tokens or 0
        self._prompt_tokens.value += prompt_tokens
        self._output_tokens.value += finished.completion_tokens or 0
        counted = finished.engine_prompt_tokens
        if counted is not None and counted != prompt_tokens:
            self._mismatches.value += finished.classify_method not in ESTIMATES
        if finished.outcome is _COMPLETED:
            self._e2e.note(finished.ended_s - arrived_s)
            if self._limits is not None and _met(finished, self._limits):
                self._goodput.value += 1

    def _streamed(self, finished: Finished) -> None:
        if finished.max_stall_s is not None:
            self._max_stall.note(finished.max_stall_s)
        if any(finished.gaps):
            self._gaps.fold(finished.gaps, finished.gaps_sum_s)


def _phase(finished: Finished) -> str:
    if finished.dispatched_s is None:
        return "queued"
    return "before_first_byte" if finished.first_event_s is None else "mid_stream"


def _met(finished: Finished, limits: SizeClass) -> bool:
    """Whether a completed request met every limit of its class."""
    first_s = finished.ended_s if finished.first_event_s is None else finished.first_event_s
    return (
        first_s - finished.arrived_s <= limits.ttft_limit_s
        and (finished.max_stall_s or 0.0) <= limits.max_stall_s
        and finished.ended_s - finished.arrived_s <= limits.e2e_limit_s
    )


def series_bound(settings: Settings) -> int:
    """The most series the metrics page can ever have under these settings."""
    values = {
        "size_class": len(settings.sizes) + 1,
        "service_class": len(settings.document.service) + 1,
        "outcome": len(Outcome),
        "surface": len(Surface) + 1,
        "engine": sum(pool.engine_bound for pool in settings.document.pool.values()),
        "progress": len(Pace),
        "priority": len(PriorityState),
        "pool": len(settings.document.pool),
        "route": len(settings.document.route),
        "method": len(_METHODS),
        "phase": len(_PHASES),
        "reason": len(_RETRY_REASONS),
        "state": len(WATCH_STATES),
    }
    # A histogram has its buckets, +Inf, sum and count.
    per_child = {"gauge": 1, "counter": 1, "histogram": len(BOUNDS_S) + 3}
    bound = 0
    for kind in METRICS.values():
        children = per_child[kind.kind]
        for label in kind.labels:
            children *= values[label]
        bound += children
    return bound
