"""Runs the gateway: builds it from settings, listens, watches engines, drains on SIGTERM.

Two listeners on one loop: callers' and operators'. On SIGHUP the keys file is read anew. On
SIGTERM or SIGINT readiness turns 503 at once; new requests are served for ``shutdown_delay_s``
more, so that load balancers notice; then they are refused as draining while queued and running
work goes on until ``drain_deadline_s``; what is left then is ended as ``drain_terminated``. A
second signal skips the waiting.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import uvicorn
import uvloop

from gateway.admin import build_admin
from gateway.app import Gateway
from gateway.assembly import build
from gateway.config import ConfigError, Settings, read_keyring
from gateway.edge import EdgeLimits, uvicorn_config
from gateway.journal import Journal

__all__ = ["run"]

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
    refused = gateway.parts.observer.refused_at_edge
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
    gateway.setup.counting.pool.close()
    for client in gateway.parts.clients.values():
        client.close()
    return 3 if cut else 0


def _reload_keys(gateway: Gateway) -> None:
    """Take the keys file as it is now, whole or not at all: keys are added and revoked so."""
    journal, settings = gateway.parts.journal, gateway.setup.settings
    keys_path = settings.file(settings.document.auth.keys_file)
    try:
        keyring, _ = read_keyring(keys_path, settings.document, (settings.path, "auth.keys_file"))
    except ConfigError as error:
        journal.event("reload_refused", reason=str(error))
        return
    if not keyring.entries:
        journal.event("reload_refused", reason=f"{keys_path}: holds no key")
        return
    gateway.setup = replace(gateway.setup, keyring=keyring)
    journal.event("keys_reloaded", keys=len(keyring.entries))


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
