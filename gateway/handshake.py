"""Begins TLS with callers: so many at a time and each in time, then their protocol takes over.

Until it has said hello a connection is nobody's and costs a descriptor. The event loop's own TLS
server gives it a minute, and nobody counts. Here the oldest unfinished one makes room for a new
one. Times are seconds on the loop's clock.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from gateway.eager import Started

__all__ = ["Handshakes"]


class Handshakes:
    """The unfinished handshakes of one listener.

    Args:
        context: of TLS.
        make: makes the protocol that speaks with a caller once there is TLS.
        most: unfinished ones at a time.
        timeout_s: for each.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[..., asyncio.Protocol],
        most: int,
        timeout_s: float,
    ) -> None:
        self._context = context
        self._make = make
        self._most = most
        self._timeout_s = timeout_s
        # Those that may still succeed, the oldest first, and the tasks of all: the loop keeps
        # them only weakly.
        self._pending: dict[asyncio.Transport, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, **arguments: Any) -> asyncio.Protocol:
        """The protocol of a connection that was just accepted."""
        return _Accepted(self, arguments)

    def begin(self, transport: asyncio.Transport, arguments: dict[str, Any]) -> None:
        """Shake hands with who is at the other end of ``transport``."""
        if len(self._pending) >= self._most:
            self._cut(next(iter(self._pending)))
        self._pending[transport] = None
        loop, early = asyncio.get_running_loop(), _Early()
        # Begun at once: what the caller says first is for TLS to read.
        begun = Started(
            loop.start_tls(
                transport,
                early,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._timeout_s,
            )
        )
        task = loop.create_task(self._finish(transport, begun, early, arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cut all that are unfinished."""
        for transport in list(self._pending):
            self._cut(transport)

    def _cut(self, transport: asyncio.Transport) -> None:
        del self._pending[transport]
        transport.abort()

    async def _finish(
        self,
        plain: asyncio.Transport,
        begun: Started[asyncio.Transport | None],
        early: "_Early",
        arguments: dict[str, Any],
    ) -> None:
        made = None
        try:
            made = await begun
        except OSError:
            return  # no TLS, a certificate nobody trusts, too late, gone: theirs to know
        finally:
            self._pending.pop(plain, None)
            if made is None:
                plain.abort()
        if made is not None and not plain.is_closing():
            early.hand_over(made, self._make(**arguments))


class _Accepted(asyncio.Protocol):
    """A connection before TLS."""

    def __init__(self, handshakes: Handshakes, arguments: dict[str, Any]) -> None:
        self._handshakes = handshakes
        self._arguments = arguments

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin TLS."""
        self._handshakes.begin(cast("asyncio.Transport", transport), self._arguments)


class _Early(asyncio.Protocol):
    """Keeps what comes with the end of a handshake, before the caller's protocol is there."""

    def __init__(self) -> None:
        self._data = b""
        self._ended = self._lost = False

    def data_received(self, data: bytes) -> None:
        """Decrypted bytes: those of one read, as the loop goes on with the handshake's task."""
        self._data += data

    def eof_received(self) -> bool:
        """The caller sends no more; TLS closes then."""
        self._ended = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller is gone before it was begun with."""
        self._lost = True

    def hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Let ``protocol`` go on."""
        if self._lost or self._ended:
            transport.abort()
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._data:
            protocol.data_received(self._data)
