"""Speaks to the engines: one request per exchange, over pooled HTTP/1.1 connections.

Flow: ``EngineClient.exchange`` makes an ``Exchange`` -> ``start`` takes a pooled connection or
opens one, writes the request and waits for the head -> ``read`` gives what has arrived, ``b""``
at the end -> ``close``. A connection whose answer is whole goes back to the pool by itself; any
other closes at once with its exchange, which is how an engine learns that nobody wants the
answer. ``abort`` ends an exchange from outside in any phase.

Back-pressure: a read takes at most ``READ_BYTES`` and reading pauses while ``BUFFER_BYTES`` wait
to be consumed, so an exchange holds at most their sum, 64 KiB. Times are seconds on the loop's
clock. A pooled connection expires before the engine would close it (5 s for vLLM's server); one
that fails all the same before any byte of the response is replaced by a fresh one, once.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.http1 import (
    MAX_HEAD_BYTES,
    BadResponse,
    Connection,
    Disconnected,
    Header,
    WireError,
    request_head,
)

__all__ = [
    "BUFFER_BYTES",
    "MAX_HEAD_BYTES",
    "READ_BYTES",
    "BadResponse",
    "ConnectFailed",
    "ConnectTimedOut",
    "Disconnected",
    "EngineClient",
    "Exchange",
    "Header",
    "Origin",
    "TimedOut",
    "WireError",
]

READ_BYTES = 32 * 1024
BUFFER_BYTES = 32 * 1024


# A connection that the engine had closed before is lost within a round trip of the write; one that
# is lost later had a request on it that may have been the cause.
STALE_WITHIN_S = 0.1


class ConnectFailed(WireError):
    """No connection could be opened: nothing was sent."""


class ConnectTimedOut(ConnectFailed):
    """No connection came about in time; the address may be fine."""


class TimedOut(WireError):
    """A time limit of the exchange passed."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an engine listens: host name or address, port, and whether it speaks TLS."""

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> "Origin":
        """The origin of ``http://host:port``, ``http://[v6]:port`` or https; else ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"engine address {url!r}: must be http://host:port")
        if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"engine address {url!r}: must have no path, query or user")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls)

    @property
    def authority(self) -> bytes:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii")


class Exchange:
    """One request and its response. Not shared: one task starts, reads and closes it.

    Attributes:
        status: of the response, 0 before its head has come.
        headers: of the response, names in lower case, hop-by-hop ones left out.
        reused: the request went over a connection that had served before.
    """

    __slots__ = (
        "_aborted",
        "_buffered",
        "_client",
        "_connecting",
        "_connection",
        "_error",
        "_finished",
        "_parts",
        "_request",
        "_waiter",
        "headers",
        "loop",
        "reused",
        "status",
    )

    def __init__(self, client: "EngineClient", method: bytes, head: bytes, body: bytes) -> None:
        self._client = client
        self.loop = client.loop
        self._request = (method, head, body)
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: WireError | None = None
        self._finished = self._aborted = False
        self._parts: list[bytes] = []
        self._buffered = 0
        self.status = 0
        self.headers: list[Header] = []
        self.reused = False

    def __repr__(self) -> str:
        state = self._error or ("finished" if self._finished else "open")
        return f"<Exchange {self._request[0].decode()} {self.status} {state}>"

    async def start(self) -> None:
        """Send the request and wait for the response's head; WireError if there is none."""
        pooled = self._client.take()
        if pooled is not None and not await self._sent_on_pooled(pooled):
            try:
                await self._send(await self._connect())
            except ConnectFailed as error:
                # Something was written before: nobody may conclude that nothing was sent.
                raise Disconnected(f"sent once, and then: {error}") from error
        elif pooled is None:
            await self._send(await self._connect())
        self._raise_unless_begun()

    async def _sent_on_pooled(self, pooled: Connection) -> bool:
        """Send on a connection that has served before; False if the engine had closed it."""
        self.reused = True
        sent_s = self.loop.time()
        await self._send(pooled)
        lost = isinstance(self._error, Disconnected) and pooled.silent
        if self._aborted or not lost or self.loop.time() - sent_s > STALE_WITHIN_S:
            return True
        self._error, self.reused = None, False
        return False

    def _raise_unless_begun(self) -> None:
        # A body that broke at once is read first, up to the break.
        if not self.status:
            self._raise_if_over()

    async def _connect(self) -> Connection:
        self._raise_if_over()
        connecting = self._connecting = self._client.connect(self._wake)
        while not connecting.done():
            await self._wait()
            self._raise_if_over()
        self._connecting = None
        return connecting.result()

    async def _send(self, connection: Connection) -> None:
        self._connection = connection
        connection.begin(self, *self._request)
        while not self.status and self._error is None:
            await self._wait()

    async def read(self) -> bytes:
        """All that has arrived since the last call, ``b""`` once the response is whole.

        Raises:
            WireError: the response can not become whole; what arrived before is read first.
        """
        parts = self._parts
        while not parts:
            if self._finished:
                return b""
            self._raise_if_over()
            await self._wait()
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if self._buffered >= BUFFER_BYTES and self._connection is not None:
            self._connection.resume_reading()
        self._buffered = 0
        return data

    def abort(self, error: WireError) -> None:
        """End the exchange from outside: the pending or next call raises ``error``."""
        if not self._finished and self._error is None:
            self._error, self._aborted = error, True
            self._parts.clear()
            self.close()
            self._wake()

    def close(self) -> None:
        """Give up what is held. Without the whole response its connection closes at once."""
        if self._connecting is not None:
            self._connecting.add_done_callback(_drop_result)
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            self._connection.drop()
            self._connection = None
        if not self._finished and self._error is None:
            self._error = WireError("the exchange was closed")

    def got_head(self, status: int, headers: list[Header]) -> None:
        """Called by the connection: the response's head is whole."""
        self.status, self.headers = status, headers
        self._wake()

    def got_body(self, data: bytes) -> bool:
        """Called by the connection with body bytes; True asks it to pause reading."""
        self._parts.append(data)
        self._buffered += len(data)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return self._buffered >= BUFFER_BYTES

    def finish(self) -> None:
        """Called by the connection: the response is whole."""
        self._finished = True
        self._connection = None
        self._wake()

    def fail(self, error: WireError) -> None:
        """Called by the connection: there will be no more."""
        if self._error is None:
            self._error = error
        self._connection = None
        self._wake()

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise self._error

    async def _wait(self) -> None:
        self._waiter = self.loop.create_future()
        await self._waiter

    def _wake(self, _: object = None) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _drop_result(connecting: asyncio.Task[Connection]) -> None:
    # A connection may be made in the same turn of the loop in which it is given up.
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().drop()


