"""Drives requests over HTTP/1.1 and stamps bytes when they arrive, not when a task wakes.

The measuring client is an `asyncio.Protocol`: `data_received` takes the time first and only then
lets httptools find the body. Of every read it keeps the time and how long the body then was, and
the body itself; events are cut out after the run. The request's first byte is handed to the
kernel by the call that stamps it. Connections are opened before they are needed; one that idled
is not reused beyond two seconds, well under the five after which engines close theirs. Nothing is
ever retried: an error is a result. A pool that has as many connections open as it may says so, and
the request is not sent.
"""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from loadgen.capture import Capture
from loadgen.record import BenchError

__all__ = ["Pool", "request_bytes"]

MAX_IDLE_NS = 2_000_000_000

OnDone = Callable[[Capture], None]


class _Connection(asyncio.Protocol):
    """One connection, at most one request at a time."""

    def __init__(self, pool: "Pool", sock: socket.socket) -> None:
        self._pool, self._sock = pool, sock
        self._transport: asyncio.Transport
        self._parser: Any = None
        self._on_done: OnDone | None = None
        self._keep = False
        self.capture: Capture | None = None
        self.idle_since_ns = time.monotonic_ns()

    def begin(self, capture: Capture, payload: bytes, on_done: OnDone) -> None:
        """Send a request now; `on_done` is called once, whatever happens."""
        self.capture, self._on_done = capture, on_done
        self._parser = httptools.HttpResponseParser(self)
        capture.sent_ns = time.monotonic_ns()
        try:
            sent = self._sock.send(payload)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._finish(f"send_failed_{error.errno}")
            return
        if sent < len(payload):
            self._transport.write(payload[sent:])

    def abort(self) -> None:
        """Close at once: how a caller cancels."""
        self._transport.abort()

    def _finish(self, fault: str | None) -> None:
        capture, on_done = self.capture, self._on_done
        self.capture = self._on_done = None
        if capture is None or on_done is None:
            return
        capture.end_ns = capture.reads[-1][0] if capture.reads else capture.head_ns
        capture.fault = fault
        on_done(capture)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Stamp, then parse."""
        now_ns = time.monotonic_ns()
        capture = self.capture
        if capture is None:
            self.abort()  # bytes nobody asked for: the connection is not to be trusted
            return
        if capture.head_ns is None:
            capture.head_ns = now_ns
        before = len(capture.body)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._finish("not_http")
            self.abort()
            return
        if len(capture.body) > before:
            capture.reads.append((now_ns, len(capture.body)))
        if capture.complete:
            self._completed()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what was in flight; a body without a length is complete when the server closes."""
        capture = self.capture
        if capture is not None and exc is None and self._ends_with_connection(capture):
            capture.complete = True
        done = capture is not None and capture.complete
        self._finish(None if done else "connection_lost")
        self._pool.forget(self)

    def _ends_with_connection(self, capture: Capture) -> bool:
        framed = b"content-length" in capture.headers or b"transfer-encoding" in capture.headers
        return capture.status is not None and not framed

    def _completed(self) -> None:
        self._finish(None)
        self.idle_since_ns = time.monotonic_ns()
        if self._keep:
            self._pool.give_back(self)
        else:
            self.abort()

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header under its lower-case name."""
        if self.capture is not None:
            self.capture.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Keep the status."""
        if self.capture is not None:
            self.capture.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Append to the body."""
        if self.capture is not None:
            self.capture.body += data

    def on_message_complete(self) -> None:
        """Mark the message whole; the parser forgets about keep-alive after this call."""
        if self.capture is not None:
            self.capture.complete = True
            self._keep = self._parser.should_keep_alive()


class Pool:
    """Connections to one server, some kept open ahead of need.

    Args:
        url: `http://host:port`.
        spare: how many idle connections to hold ready.
        max_open: how many connections may be open or opening, the idle ones included.
    """

    def __init__(self, url: str, spare: int = 8, max_open: int = 1 << 30) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise BenchError(f"url {url!r}: the measuring client speaks http://host:port only")
        self._address = parts.hostname, parts.port or 80
        self._spare, self._max_open = spare, max_open
        self._resolved: tuple[Any, ...] | None = None
        self._idle: deque[_Connection] = deque()  # the longest idle first
        self._busy: dict[int, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled: set[int] = set()

    def __repr__(self) -> str:
        """Summarise the pool."""
        return f"Pool({len(self._busy)} busy, {len(self._idle)} idle, {len(self._tasks)} opening)"

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if self._resolved is None:  # once: a look-up per connection would delay requests
            infos = await loop.getaddrinfo(*self._address, type=socket.SOCK_STREAM)
            self._resolved = infos[0]
        family, kind, proto, _, address = self._resolved
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
            _, connection = await loop.create_connection(lambda: _Connection(self, sock), sock=sock)
        except BaseException:
            sock.close()
            raise
        return connection

    async def fill(self) -> None:
        """Open connections until the spare ones are there.

        Raises:
            OSError: the server does not accept.
        """
        self._drop_stale()
        for _ in range(self._spare - len(self._idle)):
            if self._open_count() >= self._max_open:
                break
            self.give_back(await self._open())

    def _open_count(self) -> int:
        return len(self._idle) + len(self._busy) + len(self._tasks)

    @property
    def short(self) -> bool:
        """Whether fewer idle connections are ready than should be."""
        self._drop_stale()
        return len(self._idle) < self._spare

    @property
    def full(self) -> bool:
        """Whether a request now would need a connection more than may be open."""
        self._drop_stale()
        return not self._idle and self._open_count() >= self._max_open

    def send(self, capture: Capture, payload: bytes, on_done: OnDone) -> None:
        """Send now on an open connection, or as soon as a new one is open."""
        capture.asked_ns = time.monotonic_ns()
        self._drop_stale()
        if self._idle:
            self._start(self._idle.pop(), capture, payload, on_done)
            return
        # A strong reference is kept in the set: the loop itself holds only a weak one.
        task = asyncio.get_running_loop().create_task(self._send_new(capture, payload, on_done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_new(self, capture: Capture, payload: bytes, on_done: OnDone) -> None:
        try:
            connection = await self._open()
        except OSError as error:
            capture.fault = f"connect_failed_{error.errno}"
            on_done(capture)
            return
        if capture.seq in self._cancelled:
            connection.abort()
            on_done(capture)
            return
        self._start(connection, capture, payload, on_done)

    def _start(
        self, connection: _Connection, capture: Capture, payload: bytes, on_done: OnDone
    ) -> None:
        self._busy[capture.seq] = connection

        def done(finished: Capture) -> None:
            self._busy.pop(finished.seq, None)
            on_done(finished)

        connection.begin(capture, payload, done)

    def cancel(self, seq: int) -> None:
        """Close the connection of a request in flight; its `on_done` follows."""
        self._cancelled.add(seq)
        if (connection := self._busy.get(seq)) is not None:
            connection.abort()

    def give_back(self, connection: _Connection) -> None:
        """Take a connection whose request is over."""
        self._idle.append(connection)

    def forget(self, connection: _Connection) -> None:
        """Drop a connection that is closed."""
        if connection in self._idle:
            self._idle.remove(connection)

    def _drop_stale(self) -> None:
        oldest_ns = time.monotonic_ns() - MAX_IDLE_NS
        while self._idle and self._idle[0].idle_since_ns < oldest_ns:
            self._idle.popleft().abort()

    async def close(self) -> None:
        """Close every connection and wait until the loop has let go of them."""
        for connection in [*self._idle, *self._busy.values()]:
            connection.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)


def request_bytes(host: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Build the whole HTTP request ahead of time."""
    own = {"Host": host, "Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = [f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in {**own, **headers}.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
