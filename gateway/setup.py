"""What the pipeline is made of: parts that live as long as the process, and one configuration's.

A ``Setup`` is everything a configuration decides; a reload puts another in its place as one
reference, and a request keeps the one it began with. ``Parts`` hold connections, waiting requests
and counters, which outlive configurations.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.advice import Advisor
from gateway.config import Settings
from gateway.counters import Counters
from gateway.counting import CountingStage
from gateway.domain import FlowSpec
from gateway.engines import Prober
from gateway.fleet import Fleet
from gateway.identity import Identity
from gateway.intake import Intake
from gateway.journal import Journal
from gateway.lifetime import Timeouts
from gateway.observe import Observer
from gateway.routing import RouteTable
from gateway.tracing import Tracer
from gateway.turnstile import Turnstile
from gateway.usage import UsageBook
from gateway.wire import EngineClient

__all__ = ["Parts", "Setup", "timeouts"]


@dataclass(frozen=True, slots=True)
class Setup:
    """One configuration in force. ``specs`` are the flows by group."""

    settings: Settings
    table: RouteTable
    counters: Counters
    counting: CountingStage
    specs: Mapping[tuple[str, str, str], FlowSpec]
    advice: Advisor
    streamed: Timeouts
    whole: Timeouts
    pass_headers: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """What a process has once; ``serve`` builds it. ``clients`` are the engines' by origin."""

    intake: Intake
    turnstile: Turnstile
    fleet: Fleet
    clients: Mapping[str, EngineClient]
    prober: Prober
    observer: Observer
    journal: Journal
    identity: Identity
    usage: UsageBook
    tracer: Tracer | None
    clock: Callable[[], float]
    fresh_id: Callable[[], str]


def timeouts(settings: Settings) -> tuple[Timeouts, Timeouts]:
    """The time limits of streams and of answers that are not streamed.

    An engine sends the head of an answer that is not streamed when all of it is made.
    """
    upstream = settings.document.upstream
    idle_s, total_s = upstream.idle_timeout_s, upstream.total_timeout_s
    return (
        Timeouts(upstream.first_byte_timeout_s, idle_s, total_s),
        Timeouts(upstream.answer_timeout_s, idle_s, total_s),
    )