class EngineClient:
    """Connections to one engine. All of it runs on one loop; ``close`` ends it.

    Args:
        origin: the engine's address, as a URL or parsed.
        connect_timeout_s: for the name, the connection and TLS together.
        keepalive_s: idle time after which a pooled connection is not used again.
        max_idle: connections kept for reuse.
        tls: context for https origins; the default one verifies.
    """

    def __init__(
        self,
        origin: Origin | str,
        *,
        connect_timeout_s: float = 2.0,
        keepalive_s: float = 4.0,
        max_idle: int = 256,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.origin = Origin.parse(origin) if isinstance(origin, str) else origin
        self.loop = asyncio.get_running_loop()
        self._host = self.origin.authority
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._max_idle = max_idle
        self._tls = (tls or ssl.create_default_context()) if self.origin.tls else None
        # The mutable state: idle connections, the longest idle first.
        self._idle: list[Connection] = []
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._idle)} idle"
        return f"<EngineClient {self._host.decode()} {state}>"

    @property
    def idle(self) -> int:
        """How many connections wait for reuse."""
        return len(self._idle)

    def exchange(
        self, method: bytes, target: bytes, headers: Sequence[Header] = (), body: bytes = b""
    ) -> Exchange:
        """A request, not yet sent. ValueError if a part of it may not go on the wire."""
        head = request_head(method, target, self._host, headers, len(body))
        return Exchange(self, method, head, body)

    def close(self) -> None:
        """Close the idle connections; those in use close when their exchange ends."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.drop()

    def take(self) -> Connection | None:
        """The connection that was idle for the shortest time, or None. Closes expired ones."""
        expired_s = self.loop.time() - self._keepalive_s
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since_s > expired_s:
                return connection
            connection.drop()
        return None

    def connect(self, done: Callable[[asyncio.Task[Connection]], None]) -> asyncio.Task[Connection]:
        """Open a connection in a task, which calls ``done`` at its end."""
        task = self.loop.create_task(self._open())
        task.add_done_callback(done)
        return task

    async def _open(self) -> Connection:
        host = self._host.decode()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self._buffer, self._give_back, self._forget),
                    self.origin.host,
                    self.origin.port,
                    ssl=self._tls,
                )
        except TimeoutError:
            raise ConnectTimedOut(f"{host}: no connection in {self._connect_timeout_s} s") from None
        except OSError as error:
            raise ConnectFailed(f"{host}: {error}") from error
        return connection

    def _give_back(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= self._max_idle:
            connection.drop()
        else:
            connection.idle_since_s = self.loop.time()
            self._idle.append(connection)

    def _forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
