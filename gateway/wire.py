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
import errno
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.alarms import Alarms
from gateway.http1 import (
    MAX_HEAD_BYTES,
    BadResponse,
    ConnectFailed,
    Connection,
    ConnectTimedOut,
    Disconnected,
    Header,
    NoSocket,
    TimedOut,
    WireError,
    request_head,
)
from gateway.origin import Origin

__all__ = [
    "BUFFER_BYTES",
    "MAX_HEAD_BYTES",
    "OUR_ERRNOS",
    "READ_BYTES",
    "BadResponse",
    "ConnectFailed",
    "ConnectTimedOut",
    "Disconnected",
    "EngineClient",
    "Exchange",
    "Header",
    "NoSocket",
    "Origin",
    "TimedOut",
    "WireError",
]

Sink = Callable[[bytes, bytes | None], bool]

READ_BYTES = 32 * 1024
BUFFER_BYTES = 32 * 1024
# One that the engine had closed is lost within a round trip; later, its request may be the cause.
STALE_WITHIN_S = 0.1
# Out of files, buffers or ports: ours, not the engine's.
OUR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL})


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
        "_sink",
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
        self._sink: Sink | None = None
        self._parts: list[bytes] = []
        self._buffered = 0
        self.status, self.reused = 0, False
        self.headers: list[Header] = []

    def __repr__(self) -> str:
        state = self._error or ("finished" if self._finished else "open")
        return f"<Exchange {self._request[0].decode()} {self.status} {state}>"

    async def start(self) -> None:
        """Send the request and wait for the response's head; WireError if there is none."""
        self._raise_if_over()
        pooled = self._client.take()
        if pooled is None:
            await self._send(await self._connect())
        else:
            self.reused, sent_s = True, self.loop.time()
            self._connection = pooled
            pooled.begin(self, *self._request)
            while not self.status and self._error is None:
                await self._wait()
            if not self.status and self._was_stale(pooled, sent_s):
                await self._send_again()
        # A body that broke at once is read first, up to the break.
        if not self.status:
            self._raise_if_over()

    def _was_stale(self, pooled: Connection, sent_s: float) -> bool:
        """Whether the engine had closed a pooled connection before the request came."""
        lost = isinstance(self._error, Disconnected) and pooled.silent
        return not self._aborted and lost and self.loop.time() - sent_s <= STALE_WITHIN_S

    async def _send_again(self) -> None:
        self._error, self.reused = None, False
        try:
            await self._send(await self._connect())
        except ConnectFailed as error:
            # Something was written before: nobody may conclude that nothing was sent.
            raise Disconnected(f"sent once, and then: {error}") from error

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

    def whole(self) -> bytes | None:
        """All of the response that was not read yet, if it is whole; else ``None``."""
        if not self._finished:
            return None
        data, self._buffered = b"".join(self._parts), 0
        self._parts.clear()
        return data

    async def flow(self, sink: Sink) -> bool:
        """Hand on what arrives as it arrives, in the read itself, until ``sink`` says False.

        A part that came as one plain chunk is handed on with its framing beside it, else ``None``.

        Returns whether the response may go on: True after ``sink`` said False (what arrives until
        the next call is kept, within the bounds), False once the response is whole.

        Raises:
            WireError: the response can not become whole; what arrived before is handed on first.
        """
        if self._parts and not sink(await self.read(), None):
            return True
        self._sink = sink
        try:
            while not self._finished:
                self._raise_if_over()
                await self._wait()
                if not self._flowing():
                    return True
        finally:
            self._sink = None
        return False

    def _flowing(self) -> bool:
        return self._sink is not None

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
        if self._waiter is not None:
            self._wake()

    def got_body(self, data: bytes, framed: bytes | None = None) -> bool:
        """Called by the connection with body bytes; True asks it to pause reading."""
        sink = self._sink
        if sink is not None:
            if not sink(data, framed):
                self._sink = None
                self._wake()
            return False
        self._parts.append(data)
        self._buffered += len(data)
        if self._waiter is not None:
            self._wake()
        return self._buffered >= BUFFER_BYTES

    def finish(self) -> None:
        """Called by the connection: the response is whole."""
        self._finished, self._connection = True, None
        if self._waiter is not None:
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

    def _wait(self) -> asyncio.Future[None]:
        waiter = self._waiter = self.loop.create_future()
        return waiter

    def _wake(self, _: object = None) -> None:
        waiter, self._waiter = self._waiter, None
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
        service: the host name that requests name and certificates must have, where the origin's
            host was looked up from it.
    """

    def __init__(
        self,
        origin: Origin | str,
        *,
        connect_timeout_s: float = 2.0,
        keepalive_s: float = 4.0,
        max_idle: int = 256,
        tls: ssl.SSLContext | None = None,
        service: str | None = None,
    ) -> None:
        self.origin = Origin.parse(origin) if isinstance(origin, str) else origin
        self.loop = asyncio.get_running_loop()
        self.alarms = Alarms(self.loop)  # for time limits of exchanges
        self._service = service
        self._host = replace(self.origin, host=service or self.origin.host).authority
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._connect_timeout_s, self._keepalive_s = connect_timeout_s, keepalive_s
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
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close the idle connections: the engine behind them is another one now."""
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
                _, connection = await self._dial(
                    lambda: Connection(self._buffer, self._give_back, self._forget)
                )
        except TimeoutError:
            raise ConnectTimedOut(f"{host}: no connection in {self._connect_timeout_s} s") from None
        except OSError as error:
            kind = NoSocket if error.errno in OUR_ERRNOS else ConnectFailed
            raise kind(f"{host}: {error}") from error
        return connection

    async def _dial(
        self, protocol: Callable[[], Connection]
    ) -> tuple[asyncio.BaseTransport, Connection]:
        origin, loop = self.origin, self.loop
        if origin.path is not None:
            return await loop.create_unix_connection(protocol, origin.path)
        return await loop.create_connection(
            protocol,
            origin.host,
            origin.port,
            ssl=self._tls,
            server_hostname=self._service if origin.tls else None,
        )

    def _give_back(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= self._max_idle:
            connection.drop()
        else:
            connection.idle_since_s = self.loop.time()
            self._idle.append(connection)

    def _forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
