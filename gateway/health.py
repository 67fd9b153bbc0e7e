"""Decides whether an engine is in use, from all that was seen of it.

``EngineHealth`` is a value; each function gives the next one after something was seen. In use is
an engine whose health checks are answered, that makes progress, and whose breaker is not open. A
good probe is enough to be answered; several silent ones are needed for the opposite, except that
an address that refuses connections is out at once. What an engine answers never counts against
it: how well it serves is for admission to limit. Pure: no I/O, no clock.
"""

from dataclasses import dataclass, field, replace

from gateway import breaker, progress
from gateway.breaker import Breaker, BreakerRule, BreakerState
from gateway.epochs import Epochs, after_page
from gateway.progress import Pace, Progress
from gateway.scrape import Scrape

__all__ = [
    "EngineHealth",
    "HealthRules",
    "after_failure",
    "after_refused",
    "after_reply",
    "after_scrape",
    "after_silence",
    "after_success",
]


@dataclass(frozen=True, slots=True)
class HealthRules:
    """``failures`` silent probes in a row, ``stall_s`` seconds without a step, and the breaker."""

    failures: int = 3
    stall_s: float = 10.0
    breaker: BreakerRule = field(default_factory=BreakerRule)


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """What is known of one engine. It starts down: nothing is sent on trust.

    ``up`` says whether it is in use, ``since_s`` when that last changed, ``reason`` why it is not.
    ``answers`` is about health checks alone. ``probed`` once the first has ended. ``scraped_s``
    is when its metrics page was last read.
    """

    engine: str
    up: bool = False
    answers: bool = False
    probed: bool = False
    failures: int = 0
    since_s: float = 0.0
    scraped_s: float | None = None
    last: Scrape = field(default_factory=Scrape)
    reason: str = "not yet probed"
    progress: Progress = field(default_factory=Progress)
    breaker: Breaker = field(default_factory=Breaker)
    epochs: Epochs = field(default_factory=Epochs)

    @property
    def epoch(self) -> int:
        """Starts of the engine seen."""
        return self.epochs.epoch


def after_success(
    health: EngineHealth, now: float, rules: HealthRules = HealthRules()
) -> EngineHealth:
    """The engine answered its health check with 200."""
    opened = breaker.after_probe(health.breaker, now, rules.breaker)
    seen = replace(health, answers=True, probed=True, failures=0, reason="", breaker=opened)
    return _judged(health, seen, now)


def after_silence(
    health: EngineHealth, now: float, reason: str, rules: HealthRules = HealthRules()
) -> EngineHealth:
    """A probe was not answered well; several of them in a row make it down."""
    failures = health.failures + 1
    answers = health.answers and failures < rules.failures
    seen = replace(health, answers=answers, probed=True, failures=failures, reason=reason)
    return _judged(health, seen, now)


def after_refused(health: EngineHealth, now: float, reason: str) -> EngineHealth:
    """Nobody listens at the engine's address, as a probe or a request found out: down at once."""
    failures = health.failures + 1
    seen = replace(health, answers=False, probed=True, failures=failures, reason=reason)
    return _judged(health, seen, now)


def after_failure(
    health: EngineHealth, now: float, reason: str, rules: HealthRules
) -> EngineHealth:
    """A relayed request failed in transport."""
    opened = breaker.after_failure(health.breaker, now, rules.breaker)
    word = f"breaker open: {reason}" if opened.state is BreakerState.OPEN else health.reason
    return _judged(health, replace(health, breaker=opened, reason=word), now)


def after_reply(health: EngineHealth) -> EngineHealth:
    """A relayed request was answered; the same value where that changes nothing."""
    closed = breaker.after_reply(health.breaker)
    return health if closed == health.breaker else replace(health, breaker=closed)


def after_scrape(
    health: EngineHealth, page: Scrape, now: float, rules: HealthRules = HealthRules()
) -> EngineHealth:
    """The metrics page was read."""
    epochs = after_page(health.epochs, health.last, page)
    # Counts of several engines in turn say nothing about the progress of any.
    steps = None if epochs.mixed else page.iterations
    pace = progress.after_figures(health.progress, steps, page.running, now, rules.stall_s)
    reason = health.reason
    if pace.pace is Pace.STALLED:
        reason = f"no progress: {page.running:g} running, no step for {now - pace.since_s:.1f} s"
    seen = replace(health, last=page, scraped_s=now, epochs=epochs, progress=pace, reason=reason)
    return _judged(health, seen, now)


def _judged(before: EngineHealth, seen: EngineHealth, now: float) -> EngineHealth:
    """With the verdict, its time, and no reason where there is nothing to explain."""
    stalled = seen.progress.pace is Pace.STALLED
    up = seen.answers and not stalled and seen.breaker.state is not BreakerState.OPEN
    since_s = seen.since_s if up == before.up else now
    reason = seen.reason
    if up and not seen.failures:
        reason = ""
    elif not up and not reason:
        reason = before.reason or ("no progress" if stalled else "breaker open")
    return replace(seen, up=up, since_s=since_s, reason=reason)
