"""Says what waits and runs at one moment, as gauges that are read at scrape time.

A request that never leaves is seen to age, which no histogram of finished waits shows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.progress import Pace, PriorityState
from gateway.tallies import Kind

__all__ = ["WATCH_STATES", "EngineLoad", "FlowLoad", "Gauges", "Occupancy"]

WATCH_STATES = ("watching", "breached", "reverted", "ended")


@dataclass(frozen=True, slots=True)
class FlowLoad:
    """What waits and runs of one (size class, service class); several rows are summed.

    Both arms of a route share their caps: only one of them has ``queued_limit``, the other 0.
    """

    size_class: str
    service_class: str
    queued: int
    queued_tokens: int
    queued_bytes: int
    oldest_age_s: float
    in_flight: int
    queued_limit: int = 0
    age_limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One engine's ledger and limits."""

    engine: str
    up: bool
    epoch: int
    slots: int
    prefill_tokens: int
    kv_tokens: int
    slots_limit: int
    prefill_tokens_limit: int
    kv_tokens_limit: int
    prefilling: tuple[tuple[str, int], ...] = ()
    progress: str = Pace.UNKNOWN
    priority: str = PriorityState.NOT_ASKED


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The state of the gateway at one moment, as scraped."""

    flows: Sequence[FlowLoad]
    engines: Sequence[EngineLoad]
    route_revision: int
    draining: bool = False
    drain_remaining: int = 0
    routes: Sequence[tuple[str, float]] = ()
    watches: Sequence[tuple[str, str]] = ()
    reload_refused: bool = False


class Gauges:
    """Turns the occupancy at scrape time into gauges, of those in ``kinds``."""

    def __init__(self, kinds: Mapping[str, Kind], occupancy: Callable[[], Occupancy]) -> None:
        self._kinds = kinds
        self._occupancy = occupancy

    def collect(self) -> Iterable[Metric]:
        """All gauges, as the registry asks for them at a scrape."""
        now = self._occupancy()
        gauges = {
            name: GaugeMetricFamily(name, kind.text, labels=kind.labels)
            for name, kind in self._kinds.items()
            if kind.kind == "gauge"
        }
        for name, labels, value in (*_flow_rows(now.flows), *_engine_rows(now.engines)):
            gauges[name].add_metric(labels, value)
        gauges["sluicegate_route_revision"].add_metric((), now.route_revision)
        for route, weight in now.routes:
            gauges["sluicegate_route_candidate_weight"].add_metric((route,), weight)
        for route, state in now.watches:
            for word in WATCH_STATES:
                gauges["sluicegate_canary_watch"].add_metric((route, word), float(word == state))
        gauges["sluicegate_drain_remaining"].add_metric((), now.drain_remaining)
        gauges["sluicegate_draining"].add_metric((), float(now.draining))
        gauges["sluicegate_reload_refused"].add_metric((), float(now.reload_refused))
        return gauges.values()


_Sample = tuple[str, tuple[str, ...], float]


def _flow_rows(flows: Iterable[FlowLoad]) -> Iterator[_Sample]:
    names = ("in_flight", "queue_depth", "queue_tokens", "queue_bytes", "queue_depth_limit")
    ages = ("oldest_waiting_age_seconds", "oldest_waiting_age_limit_seconds")
    sums: dict[tuple[str, str], list[float]] = {}
    for f in flows:
        row = sums.setdefault((f.size_class, f.service_class), [0.0] * 6 + [f.age_limit_s])
        added = (f.in_flight, f.queued, f.queued_tokens, f.queued_bytes, f.queued_limit)
        row[:5] = [have + more for have, more in zip(row, added, strict=False)]
        row[5:] = [max(row[5], f.oldest_age_s), min(row[6], f.age_limit_s)]
    for labels, row in sums.items():
        for name, value in zip((*names, *ages), row, strict=True):
            yield f"sluicegate_{name}", labels, value


def _engine_rows(engines: Iterable[EngineLoad]) -> Iterator[_Sample]:
    for e in engines:
        values = {
            "up": float(e.up),
            "epoch": e.epoch,
            "slots": e.slots,
            "prefill_tokens": e.prefill_tokens,
            "kv_tokens": e.kv_tokens,
            "slots_limit": e.slots_limit,
            "prefill_tokens_limit": e.prefill_tokens_limit,
            "kv_tokens_limit": e.kv_tokens_limit,
        }
        for name, value in values.items():
            yield f"sluicegate_engine_{name}", (e.engine,), value
        for pace in Pace:
            yield "sluicegate_engine_progress", (e.engine, pace.value), float(pace == e.progress)
        for state in PriorityState:
            labels = (e.engine, state.value)
            yield "sluicegate_engine_priority", labels, float(state == e.priority)
        for size_class, count in e.prefilling:
            yield "sluicegate_engine_prefilling", (e.engine, size_class), count
