"""Guards the listener: what of a connection reaches the application, and for how long.

uvicorn's httptools protocol sets no bound on the size of a header block, none on the time it
takes, and none on a caller that does not read its answer. This subclass adds them, caps the
connections, and refuses requests whose framing or target two readers could understand
differently. The body is the application's to read: ``read_body`` bounds its size and time.

A response's head is held back until what follows it, so that a short answer is one write; at the
latest it leaves in the same turn of the loop. Times are seconds on the loop's clock.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.contract import answer
from gateway.domain import Outcome, Refused
from gateway.lifetime import Ending

__all__ = [
    "ClientGone",
    "EdgeLimits",
    "EdgeProtocol",
    "Receive",
    "caller_ending",
    "read_body",
    "uvicorn_config",
]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

# How long a refused caller may go on sending before the connection is cut. Closing at once
# would reset it, and the answer could be lost on the way.
_LINGER_S = 1.0
_MAX_PIPELINED = 8
_MAX_LENGTH_DIGITS = 18
_MAX_QUEUED_BODY_BYTES = 32 * 1024
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class ClientGone(Exception):
    """The caller left before its request was whole."""


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds of the listener.

    ``send_timeout_s`` is how long a caller with a full write buffer may take nothing from it.
    """

    header_bytes: int = 64 * 1024
    header_timeout_s: float = 10.0
    max_connections: int = 4096
    send_timeout_s: float = 60.0
    keepalive_s: int = 30


