"""Runs the gateway: builds it from settings, listens, watches engines, drains on SIGTERM.

Two listeners on one loop: callers' and operators'. On SIGHUP the keys file is read anew. On
SIGTERM or SIGINT readiness turns 503 at once; new requests are served for ``shutdown_delay_s``
more, so that load balancers notice; then they are refused as draining while queued and running
work goes on until ``drain_deadline_s``; what is left then is ended as ``drain_terminated``. A
second signal skips the waiting.
"""

import asyncio
import contextlib
import itertools
import os
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import datetime

import uvicorn
import uvloop

from gateway.admin import build_admin
from gateway.admission import Admission
from gateway.app import Gateway, Parts
from gateway.config import ConfigError, Settings, read_keyring
from gateway.contract import RetryAfter
from gateway.counters import load_counters
from gateway.counting import CountingStage
from gateway.domain import Outcome
from gateway.edge import EdgeLimits, uvicorn_config
from gateway.engines import EngineHealth, Prober
from gateway.intake import Intake
from gateway.journal import Journal
from gateway.observe import EngineLoad, FlowLoad, Observer, Occupancy
from gateway.schema import Server
from gateway.template import ChatTemplate
from gateway.tokenizer import CountingPool
from gateway.turnstile import Turnstile
from gateway.verdicts import Offer
from gateway.wire import EngineClient

__all__ = ["build", "run"]

LAST_ANSWERS_S = 2.0
ADMIN_LIMITS = EdgeLimits(header_bytes=16 << 10, max_connections=256)
POLL_S = 0.02


def run(settings: Settings) -> int:
    """Serve until a signal; returns the exit code, 3 if the drain deadline cut answers off."""
    journal = Journal(sys.stdout.buffer)
    try:
        return uvloop.run(_serve(settings, journal))
    finally:
        journal.close()


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
    jitter = random.Random(secrets.randbits(64)).random  # spreads callers; nothing depends on it
    gateway = Gateway(
        Parts(
            settings=settings,
            table=table,
            intake=_intake(document.server),
            counting=_counting(settings, turnstile),
            turnstile=turnstile,
            clients={name: _client(settings, name) for name in settings.engines},
            prober=prober,
            observer=observer,
            journal=journal,
            advice={spec.group: RetryAfter(jitter) for spec in settings.flows},
            clock=clock,
            fresh_id=_fresh_ids(),
        )
    )
    return gateway


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
        route_revision=parts.table.revision,
        draining=gateway.draining,
    )


# -- the process ---------------------------------------------------------------------------


class _Listener(uvicorn.Server):
    """uvicorn on a socket of ours, without its signal handling: both listeners end when told."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and say so."""
        await super().startup(sockets=sockets)
        self.listening.set()

    def bind(self) -> socket.socket:
        """The listening socket; raises ``OSError`` naming the address that can't be had."""
        host, port = self.config.host, self.config.port
        try:
            return socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=self.config.backlog,
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(f"cannot listen on {host}:{port}: {reason}") from error

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: the gateway drains first."""
        yield

    def url(self) -> str:
        """Where it listens, with the port the system chose."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _serve(settings: Settings, journal: Journal) -> int:
    gateway = build(settings, journal, time.monotonic)
    document = settings.document
    server, admin = document.server, document.admin
    limits = EdgeLimits(server.header_bytes, server.header_timeout_s, server.max_connections)
    refused = gateway.observer.refused_at_edge
    callers = _Listener(uvicorn_config(gateway, server.host, server.port, limits, refused))
    operators = _Listener(
        uvicorn_config(build_admin(gateway, admin.tokens), admin.host, admin.port, ADMIN_LIMITS)
    )
    for warning in settings.warnings:
        journal.event("warning", message=warning)
    signals = _signals()
    async with _running(gateway.parts.prober.run()), _listening(operators), _listening(callers):
        journal.event(
            "ready", url=callers.url(), admin_url=operators.url(), digest=settings.digest()
        )
        while await signals.get() == signal.SIGHUP:
            _reload_keys(gateway)
        cut = await _drain(gateway, signals, journal)
    gateway.parts.turnstile.close()
    gateway.parts.counting.pool.close()
    for client in gateway.parts.clients.values():
        client.close()
    return 3 if cut else 0


def _reload_keys(gateway: Gateway) -> None:
    """Take the keys file as it is now, whole or not at all: keys are added and revoked so."""
    journal, settings = gateway.parts.journal, gateway.parts.settings
    keys_path = settings.file(settings.document.auth.keys_file)
    try:
        keyring, _ = read_keyring(keys_path, settings.document, (settings.path, "auth.keys_file"))
    except ConfigError as error:
        journal.event("reload_refused", reason=str(error))
        return
    if not keyring.entries:
        journal.event("reload_refused", reason=f"{keys_path}: holds no key")
        return
    gateway.keyring = keyring
    journal.event("keys_reloaded", keys=len(keyring.entries))


async def _drain(gateway: Gateway, signals: asyncio.Queue[int], journal: Journal) -> int:
    """Turn unready, keep serving, refuse, wait, end the rest; returns how many were ended."""
    server = gateway.parts.settings.document.server
    gateway.draining = True
    journal.event("draining", running=len(gateway.running))
    if await _waited(signals, server.shutdown_delay_s, lambda: False):
        gateway.refusing = True
        await _waited(signals, server.drain_deadline_s, lambda: not gateway.running)
    gateway.refusing = True
    cut = gateway.end_all()
    await _waited(signals, LAST_ANSWERS_S, lambda: not gateway.running)
    journal.event("drained", ended=cut)
    return cut


async def _waited(signals: asyncio.Queue[int], seconds: float, enough: Callable[[], bool]) -> bool:
    """Wait so long, or until it is enough; False if another signal came first."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while loop.time() < until_s and not enough():
        try:
            number = await asyncio.wait_for(
                signals.get(), min(POLL_S, max(0.0, until_s - loop.time()))
            )
        except TimeoutError:
            continue
        if number != signal.SIGHUP:
            return False
    return True


def _signals() -> asyncio.Queue[int]:
    received: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, received.put_nowait, number)
    return received


@asynccontextmanager
async def _running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def _listening(listener: _Listener) -> AsyncIterator[None]:
    """Inside, the listener accepts; an address that can't be had raises ``OSError``."""
    bound = listener.bind()
    serving = asyncio.get_running_loop().create_task(listener.serve(sockets=[bound]))
    await listener.listening.wait()
    try:
        yield
    finally:
        listener.should_exit = True
        listener.force_exit = True
        await serving
