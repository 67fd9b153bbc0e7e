"""Listens on one address with uvicorn: TCP, IPv6 or a unix socket, with TLS where there is some.

The socket is bound here, so that an address that can't be had is named; signals are left to the
process, because both listeners end when told.
"""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import uvicorn

from gateway.framing import EdgeLimits
from gateway.handshake import Handshakes
from gateway.origin import UNIX
from gateway.tls import Certificates

__all__ = ["Listener", "listening"]


class Listener(uvicorn.Server):
    """uvicorn on a socket of ours, without its signal handling.

    Args:
        config: of the application; ``host`` may be ``unix:PATH``.
        certificates: None for plain text.
        limits: bound the handshakes that are under way.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        certificates: Certificates | None = None,
        limits: EdgeLimits | None = None,
    ) -> None:
        super().__init__(config)
        self.certificates = certificates
        self.listening = asyncio.Event()
        self.ending = asyncio.Event()
        self.bound: socket.socket | None = None
        if certificates is not None:
            limits = limits or EdgeLimits()
            # uvicorn listens for plain text; TLS is begun on what it accepts.
            speak = cast("Callable[..., asyncio.Protocol]", config.http)
            begun = Handshakes(
                certificates.context, speak, limits.max_connections, limits.header_timeout_s
            )
            config.http = cast("type[asyncio.Protocol]", begun)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and say so."""
        await super().startup(sockets=sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Wait to be told; uvicorn's own looks ten times a second, for a date that is not sent."""
        await self.ending.wait()

    def bind(self) -> socket.socket:
        """The listening socket; raises ``OSError`` naming the address that can't be had."""
        host, port = self.config.host, self.config.port
        try:
            self.bound = self._bind(host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            address = host if host.startswith(UNIX) else f"{host}:{port}"
            raise OSError(f"cannot listen on {address}: {reason}") from error
        return self.bound

    def _bind(self, host: str, port: int) -> socket.socket:
        if host.startswith(UNIX):
            return _unix_socket(Path(host.removeprefix(UNIX)))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=self.config.backlog)

    def tidy(self) -> None:
        """Take a unix socket's name away."""
        if self.config.host.startswith(UNIX):
            Path(self.config.host.removeprefix(UNIX)).unlink(missing_ok=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: the gateway drains first."""
        yield

    def url(self) -> str:
        """Where it listens, with the port the system chose."""
        if self.config.host.startswith(UNIX) or self.bound is None:
            return self.config.host
        scheme = "https" if self.certificates else "http"
        host, port = self.bound.getsockname()[:2]
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _unix_socket(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
            path.unlink()  # left behind by a process that was killed
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True


@asynccontextmanager
async def listening(listener: Listener) -> AsyncIterator[None]:
    """Inside, the listener accepts; an address that can't be had raises ``OSError``."""
    bound = listener.bind()
    serving = asyncio.get_running_loop().create_task(listener.serve(sockets=[bound]))
    await listener.listening.wait()
    try:
        yield
    finally:
        listener.force_exit = True
        listener.ending.set()
        await serving
        listener.tidy()
