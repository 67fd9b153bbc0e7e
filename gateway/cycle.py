"""One request and its answer on a caller's connection, as an ASGI application sees them.

The head of an answer is held back until what follows it, so that a short answer is one write; at
the latest it leaves in the same turn of the loop. A body without a declared length is chunked,
and for an HTTP/1.0 caller ends with the connection.
"""

import asyncio
import re
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from secrets import token_hex
from typing import Any, NamedTuple, Protocol

from gateway.contract import answer
from gateway.domain import Outcome
from gateway.lifetime import Ending

__all__ = ["Connection", "Cycle", "base_scope", "closing_answer", "was_reset"]

MAX_UNREAD_BYTES = 64 * 1024

_BODY = "http.response.body"
_START = "http.response.start"
_DISCONNECT = {"type": "http.disconnect"}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# How many zeros may stand before a chunk's size; parsers allow sixteen digits.
_MAX_NUDGES = 8
_TCP_CLOSED = 7  # Linux: include/net/tcp_states.h
# RFC 9110, 5.6.2 (token) and 5.5 (field value; tab is allowed inside).
_NOT_IN_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_NOT_IN_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_KNOWN = {status.value: status.phrase for status in HTTPStatus}
_NO_BODY = frozenset({204, 304})
_UNSENDABLE = "the answer has a header that may not be sent"
_STATUS_LINES = [b"HTTP/1.1 %d %b\r\n" % (n, _KNOWN.get(n, "").encode()) for n in range(600)]