async def read_body(
    receive: Receive,
    limit_bytes: int,
    timeout_s: float,
    on_bytes: Callable[[int], None] | None = None,
) -> bytes:
    """The request's whole body; ``on_bytes`` is told of each part's size before it is kept.

    Raises:
        Refused: ``BODY_TOO_LARGE`` or ``BODY_TIMEOUT``, or what ``on_bytes`` raises.
        ClientGone: the caller left.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_parts(receive, limit_bytes, on_bytes)
    except TimeoutError:
        raise Refused(
            Outcome.BODY_TIMEOUT, f"The request body did not arrive within {timeout_s:g} s."
        ) from None


async def _read_parts(
    receive: Receive, limit_bytes: int, on_bytes: Callable[[int], None] | None
) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise Refused(
                Outcome.BODY_TOO_LARGE, f"The request body is larger than {limit_bytes} bytes."
            )
        if on_bytes is not None:
            on_bytes(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def caller_ending(scope: MutableMapping[str, Any]) -> Ending:
    """What ends this request when its caller leaves, at once and without a task of its own."""
    ending: Ending = scope["sluicegate.ending"]
    return ending


def uvicorn_config(
    app: Callable[..., Awaitable[None]],
    host: str,
    port: int,
    limits: EdgeLimits,
    on_refused: Callable[[Outcome], None] | None = None,
) -> uvicorn.Config:
    """The server's configuration: this edge, uvloop, no proxy headers, no log of its own.

    ``on_refused`` is told of the requests and connections that the edge refuses by itself.
    """
    protocol = partial(EdgeProtocol, limits, on_refused)
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=limits.keepalive_s,
    )


class _Cork:
    """A transport that joins a response's head with what follows it in the same turn."""

    __slots__ = ("_call_soon", "_held", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._call_soon = loop.call_soon
        self._held = b""

    def write(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
            self._transport.write(data)
        elif data.startswith(b"HTTP/1.1 "):
            self._held = data
            self._call_soon(self._flush)
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        data, self._held = self._held, b""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _plain(name: bytes, value: bytes) -> bool:
    if name == b"content-length":
        return len(value) <= _MAX_LENGTH_DIGITS
    return value == b"chunked"


class EdgeProtocol(HttpToolsProtocol):
    """One caller's connection. Made by uvicorn from the configuration above."""

    def __init__(
        self,
        limits: EdgeLimits,
        on_refused: Callable[[Outcome], None] | None,
        **uvicorn_arguments: Any,
    ) -> None:
        super().__init__(**uvicorn_arguments)
        self._limits = limits
        self._on_refused = on_refused
        # Since when a head is awaited that has begun, or the connection's first; else None.
        self._head_since_s: float | None = None
        # Bytes of the head so far, later since the last body byte: chunk framing and trailers.
        self._overhead_bytes = 0
        self._reading_body = False
        self._refusal: tuple[Outcome, str] | None = None
        self._deaf = False
        self._under_way: list[RequestResponseCycle] = []
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    # What the transport calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it when there are too many."""
        super().connection_made(cast("asyncio.Transport", _Cork(transport, self.loop)))
        over = len(self.connections) - self._limits.max_connections
        if over > self._limits.max_connections:
            transport.abort()
        elif over > 0:
            self._refuse(Outcome.INGRESS_FULL, "The gateway has no room for more connections.")
        else:
            self._head_since_s = self.loop.time()
            self._timer = self.loop.call_later(self._limits.header_timeout_s, self._check_time)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the requests that are under way, and forget the timers."""
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        for cycle in self._under_way:
            # uvicorn tells only the newest of pipelined requests.
            cycle.disconnected = True
            caller_ending(cast("MutableMapping[str, Any]", cycle.scope)).set()

    def data_received(self, data: bytes) -> None:
        """Parse; what is neither a whole head nor a body counts towards the head's bound."""
        if self._deaf:
            return
        self._overhead_bytes += len(data)
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._head_since_s is None and not self._reading_body:
            # Even a bare line end stops uvicorn's keep-alive timer: a head must follow in time.
            self._head_since_s = self.loop.time()
        super().data_received(data)
        if self._overhead_bytes > self._limits.header_bytes and not self._deaf:
            self._refuse(*_TOO_LARGE)

    def pause_writing(self) -> None:
        """The caller is behind: from now on it must take something every ``send_timeout_s``."""
        super().pause_writing()
        self._watch_unsent(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The caller has caught up."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    # What llhttp calls.

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._head_since_s = self.loop.time()

    def on_headers_complete(self) -> None:
        """Judge the head; a sound one starts the application."""
        self._head_since_s = None
        self._reading_body = True
        self._refusal = self._judge()
        self._overhead_bytes = 0
        if self._refusal is not None:
            raise ValueError(self._refusal[1])
        if self.cycle is None or self.cycle.response_complete:
            self._under_way.clear()
        self.scope["sluicegate.ending"] = Ending()  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        self._under_way.append(self.cycle)
        # uvicorn stops reading while requests are queued, and would not see the caller leave.
        if len(self.pipeline) > _MAX_PIPELINED:
            self.transport.abort()
        elif self.pipeline:
            self.flow.resume_reading()
        self.headers = []  # where trailers go; those of the scope have been judged

    def on_body(self, body: bytes) -> None:
        """Hand on a part of the body."""
        self._overhead_bytes = 0
        super().on_body(body)
        if self.pipeline and len(self.cycle.body) > _MAX_QUEUED_BODY_BYTES:
            # Reading would stop here, and with it the notice that the caller has left.
            self.transport.abort()

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._reading_body = False
        self._overhead_bytes = 0
        super().on_message_complete()

    # Decisions.

    def _judge(self) -> tuple[Outcome, str] | None:
        if not self.url.startswith(b"/"):
            return Outcome.BAD_REQUEST, "The request target must begin with a slash."
        # What was read holds the head and may hold more: only a large read needs the count.
        if self._overhead_bytes > self._limits.header_bytes and self._head_is_too_large():
            return _TOO_LARGE
        hosts, framing = 0, []
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name in _FRAMING:
                framing.append((name, value.lower()))
        if len(framing) > 1 or (framing and not _plain(*framing[0])):
            return Outcome.BAD_REQUEST, "The body's framing must be one length or plain chunks."
        return self._judge_version(hosts)

    def _head_is_too_large(self) -> bool:
        fields = sum(len(name) + len(value) + 4 for name, value in self.headers)
        return len(self.url) + fields > self._limits.header_bytes

    def _judge_version(self, hosts: int) -> tuple[Outcome, str] | None:
        version = self.parser.get_http_version()
        if version not in {"1.1", "1.0"} or self.parser.should_upgrade():
            return Outcome.BAD_REQUEST, "Only HTTP/1.1 is spoken here, without upgrades."
        if hosts != 1 and version == "1.1":
            return Outcome.BAD_REQUEST, "There must be one Host header."
        return None

    def send_400_response(self, msg: str) -> None:
        """Answer a request that was not understood; called by uvicorn as well."""
        default = (Outcome.BAD_REQUEST, "The request is not well-formed HTTP/1.1.")
        self._refuse(*(self._refusal or default))

    def _refuse(self, outcome: Outcome, message: str) -> None:
        self._deaf = True
        self._head_since_s = None
        if self._on_refused is not None:
            self._on_refused(outcome)
        if self.cycle is not None and not self.cycle.response_complete:
            # Another request's answer is on its way: nothing may be mixed into it.
            self.transport.abort()
            return
        if self._timer is not None:
            self._timer.cancel()
        reply = answer(outcome, message)
        lines = [b"HTTP/1.1 %d \r\nconnection: close" % reply.status]
        own = (b"x-request-id", token_hex(16).encode())
        lines += [b"%b: %b" % header for header in (*reply.headers, own)]
        self.transport.write(b"\r\n".join([*lines, b"", reply.body]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGER_S, self.transport.abort)

    def _watch_unsent(self, unsent_bytes: int) -> None:
        timeout_s = self._limits.send_timeout_s
        self._stall = self.loop.call_later(timeout_s, self._check_unsent, unsent_bytes)

    def _check_unsent(self, before_bytes: int) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes < before_bytes:
            self._watch_unsent(unsent_bytes)
        else:
            self.transport.abort()

    def _check_time(self) -> None:
        now, timeout_s = self.loop.time(), self._limits.header_timeout_s
        since_s = self._head_since_s
        answered = self.cycle is not None and self.cycle.response_complete
        late = since_s is not None and since_s + timeout_s <= now
        if late and self._on_refused is not None:
            self._on_refused(Outcome.HEADER_TIMEOUT)
        if late or (answered and self._reading_body):
            self.transport.abort()
        else:
            left_s = timeout_s if since_s is None else since_s + timeout_s - now
            self._timer = self.loop.call_later(left_s, self._check_time)


_TOO_LARGE = (Outcome.HEADERS_TOO_LARGE, "The request's headers are too large.")
