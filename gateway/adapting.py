"""Puts adapted limits in force: the shell around ``adaptation``, for all engines.

Each metrics page, but not more than one a second, is shown to the engine's adaptation with what
the gateway knows itself: what it has outstanding there, whether its limits stopped anybody, and
how often the engine refused. A page that does not come changes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.adaptation import Adaptation, Signals
from gateway.domain import EngineLimits
from gateway.health import EngineHealth
from gateway.journal import Journal
from gateway.turnstile import Turnstile

__all__ = ["Adapting", "Range"]

EVERY_S = 0.95  # a second, less what a timer may be early


@dataclass(frozen=True, slots=True)
class Range:
    """The limits between which an engine's adapt, and N of the whole engine."""

    configured: EngineLimits
    floors: EngineLimits
    whole_slots: int


@dataclass(slots=True, eq=False)
class _Engine:
    range: Range
    adaptation: Adaptation
    rejections: int = 0
    looked_s: float = float("-inf")


class Adapting:
    """The adaptations of the engines; without any, nothing adapts."""

    def __init__(self, turnstile: Turnstile, journal: Journal, clock: Callable[[], float]) -> None:
        self._turnstile = turnstile
        self._journal = journal
        self._clock = clock
        self._engines: dict[str, _Engine] = {}

    def use(self, ranges: Mapping[str, Range]) -> None:
        """Adapt these engines; one whose range is as before goes on from where it is."""
        kept = self._engines
        self._engines = {
            name: kept[name]
            if name in kept and kept[name].range == range_
            else _Engine(range_, Adaptation(range_.configured, range_.floors, range_.whole_slots))
            for name, range_ in ranges.items()
        }
        # Whatever was reconfigured stands at its configured limits: adapted ones go back in force.
        for name, engine in self._engines.items():
            self._enforce(name, engine.adaptation.limits)

    def rejected(self, name: str) -> None:
        """The engine refused a request itself."""
        if name in self._engines:
            self._engines[name].rejections += 1

    def restarted(self, name: str) -> None:
        """Another epoch: what was learnt of the one before is void."""
        if name in self._engines:
            self._engines[name].adaptation.restarted()

    def page(self, health: EngineHealth) -> None:
        """A metrics page was read."""
        engine, now = self._engines.get(health.engine), self._clock()
        if engine is None or now - engine.looked_s < EVERY_S:
            return
        engine.looked_s = now
        before = engine.adaptation.limits
        if health.epochs.mixed:  # figures of several engines in turn say nothing
            engine.adaptation.restarted()
            after = engine.adaptation.limits
        else:
            after = engine.adaptation.observe(self._signals(health, engine), now)
        if after != before:
            self._enforce(health.engine, after)
            self._journal.event(
                "limits_adapted",
                engine=health.engine,
                slots=after.slots,
                prefill_tokens=after.prefill_tokens,
            )

    def limits(self, name: str) -> EngineLimits | None:
        """The adapted limits of an engine; None where nothing adapts."""
        engine = self._engines.get(name)
        return None if engine is None else engine.adaptation.limits

    def _signals(self, health: EngineHealth, engine: _Engine) -> Signals:
        page, core = health.last, self._turnstile.core
        rejections, engine.rejections = engine.rejections, 0
        return Signals(
            preemptions_total=page.preemptions,
            capacity_waiting=page.waiting
            if page.capacity_waiting is None
            else page.capacity_waiting,
            kv_usage=page.kv_usage,
            engine_rejections=rejections,
            running=page.running,
            waiting=page.waiting,
            own_slots=core.engines[health.engine].slots_used,
            gate_bound=core.gate_bound(health.engine),
            started_s=page.process_start_s,
        )

    def _enforce(self, name: str, limits: EngineLimits) -> None:
        self._turnstile.tell(lambda core, now: core.adapt(name, limits, now))