class Connection(Protocol):
    """What a cycle needs of the connection it is on."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    write_paused: bool

    async def drained(self) -> None:
        """Return when the caller has taken most of what was written, or has gone."""

    def resume_reading(self) -> None:
        """The body that was read has been taken."""

    def completed(self) -> None:
        """The answer is whole."""


class Cycle:
    """One request and its answer.

    Attributes:
        scope: of the request, with its ``Ending`` under ``sluicegate.ending``, and the methods
            ``pass_on``, ``answer`` and ``take`` under their names after ``sluicegate.``.
        ending: set when the caller leaves.
        keep_alive: the connection may serve another request after the answer.
        started: the answer has begun.
        task: what runs the application.
        complete: the answer is whole.
        unread_bytes: of the body, not yet taken by the application.
    """

    __slots__ = (
        "_broken",
        "_chunked",
        "_connection",
        "_expects_continue",
        "_head",
        "_http10",
        "_is_head",
        "_left_bytes",
        "_nudges",
        "_parts",
        "_taken",
        "_waiter",
        "_whole",
        "complete",
        "ending",
        "keep_alive",
        "scope",
        "started",
        "task",
        "unread_bytes",
    )

    def __init__(
        self,
        connection: Connection,
        scope: MutableMapping[str, Any],
        *,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self._connection = connection
        self.task: asyncio.Task[None] | None = None
        self.scope = scope
        self.ending = scope["sluicegate.ending"] = Ending()
        scope["sluicegate.pass_on"], scope["sluicegate.answer"] = self.pass_on, self.answer
        scope["sluicegate.take"] = self.take
        self.keep_alive = keep_alive
        self._expects_continue = expects_continue
        self._http10 = scope["http_version"] == "1.0"
        self._is_head = scope["method"] == "HEAD"
        self._parts: list[bytes] = []
        self.unread_bytes = 0
        self._whole = self._taken = False
        self._broken: MutableMapping[str, Any] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        self.started = self.complete = False
        self._chunked = False
        # Of a declared length, what is still to be sent; None: the body ends otherwise.
        self._left_bytes: int | None = None
        self._nudges = 0

    # The request's body, from the connection to the application.

    def got_body(self, data: bytes) -> bool:
        """Keep a part of the body; True when more should not be read for now."""
        self._parts.append(data)
        self.unread_bytes += len(data)
        if self._waiter is not None:
            self._wake()
        return self.unread_bytes > MAX_UNREAD_BYTES

    def got_all(self) -> None:
        """The request is whole."""
        self._whole = True
        if self._waiter is not None:
            self._wake()

    def broken(self, outcome: Outcome, message: str) -> None:
        """The rest of the body can't be read: the disconnect tells its reader why."""
        self.keep_alive = False
        self._parts.clear()
        self._broken = {**_DISCONNECT, "sluicegate.refused": (outcome, message)}
        self._wake()

    def gone(self) -> None:
        """The caller has left."""
        self.ending.set()
        self._wake()
        if self.task is None:  # it never began: nobody else lets go of what refers back to it
            self.scope = {}

    @property
    def whole(self) -> bool:
        """Whether the request's body has come to its end."""
        return self._whole

    async def receive(self) -> MutableMapping[str, Any]:
        """ASGI: what has come of the body, then the disconnect."""
        if self._expects_continue and not self.started and not self._whole:
            self._expects_continue = False
            self._connection.transport.write(_CONTINUE)
        while not self._parts and (self._taken or not self._whole):
            if self._broken is not None:
                return self._broken
            if self.complete or self._connection.transport.is_closing():
                return _DISCONNECT
            self._waiter = self._connection.loop.create_future()
            await self._waiter
        if self.complete or self._connection.transport.is_closing():
            return _DISCONNECT
        return {"type": "http.request", "body": self._take(), "more_body": not self._whole}

    def take(self) -> bytes | None:
        """All of the body, where it has come; None where ``receive`` must give it."""
        whole = self._whole and not (self._taken or self.complete)
        return self._take() if whole and not self._connection.transport.is_closing() else None

    def _take(self) -> bytes:
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self.unread_bytes > MAX_UNREAD_BYTES:
            self._connection.resume_reading()
        self.unread_bytes = 0
        self._taken = self._whole
        return body

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # The answer, from the application to the connection.

    async def send(self, message: Mapping[str, Any]) -> None:
        """ASGI: the head, then parts of the body; waits while the caller is behind.

        Raises:
            RuntimeError: what the application sends is not an answer.
        """
        connection = self._connection
        if connection.write_paused:
            await connection.drained()
        if connection.transport.is_closing():
            return
        kind = message["type"]
        if kind == _BODY and self.started and not self.complete:
            body, last = message.get("body", b""), not message.get("more_body", False)
            data = self._frame(body, last)
            if self._head:
                data, self._head = self._head + data, b""
            if data:
                connection.transport.write(data)
            if last:
                self._finish()
        elif kind == _START and not self.started:
            self.started = True
            self._head = self._make_head(message["status"], message.get("headers", ()))
            connection.loop.call_soon(self.flush)
        else:
            raise RuntimeError(f"unexpected ASGI message {kind!r}")

    def answer(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a whole answer in one step; False, and nothing done, where ``send`` must."""
        connection = self._connection
        if self.started or connection.write_paused or connection.transport.is_closing():
            return False
        self.started = True
        head = self._make_head(status, headers)
        connection.transport.write(head + self._frame(body, last=True))
        self._finish()
        return True

    def pass_on(self, chunk: bytes) -> bool:
        """Write a part of the body that is one plain chunk already; False where ``send`` must."""
        connection = self._connection
        if connection.write_paused or self._head or not self._chunked or self.complete:
            return False
        if connection.transport.is_closing():
            return False
        self._nudges = 0
        connection.transport.write(chunk)
        return True

    def flush(self) -> None:
        """Let a head go that nothing has followed."""
        head, self._head = self._head, b""
        if head and not self._connection.transport.is_closing():
            self._connection.transport.write(head)

    def nudge(self) -> bool:
        """Write something without meaning, to learn whether anybody is there.

        False where that is impossible. An interim response may come before any head, and zeros
        before a chunk's size; neither changes what the caller reads.
        """
        if not self.started:
            if not self._http10:
                self._connection.transport.write(_CONTINUE)
            return not self._http10
        if self._chunked and self._nudges < _MAX_NUDGES:
            self._nudges += 1
            self._connection.transport.write(b"0")
        return self._chunked

    def _make_head(self, status: int, headers: Any) -> bytes:
        names, values = zip(*headers, strict=True) if headers else ((), ())
        form = _form(status, names)
        if _NOT_IN_VALUE.search(b"".join(values)):
            raise RuntimeError(_UNSENDABLE)
        if form.length_at is not None:
            self._left_bytes = int(values[form.length_at])
        if form.connection_at is not None and values[form.connection_at].lower() == b"close":
            self.keep_alive = False
        if status in _NO_BODY or self._is_head:
            self._left_bytes = 0
        elif self._left_bytes is None:
            return self._unbounded(form, values)
        if self.keep_alive:
            return b"%b\r\n" % (form.text % values)
        return self._ended(form, values, b"")

    def _unbounded(self, form: "_Form", values: tuple[bytes, ...]) -> bytes:
        """The head of a body that ends by itself: with its last chunk, or with the connection."""
        if self._http10:
            self.keep_alive = False
            return self._ended(form, values, b"")
        self._chunked = True
        return self._ended(form, values, b"transfer-encoding: chunked\r\n")

    def _ended(self, form: "_Form", values: tuple[bytes, ...], framing: bytes) -> bytes:
        if not self.keep_alive and form.connection_at is None:
            framing += b"connection: close\r\n"
        return b"%b%b\r\n" % (form.text % values, framing)

    def _frame(self, body: bytes, last: bool) -> bytes:
        if self._chunked:
            self._nudges = 0
            end = b"0\r\n\r\n" if last else b""
            return b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        if self._is_head:
            return b""
        if self._left_bytes is not None:
            self._left_bytes -= len(body)
            if self._left_bytes < 0 or (last and self._left_bytes):
                raise RuntimeError("the answer is not as long as it says")
        return body

    def _finish(self) -> None:
        self.complete = True
        if self._waiter is not None:
            self._wake()
        self._connection.completed()


class _Form(NamedTuple):
    """A head with a place for each header's value, and where in it two of them stand."""

    text: bytes
    length_at: int | None
    connection_at: int | None


@lru_cache(maxsize=256)
def _form(status: int, names: tuple[bytes, ...]) -> _Form:
    """Made once: answers have the same few rows of names again and again."""
    if _NOT_IN_NAME.search(b"".join(names)):
        raise RuntimeError(_UNSENDABLE)
    lines = (b"%b: %%b\r\n" % name.replace(b"%", b"%%") for name in names)
    places = {name: at for at, name in enumerate(names)}
    text = _STATUS_LINES[status] + b"".join(lines)
    return _Form(text, places.get(b"content-length"), places.get(b"connection"))


def closing_answer(outcome: Outcome, message: str, retry_after_s: float | None) -> bytes:
    """A whole refusal on a connection that serves nothing else, of what is no request yet."""
    reply = answer(outcome, message, retry_after_s=retry_after_s)
    own = ((b"connection", b"close"), (b"x-request-id", token_hex(16).encode()))
    lines = b"".join(b"%b: %b\r\n" % header for header in (*own, *reply.headers))
    return b"HTTP/1.1 %d \r\n%b\r\n%b" % (reply.status, lines, reply.body)


def was_reset(transport: asyncio.BaseTransport) -> bool:
    """Whether the other end of a TCP connection has reset it; nobody need be reading."""
    sock = transport.get_extra_info("socket")
    state: int = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state == _TCP_CLOSED


def base_scope(transport: asyncio.BaseTransport) -> dict[str, Any]:
    """What all requests of a connection share in ASGI's terms, names of both ends included."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
        "client": peer[:2] if isinstance(peer, tuple) else None,
        "server": own[:2] if isinstance(own, tuple) else None,
        "root_path": "",
        "state": {},
    }
