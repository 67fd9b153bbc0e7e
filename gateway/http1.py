"""Drives one HTTP/1.1 connection to an engine and decides what is a response.

llhttp (through httptools) parses, and strictly: it refuses names that are no tokens and control
characters in values. A response is framed by its length, by chunks, or by the end
of the connection, and by exactly one of them; whatever else arrives is a ``BadResponse``, never
a guess. Informational responses and trailers are skipped. A connection serves one exchange at a
time (its ``Receiver``); a byte that arrives between two, or after a response's end, shows that
the framing is not what it seemed, and closes it.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol, cast

import httptools

from gateway.domain import HOP_BY_HOP, Header

__all__ = [
    "MAX_HEAD_BYTES",
    "BadResponse",
    "ConnectFailed",
    "ConnectTimedOut",
    "Connection",
    "Disconnected",
    "Header",
    "NoSocket",
    "Receiver",
    "TimedOut",
    "WireError",
    "request_head",
]

MAX_HEAD_BYTES = 64 * 1024  # as at the gateway's own edge
_JOINED_BYTES = 16 * 1024  # up to here a copy of a body costs less than a write in two parts

# RFC 9110, 5.6.2 (token) and 5.5 (field value; tab is allowed inside).
_NOT_IN_TOKEN = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_NOT_IN_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_METHOD = re.compile(rb"[A-Z]+")
_TARGET = re.compile(rb"/[\x21-\x7e]*")
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class WireError(Exception):
    """The exchange with an engine failed; the message is for the log."""


class Disconnected(WireError):
    """The connection ended before the response was whole."""


class BadResponse(WireError):
    """What arrived is not a response that can be relied on."""


class ConnectFailed(WireError):
    """No connection could be opened: nothing was sent."""


class NoSocket(ConnectFailed):
    """This process or machine can open no more connections: no fault of the engine's."""


class ConnectTimedOut(ConnectFailed):
    """No connection came about in time; the address may be fine."""


class TimedOut(WireError):
    """A time limit of the exchange passed."""


@lru_cache(maxsize=4096)
def _size_line(nbytes: int) -> bytes:
    """The size line of the one plain chunk that is ``nbytes`` long with it; empty if none is."""
    for digits in range(1, 8):
        size = nbytes - digits - 4
        line = b"%x\r\n" % max(size, 0)
        if size > 0 and len(line) == digits + 2:
            return line
    return b""


def _plain(framing: Header) -> bool:
    return framing[0] == b"content-length" or framing[1] == b"chunked"


class Receiver(Protocol):
    """Whom a connection tells about the response to one request."""

    def got_head(self, status: int, headers: list[Header]) -> None:
        """The final response's head is whole; hop-by-hop headers are left out."""

    def got_body(self, data: bytes, framed: bytes | None = None) -> bool:
        """Body bytes came. True asks the connection to pause reading.

        ``framed``: the same as one chunk with its size line, where they came as a plain one.
        """

    def finish(self) -> None:
        """The response is whole, and the connection no longer the receiver's."""

    def fail(self, error: WireError) -> None:
        """There will be no more, and the connection is lost."""


def request_head(
    method: bytes, target: bytes, host: bytes, headers: Sequence[Header], length: int
) -> bytes:
    """The bytes of a request's head; ValueError names what may not be sent.

    Hop-by-hop headers and those of the framing are dropped: they are made here.
    """
    # Heads of one kind differ in their values alone, and one search over all of those is enough.
    names, values = zip(*headers, strict=True) if headers else ((), ())
    form, dropped = _form(method, target, host, names)
    if not form or _NOT_IN_VALUE.search(b"".join(values)):
        raise ValueError(f"request headers {_unsendable(headers)!r}: not sendable")
    if dropped:
        values = tuple(value for at, value in enumerate(values) if at not in dropped)
    if length or method == b"POST":
        return b"%bcontent-length: %d\r\n\r\n" % (form % values, length)
    return b"%b\r\n" % (form % values)


