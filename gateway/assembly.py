"""Builds the application from its settings: the one place where parts are put together."""

import itertools
import random
import secrets
from collections.abc import Callable
from datetime import datetime

from gateway.admission import Admission
from gateway.app import Gateway
from gateway.config import Settings
from gateway.contract import RetryAfter
from gateway.counters import load_counters
from gateway.counting import CountingStage
from gateway.domain import Outcome
from gateway.engines import EngineHealth, Prober
from gateway.intake import Intake
from gateway.journal import Journal
from gateway.observe import EngineLoad, FlowLoad, Observer, Occupancy
from gateway.routing import RouteTable
from gateway.schema import Server
from gateway.setup import Parts, Setup, timeouts
from gateway.template import ChatTemplate
from gateway.tokenizer import CountingPool
from gateway.turnstile import Turnstile
from gateway.verdicts import Offer
from gateway.wire import EngineClient

__all__ = ["build", "setup_of"]


def build(settings: Settings, journal: Journal, clock: Callable[[], float]) -> Gateway:
    """The application from its settings. Call it on the loop it will run on."""
    document = settings.document
    table = settings.route_table(secrets.token_bytes(32))
    core = Admission(
        settings.flows,
        table.topology(settings.engines),
        clock(),
        quantum=document.scheduling.quantum,
        beta=document.scheduling.beta,
    )
    gateway: Gateway

    def would_refuse(offer: Offer, outcome: Outcome) -> None:
        observer.would_refuse(offer.key.size_class, offer.key.service_class, outcome)

    def changed(before: EngineHealth, after: EngineHealth) -> None:
        if before.up == after.up:
            if not after.up:
                journal.event("engine_down", engine=after.engine, reason=after.reason)
            elif before.epoch:
                journal.event("engine_restarted", engine=after.engine, epoch=after.epoch)
            return
        word = "engine_up" if after.up else "engine_down"
        journal.event(word, engine=after.engine, reason=after.reason)
        recovered = after.up and before.epoch > 0
        turnstile.tell(
            lambda core, now: core.set_engine(after.engine, now, up=after.up, ramp=recovered)
        )

    turnstile = Turnstile(core, clock, would_refuse)
    prober = Prober(
        settings.engines,
        interval_s=document.probe.interval_s,
        timeout_s=document.probe.timeout_s,
        failures=document.probe.failures,
        clock=clock,
        on_change=changed,
    )
    observer = Observer(settings, lambda: _occupancy(gateway))
    gateway = Gateway(
        Parts(
            intake=_intake(document.server),
            turnstile=turnstile,
            clients={name: _client(settings, name) for name in settings.engines},
            prober=prober,
            observer=observer,
            journal=journal,
            clock=clock,
            fresh_id=_fresh_ids(),
        ),
        setup_of(settings, table, turnstile),
    )
    return gateway


def setup_of(settings: Settings, table: RouteTable, turnstile: Turnstile) -> Setup:
    """What ``settings`` decide, ready to serve with.

    Raises:
        ConfigError: a tokenizer can't be loaded.
    """
    jitter = random.Random(secrets.randbits(64)).random  # spreads callers; nothing depends on it
    streamed, whole = timeouts(settings)
    return Setup(
        settings=settings,
        table=table,
        keyring=settings.keyring,
        counting=_counting(settings, turnstile),
        specs={spec.group: spec for spec in settings.flows},
        advice={spec.group: RetryAfter(jitter) for spec in settings.flows},
        streamed=streamed,
        whole=whole,
    )


def _counting(settings: Settings, turnstile: Turnstile) -> CountingStage:
    section = settings.document.counting
    models = settings.document.model
    templates = {}
    for name, model in models.items():
        source, special_tokens = settings.chat_template(name)
        templates[name] = ChatTemplate(
            source,
            special_tokens,
            lambda: datetime.now().astimezone(),
            content_format=model.content_format,
            allowed_kwargs=model.chat_template_kwargs,
        )
    return CountingStage(
        settings,
        CountingPool(
            section.threads, section.inline_below_bytes, section.max_requests, section.max_bytes
        ),
        load_counters(settings),
        templates,
        turnstile,
    )


def _intake(server: Server) -> Intake:
    return Intake(server.max_requests, server.max_held_bytes, server.principal_share)


def _fresh_ids() -> Callable[[], str]:
    """Request ids, unique over processes and requests without a system call for each."""
    prefix, numbers = secrets.token_hex(8), itertools.count(1)
    return lambda: f"{prefix}{next(numbers):016x}"


def _client(settings: Settings, engine: str) -> EngineClient:
    upstream = settings.document.upstream
    return EngineClient(
        engine, connect_timeout_s=upstream.connect_timeout_s, keepalive_s=upstream.keepalive_s
    )


def _occupancy(gateway: Gateway) -> Occupancy:
    parts = gateway.parts
    core, health = parts.turnstile.core, parts.prober.health
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
            )
            for view in core.flow_views(parts.clock())
        ],
        engines=[
            EngineLoad(
                view.engine,
                view.usable,
                health[view.engine].epoch,
                view.slots,
                view.prefill_tokens,
                view.kv_tokens,
                view.slot_limit,
                view.prefill_limit,
                view.kv_limit,
                view.prefilling,
            )
            for view in core.engine_views()
        ],
        route_revision=gateway.setup.table.revision,
        draining=gateway.draining,
    )
