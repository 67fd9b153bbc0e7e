"""Runs the gateway: builds it from settings, listens, watches engines, drains on SIGTERM.

Two listeners on one loop: callers' and operators'. On SIGHUP the configuration is read anew. On
SIGTERM or SIGINT readiness turns 503 at once; new requests are served for ``shutdown_delay_s``
more, so that load balancers notice; then they are refused as draining while queued and running
work goes on until ``drain_deadline_s``; what is left then is ended as ``drain_terminated``, or
as ``draining`` where it has no answer yet. A second signal skips the waiting.
"""

import asyncio
import contextlib
import gc
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import uvloop
from starlette.applications import Starlette

from gateway.admin import build_admin
from gateway.app import Gateway
from gateway.assembly import build
from gateway.canary import Canaries
from gateway.config import ConfigError, Settings
from gateway.control import Control
from gateway.descriptors import raise_limit, spare_connections
from gateway.drains import Drains
from gateway.edge import EdgeLimits, uvicorn_config
from gateway.hugepages import collapse
from gateway.journal import Journal
from gateway.listen import Listener, listening
from gateway.manifest_desk import Desk
from gateway.panel import Panel
from gateway.rehearsal_desk import Rehearsals
from gateway.review import warnings_of
from gateway.routing import RouteTable
from gateway.state import StateError
from gateway.steering import Steering
from gateway.tls import Certificates, certificates
from gateway.trail import Trail, begin, state_warnings

__all__ = ["run"]

FIRST_ROUND_S = 10.0
LAST_ANSWERS_S = 2.0
# A browser opens six; one address must not be able to keep everybody else out.
ADMIN_LIMITS = EdgeLimits(
    header_bytes=16 << 10, max_connections=256, max_connections_per_address=64
)
POLL_S = 0.02
# How long the loop waits for a thread that renders a prompt before that has to let it in; with the
# default of 5 ms every turn of the loop could be so late.
SWITCH_S = 0.001
# New objects after which the collector looks for cycles. Requests leave none; at the default of 700
# it looked in vain at those under way, every hundred requests.
GC_OBJECTS = 10_000


def run(settings: Settings) -> int:
    """Serve until a signal; returns the exit code, 3 if the drain deadline cut answers off.

    Raises:
        ConfigError: a tokenizer, a certificate or an extra that the settings need is not there, or
            two pools that must be isolated turn out to be one engine.
        OSError: an address can't be had.
    """
    journal = Journal(sys.stdout.buffer)
    try:
        return uvloop.run(_serve(settings, journal))
    finally:
        journal.close()


# -- the process ---------------------------------------------------------------------------


async def _serve(settings: Settings, journal: Journal) -> int:
    shown = certificates(settings)
    trail, table = begin(settings, _utc)
    try:
        return await _serve_routes(settings, journal, shown, trail, table)
    except StateError as error:
        raise ConfigError(settings.path, "state.directory", str(error)) from error
    finally:
        trail.state.close()


async def _serve_routes(
    settings: Settings,
    journal: Journal,
    shown: Mapping[str, Certificates],
    trail: Trail,
    table: RouteTable,
) -> int:
    gateway = build(settings, journal, time.monotonic, table)
    control = Control(gateway, shown, trail)
    callers = _callers(gateway, shown)
    steering = Steering(control)
    desk = Desk(gateway, trail)
    drains, canaries, rehearsals = _followers(steering, desk)
    await drains.resume()
    await rehearsals.resume()
    panel = Panel(control, steering.view)
    application = build_admin(control, steering, panel=panel, rehearsals=rehearsals, desk=desk)
    operators = _operators(application, settings, shown)
    for warning in (*settings.warnings, *warnings_of(settings), *state_warnings(trail)):
        journal.event("warning", message=warning)
    # What lives as long as the process need not be looked through by every full collection, which
    # would stop the loop for some 20 ms each time; and in huge pages it is found again faster.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_OBJECTS)
    if (reason := collapse()) is not None:
        journal.event("no_huge_pages", reason=reason)
    sys.setswitchinterval(SWITCH_S)
    signals = _signals()
    fleet, identity = gateway.parts.fleet, gateway.parts.identity
    async with (
        _running(fleet.run()),
        _running(identity.run()),
        _running(panel.run()),
        _running(canaries.run()),
        listening(operators),
        listening(callers),
    ):
        journal.event(
            "ready", url=callers.url(), admin_url=operators.url(), digest=settings.digest()
        )
        async with _running(_first_round(gateway, signals)):
            while (number := await signals.get()) == signal.SIGHUP:
                with contextlib.suppress(ConfigError):  # it stands in the log
                    await control.reload("SIGHUP")
        gateway.draining = True  # unready while a rehearsal goes back, too
        await rehearsals.close()
        cut = await _drain(gateway, signals, journal)
    await drains.close()
    await control.close()
    await _close(gateway)
    if not number:
        raise ConfigError(settings.path, "isolation", fleet.isolation_fault() or "")
    return 3 if cut else 0


def _callers(gateway: Gateway, shown: Mapping[str, Certificates]) -> Listener:
    server = gateway.setup.settings.document.server
    may = spare_connections(raise_limit(), ADMIN_LIMITS.max_connections)
    if may < server.max_connections:
        gateway.parts.journal.event(
            "warning",
            message=f"server.max_connections is {server.max_connections}, but this process may "
            f"open so few files that only {may} are taken (ulimit -n, LimitNOFILE)",
        )
    limits = EdgeLimits(
        server.header_bytes,
        server.header_timeout_s,
        min(may, server.max_connections),
        server.max_connections_per_address,
    )
    return Listener(
        uvicorn_config(gateway, server.host, server.port, limits, gateway.refused_at_edge),
        shown.get("server"),
        limits,
    )


def _operators(
    application: Starlette, settings: Settings, shown: Mapping[str, Certificates]
) -> Listener:
    admin = settings.document.admin
    return Listener(
        uvicorn_config(application, admin.host, admin.port, ADMIN_LIMITS),
        shown.get("admin"),
        ADMIN_LIMITS,
    )


def _followers(steering: Steering, desk: Desk) -> tuple[Drains, Canaries, Rehearsals]:
    """What takes part in every move of the routes."""
    gateway, trail = steering.control.gateway, steering.control.trail
    drains = Drains(gateway, trail)
    canaries = Canaries(gateway, trail, steering, drains, desk)
    rehearsals = Rehearsals(steering, drains, desk)
    steering.followers += [drains, canaries, rehearsals]
    return drains, canaries, rehearsals


async def _first_round(gateway: Gateway, signals: asyncio.Queue[int]) -> None:
    """Ready once every engine was asked; over at once where isolation is asked for in vain."""
    fleet = gateway.parts.fleet
    await fleet.first_round(FIRST_ROUND_S)
    if fleet.isolation_fault() is not None:
        signals.put_nowait(0)
    gateway.probed = True


async def _close(gateway: Gateway) -> None:
    parts = gateway.parts
    parts.turnstile.close()
    parts.fleet.close()
    await asyncio.to_thread(gateway.setup.counting.pool.close)
    if parts.tracer is not None:
        await asyncio.to_thread(parts.tracer.close)


async def _drain(gateway: Gateway, signals: asyncio.Queue[int], journal: Journal) -> int:
    """Turn unready, keep serving, refuse, wait, end the rest; returns how many were ended."""
    server = gateway.setup.settings.document.server
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


def _utc() -> datetime:
    return datetime.now(UTC)


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