@lru_cache(maxsize=256)
def _form(
    method: bytes, target: bytes, host: bytes, names: tuple[bytes, ...]
) -> tuple[bytes, frozenset[int]]:
    """A head with a place for each value, and which of the names are left out of it.

    Empty where one of the names is none.
    """
    if not _METHOD.fullmatch(method) or not _TARGET.fullmatch(target):
        raise ValueError(f"request line {method!r} {target!r}: not sendable")
    if not all(names) or _NOT_IN_TOKEN.search(b"".join(names)):
        return b"", frozenset()
    dropped = frozenset(at for at, name in enumerate(names) if name.lower() in HOP_BY_HOP)
    first = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, target, host)
    kept = (name for at, name in enumerate(names) if at not in dropped)
    lines = (name.replace(b"%", b"%%") + b": %b\r\n" for name in kept)
    return first.replace(b"%", b"%%") + b"".join(lines), dropped


def _unsendable(headers: Sequence[Header]) -> list[bytes]:
    return [
        name
        for name, value in headers
        if not name or _NOT_IN_TOKEN.search(name) or _NOT_IN_VALUE.search(value)
    ]


class Connection(asyncio.BufferedProtocol):
    """One connection, serving one receiver at a time.

    Args:
        buffer: what reads go into. It may be shared, as each read is parsed before the next.
        on_idle: called when the connection may serve again.
        on_lost: called when it is gone.

    Attributes:
        idle_since_s: for the pool's use.
        silent: nothing has arrived since the request was written.
        pauses: how often reading was paused because the receiver was behind.
    """

    def __init__(
        self,
        buffer: memoryview,
        on_idle: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
    ) -> None:
        self._buffer = buffer
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._receiver: Receiver | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._method = b""
        self._paused = False
        self.idle_since_s = 0.0
        self.pauses = 0
        self._reset()

    def _reset(self) -> None:
        # Bytes since the head began, later since the last body byte: what bounds heads, rows of
        # informational responses, chunk extensions and trailers alike.
        self._overhead_bytes = 0
        self._headers: list[Header] = []
        self._head_done = False
        self._until_close = False
        self._complete = False
        self._chunk_done = self._between_chunks = False
        self._bodies: list[bytes] = []
        self._reusable = True
        self.silent = True

    def begin(self, receiver: Receiver, method: bytes, head: bytes, body: bytes) -> None:
        """Write a request and tell ``receiver`` of its response."""
        self._receiver, self._method = receiver, method
        self._reset()
        if self._transport.is_closing():
            self._receiver = None
            receiver.fail(Disconnected("the connection closed while it was idle"))
        elif len(body) > _JOINED_BYTES:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)

    def drop(self) -> None:
        """Close at once, whatever is unsent or unread."""
        self._receiver = None
        self._transport.abort()

    def resume_reading(self) -> None:
        """Read again after ``got_body`` asked for a pause."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is there; TCP_NODELAY is its default."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next read goes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what was read."""
        if self._receiver is None:
            self.drop()
            return
        if self._between_chunks:
            # Past the parser, which stands between two chunks and will stand there after it. What
            # is not plainly one (an extension, capitals, zeros, the last one) is the parser's.
            data, line = bytes(self._buffer[:nbytes]), _size_line(nbytes)
            if line and data.startswith(line) and data.endswith(b"\r\n"):
                if self._receiver.got_body(data[len(line) : -2], data):
                    self._pause()
                return
        self._parse(nbytes)

    def _parse(self, nbytes: int) -> None:
        self.silent = False
        self._overhead_bytes += nbytes
        read = self._buffer[:nbytes]
        try:
            self._parser.feed_data(read)
        except httptools.HttpParserError as error:
            if self._bodies:
                self._hand_on()
            self._refuse(error)
        else:
            if self._bodies:
                self._hand_on()
            # A size line that is not whole yet does not end so, one that is whole was told.
            self._between_chunks = self._chunk_done and bytes(read[-2:]) == b"\r\n"
            if self._overhead_bytes > MAX_HEAD_BYTES:
                self._give_up(BadResponse("more than 64 KiB of framing without a body byte"))
        if self._complete:
            self._end()

    def _hand_on(self) -> None:
        """Give the receiver the body bytes of one read, in one piece."""
        bodies = self._bodies
        data = bodies[0] if len(bodies) == 1 else b"".join(bodies)
        bodies.clear()
        if self._receiver is not None and self._receiver.got_body(data):
            self._pause()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self.pauses += 1
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: which only some responses may end with."""
        receiver, self._receiver = self._receiver, None
        self._on_lost(self)
        if receiver is not None:
            if self._until_close and exc is None:
                receiver.finish()
            else:
                receiver.fail(Disconnected(f"the connection ended early ({exc or 'end of file'})"))
        del self._parser  # it refers back to this object

    # What llhttp calls.

    def on_message_begin(self) -> None:
        """A response begins; a second one is one too many."""
        if self._complete:
            raise BadResponse("bytes after the end of the response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is dropped."""
        if not self._head_done:
            self._headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """Judge the head and pass it on; an informational one is skipped."""
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._headers = []
            return
        kept = self._judge_head(status)
        self._head_done = True
        self._overhead_bytes = 0
        if self._receiver is not None:
            self._receiver.got_head(status, kept)
        if self._method == b"HEAD":  # llhttp would wait for the body that the head describes
            self._complete, self._reusable = True, False

    def on_body(self, data: bytes) -> None:
        """Keep body bytes until the read has been parsed."""
        self._overhead_bytes = 0
        self._bodies.append(data)

    def on_chunk_header(self) -> None:
        """A chunk's size line is whole."""
        self._chunk_done = False

    def on_chunk_complete(self) -> None:
        """A chunk is whole, with its line end."""
        self._chunk_done = True

    def on_message_complete(self) -> None:
        """Note the end of the response, unless it was an informational one."""
        if self._head_done:
            self._complete = True
            self._reusable = self._reusable and self._parser.should_keep_alive()

    # Decisions.

    def _judge_head(self, status: int) -> list[Header]:
        """The headers to pass on; BadResponse unless the framing is one of the three."""
        if not 200 <= status <= 599 or self._parser.get_http_version() not in {"1.1", "1.0"}:
            raise BadResponse(f"status {status} or protocol version not of HTTP/1.1")
        # What was read holds the head and may hold more: only a large read needs the count.
        if self._overhead_bytes > MAX_HEAD_BYTES and self._head_is_too_large():
            raise BadResponse("a head of more than 64 KiB")
        kept, framing = [], []
        for header in self._headers:
            name, value = header
            if name not in HOP_BY_HOP:
                kept.append(header)
            elif name in _FRAMING:
                framing.append((name, value.lower()))
        if len(framing) > 1 or (framing and not _plain(framing[0])):
            raise BadResponse("the framing is not one length or plain chunks")
        self._until_close = not framing and status not in {204, 304}
        return kept

    def _head_is_too_large(self) -> bool:
        return sum(len(name) + len(value) + 4 for name, value in self._headers) > MAX_HEAD_BYTES

    def _refuse(self, error: Exception) -> None:
        # A response that was whole stays good; the connection is not used again.
        self._reusable = False
        cause = error.__context__
        self._give_up(
            cause if isinstance(cause, BadResponse) else BadResponse(f"not HTTP/1.1: {error}")
        )

    def _give_up(self, error: WireError) -> None:
        receiver = self._receiver
        if receiver is not None and not self._complete:
            self.drop()
            receiver.fail(error)

    def _end(self) -> None:
        receiver, self._receiver = self._receiver, None
        # A request that was answered before it was all sent leaves its rest in the way.
        if self._reusable and not self._transport.get_write_buffer_size():
            if self._paused:
                self.resume_reading()
            self._on_idle(self)
        else:
            self.drop()
        if receiver is not None:
            receiver.finish()
