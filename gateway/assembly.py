"""Builds the application from its settings: the one place where parts are put together."""

import itertools
import random
import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from gateway.admission import Admission
from gateway.advice import Advisor
from gateway.app import Gateway
from gateway.config import Settings
from gateway.contract import Advice
from gateway.counters import Counters, load_counters
from gateway.counting import CountingStage
from gateway.domain import Arm, FlowKey, Outcome
from gateway.fleet import Fleet
from gateway.health import EngineHealth
from gateway.identity import Identity
from gateway.intake import Intake
from gateway.journal import Journal
from gateway.membership import topology
from gateway.observe import EngineLoad, FlowLoad, Observer, Occupancy
from gateway.routing import RouteTable
from gateway.schema import Server
from gateway.setup import Parts, Setup, timeouts
from gateway.template import ChatTemplate
from gateway.tokenizer import CountingPool
from gateway.tracing import make_tracer
from gateway.turnstile import Turnstile
from gateway.usage import UsageBook
from gateway.verdicts import Offer

__all__ = ["build", "setup_of"]


def build(
    settings: Settings,
    journal: Journal,
    clock: Callable[[], float],
    table: RouteTable | None = None,
) -> Gateway:
    """The application from its settings. Call it on the loop it will run on.

    ``table`` is in force in place of the configured routes, where one is given.
    """
    document = settings.document
    table = table or settings.route_table(secrets.token_bytes(32))
    core = Admission(
        settings.flows,
        topology(table, {pool: {} for pool in document.pool}, {}),  # the fleet brings the engines
        clock(),
        quantum=document.scheduling.quantum,
        beta=document.scheduling.beta,
    )
    gateway: Gateway

    def would_refuse(offer: Offer, outcome: Outcome) -> None:
        observer.would_refuse(offer.key.size_class, offer.key.service_class, outcome)

    turnstile = Turnstile(core, clock, would_refuse)
    fleet = Fleet(settings, table, turnstile, journal, clock)
    observer = Observer(settings, lambda: _occupancy(gateway))
    gateway = Gateway(
        Parts(
            intake=_intake(document.server),
            turnstile=turnstile,
            fleet=fleet,
            clients=fleet.clients,
            prober=fleet.prober,
            observer=observer,
            journal=journal,
            identity=Identity(settings.keyring, settings.issuers, clock, _wall, journal.event),
            usage=UsageBook(),
            tracer=make_tracer(settings),
            clock=clock,
            fresh_id=_fresh_ids(),
        ),
        setup_of(settings, table, turnstile),
    )
    return gateway


def setup_of(
    settings: Settings, table: RouteTable, turnstile: Turnstile, before: Setup | None = None
) -> Setup:
    """What ``settings`` decide, ready to serve with; may be called in a thread.

    What is expensive or learnt and has not changed is taken over from ``before``.

    Raises:
        ConfigError: a tokenizer can't be loaded.
    """
    jitter = random.Random(secrets.randbits(64)).random  # spreads callers; nothing depends on it
    streamed, whole = timeouts(settings)
    counters = load_counters(settings, before.counters if before else None)
    fixed_s = {
        Advice.CONFIGURED: settings.document.server.paused_retry_after_s,
        Advice.PROBE_INTERVAL: settings.document.probe.interval_s,
    }
    groups = [spec.group for spec in settings.flows]
    return Setup(
        settings=settings,
        table=table,
        counters=counters,
        counting=_counting(settings, counters, turnstile, before),
        specs={spec.group: spec for spec in settings.flows},
        advice=Advisor(jitter, groups, fixed_s, before.advice if before else None),
        streamed=streamed,
        whole=whole,
        pass_headers=tuple(n.encode() for n in settings.document.upstream.pass_headers),
    )


def _counting(
    settings: Settings, counters: Counters, turnstile: Turnstile, before: Setup | None
) -> CountingStage:
    templates = {}
    for name, model in settings.document.model.items():
        source, special_tokens = settings.chat_template(name)
        templates[name] = ChatTemplate(
            source,
            special_tokens,
            lambda: datetime.now().astimezone(),
            content_format=model.content_format,
            allowed_kwargs=model.chat_template_kwargs,
        )
    section = settings.document.counting
    if before is not None and before.settings.document.counting == section:
        pool = before.counting.pool
    else:
        pool = CountingPool(
            section.threads,
            section.inline_below_bytes,
            section.max_requests,
            section.max_bytes,
            settings.document.server.principal_share,
        )
    return CountingStage(settings, pool, counters.by_model, templates, turnstile)


def _wall() -> float:
    """Seconds since 1970, which callers' tokens are dated in."""
    return datetime.now(UTC).timestamp()


def _intake(server: Server) -> Intake:
    return Intake(server.max_requests, server.max_held_bytes, server.principal_share)


def _fresh_ids() -> Callable[[], str]:
    """Request ids, unique over processes and requests without a system call for each."""
    prefix, numbers = secrets.token_hex(8), itertools.count(1)
    return lambda: f"{prefix}{next(numbers):016x}"


def _queued_limit(gateway: Gateway, key: FlowKey) -> int:
    """What may wait in a flow; 0 for the second arm, which shares it, and for one that is gone."""
    spec = gateway.setup.specs.get(key.group)
    return 0 if spec is None or key.arm is not Arm.STABLE else spec.max_queued


def _occupancy(gateway: Gateway) -> Occupancy:
    parts = gateway.parts
    core, health = parts.turnstile.core, parts.prober.health
    unknown = EngineHealth("")  # of an engine that is gone and ends what it has
    return Occupancy(
        flows=[
            FlowLoad(
                view.key.size_class,
                view.key.service_class,
                view.depth,
                view.tokens,
                view.bytes,
                view.oldest_age_s,
                view.running,
                _queued_limit(gateway, view.key),
                view.max_age_s,
            )
            for view in core.flow_views(parts.clock())
        ],
        engines=[
            EngineLoad(
                view.engine,
                view.usable,
                health.get(view.engine, unknown).epoch,
                view.slots,
                view.prefill_tokens,
                view.kv_tokens,
                view.slot_limit,
                view.prefill_limit,
                view.kv_limit,
                view.prefilling,
                health.get(view.engine, unknown).progress.pace,
                parts.fleet.priority(view.engine),
            )
            for view in core.engine_views()
        ],
        route_revision=gateway.setup.table.revision,
        draining=gateway.draining,
        reload_refused=gateway.reload_refused,
        drain_remaining=len(gateway.running) if gateway.draining else gateway.waited_for(),
        routes=[
            (f"{model}/{size}", route.candidate_weight)
            for (model, size), route in gateway.setup.table.routes.items()
        ],
        watches=gateway.watched(),
    )
