"""Speaks HTTP/1.1 with one caller, on httptools; refuses what is too much, too slow or unclear.

uvicorn owns the sockets and makes these. Its own protocol sets no bound on the size of a header
block, none on the time it takes, and none on a caller that does not read its answer, and costs
several times as much.

A caller that sends no more after a whole request has not left: see ``_departed``. Times are
seconds on the loop's clock.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, MutableMapping
from typing import Any, cast
from urllib.parse import unquote

import httptools
import uvicorn

from gateway.contract import answer
from gateway.cycle import Cycle, base_scope, closing_answer, was_reset
from gateway.domain import Outcome
from gateway.eager import OneTask
from gateway.framing import MALFORMED, TOO_LARGE, EdgeLimits, head_bytes, judge

__all__ = ["ClientGone", "EdgeLimits", "EdgeProtocol", "Message"]

Message = MutableMapping[str, Any]

# How long a refused caller may go on sending before the connection is cut. Closing at once
# would reset it, and the answer could be lost on the way.
_LINGER_S = 1.0
_MAX_PIPELINED, _MAX_QUEUED_BODY_BYTES = 8, 32 * 1024
_FIRST_LOOK_S, _SLOWEST_LOOK_S = 0.0005, 1.0


class ClientGone(Exception):
    """The caller left before its request was whole."""


class EdgeProtocol(asyncio.Protocol):
    """One caller's connection. Made by uvicorn from the configuration above.

    Args:
        limits: the listener's bounds.
        on_refused: told of what is refused here; the seconds to advise, where it gives some.
        by_address: the listener's connections of each address; shared by all of them.
        config: uvicorn's, with the application.
        server_state: uvicorn's, which knows the connections and tasks that end with the server.
        uvicorn_arguments: not needed here.
    """

    def __init__(
        self,
        limits: EdgeLimits,
        on_refused: Callable[[Outcome], float | None] | None,
        by_address: Counter[str],
        config: uvicorn.Config,
        server_state: Any,
        **uvicorn_arguments: Any,
    ) -> None:
        if not config.loaded:
            config.load()
        self.loop = asyncio.get_running_loop()
        self.write_paused = False
        self._app: Any = config.loaded_app
        self._limits = limits
        self._on_refused = on_refused or (lambda outcome: None)
        self._by_address = by_address
        self._server = server_state
        self._parser = httptools.HttpRequestParser(self)
        self._address = ""
        self._base: dict[str, Any] = {}
        # The head that is being read.
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects_continue = False
        # Since when a head is awaited that has begun, or the connection's first; else None.
        self._head_since_s: float | None = None
        self._idle_since_s = 0.0
        # Bytes of the head so far, later since the last body byte: chunk framing and trailers.
        self._overhead_bytes = 0
        # The size of the read at hand, and of the one in which the head begins.
        self._read_bytes = self._begun_bytes = 0
        self._reading_body = False
        self._refusal: tuple[Outcome, str] | None = None
        self._deaf = self._half_closed = False
        # Requests whose answers are not whole, the one that is being answered first.
        self._cycles: deque[Cycle] = deque()
        self._newest: Cycle | None = None
        self._drained: asyncio.Future[None] | None = None
        self._tasks = OneTask(self.loop)
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or refuse it when there are too many."""
        self.transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)
        peer = transport.get_extra_info("peername")
        # A unix socket's callers have no address: only all of them together are bounded.
        self._address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self._by_address[self._address] += 1
        self._base = base_scope(transport)
        limits = self._limits
        over = max(
            len(self._server.connections) - limits.max_connections,
            bool(self._address)
            and self._by_address[self._address] - limits.max_connections_per_address,
        )
        if len(self._server.connections) > 2 * limits.max_connections:
            self.transport.abort()
        elif over > 0:
            self._refuse(Outcome.INGRESS_FULL, "The gateway has no room for more connections.")
        else:
            self._head_since_s = self._idle_since_s = self.loop.time()
            self._timer = self.loop.call_later(self._period_s(), self._check_time)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the requests that are under way, and forget the timers."""
        self._server.connections.discard(self)
        self._by_address[self._address] -= 1
        if not self._by_address[self._address]:
            del self._by_address[self._address]
        for timer in (self._timer, self._stall, self._look):
            if timer is not None:
                timer.cancel()
        self.resume_writing()
        self._tasks.close()
        for cycle in self._cycles:
            cycle.gone()
        # What refers back to this object: a collection would have to find it.
        self._cycles.clear()
        self._newest = None
        del self._parser

    def eof_received(self) -> bool:
        """The caller sends no more. With a whole request it may still be reading: keep open."""
        waits = bool(self._cycles) and not self._reading_body and self._head_since_s is None
        if not waits or self._base["scheme"] == "https":
            return False
        self._half_closed = True
        self._departed(_FIRST_LOOK_S)
        return True

    def data_received(self, data: bytes) -> None:
        """Parse; what is neither a whole head nor a body counts towards the head's bound."""
        if self._deaf:
            return
        self._read_bytes = len(data)
        self._overhead_bytes += self._read_bytes
        if self._head_since_s is None and not self._cycles and not self._reading_body:
            # Even a bare line end ends the idle time: a head must follow in time.
            self._head_since_s = self.loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(*(self._refusal or MALFORMED))
        if self._overhead_bytes > self._limits.header_bytes and not self._deaf:
            self._refuse(*TOO_LARGE)

    def pause_writing(self) -> None:
        """The caller is behind: from now on it must take something every ``send_timeout_s``."""
        self.write_paused = True
        self._watch_unsent(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The caller has caught up."""
        self.write_paused = False
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def shutdown(self) -> None:
        """Uvicorn ends: close when nothing is under way, else after it."""
        for cycle in self._cycles:
            cycle.keep_alive = False
        if not self._cycles:
            self.transport.close()

    # What llhttp calls.

    def on_message_begin(self) -> None:
        """A head begins."""
        self._url, self._headers, self._expects_continue = b"", [], False
        self._begun_bytes = self._read_bytes
        self._head_since_s = self.loop.time()

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which goes nowhere."""
        name = name.lower()
        if name == b"expect":
            self._expects_continue = value.lower() == b"100-continue"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Judge the head; a sound one starts the application."""
        self._head_since_s = None
        version = self._parser.get_http_version()
        # What was read holds the head and may hold more: only large reads need the count.
        bound, read_bytes = self._limits.header_bytes, self._overhead_bytes + self._begun_bytes
        if read_bytes > bound and head_bytes(self._url, self._headers) > bound:
            self._refusal = TOO_LARGE
        else:
            upgrade = self._parser.should_upgrade()
            self._refusal = judge(self._url, self._headers, version, upgrade=upgrade)
        self._overhead_bytes = 0
        if self._refusal is not None:
            raise ValueError(self._refusal[1])
        self._reading_body = True
        cycle = self._newest = Cycle(
            self,
            self._scope(version),
            keep_alive=version != "1.0" and self._parser.should_keep_alive(),
            expects_continue=self._expects_continue,
        )
        self._headers = []  # where trailers go; those of the scope have been judged
        self._cycles.append(cycle)
        if len(self._cycles) == 1:
            self._start(cycle)
        elif len(self._cycles) > _MAX_PIPELINED:
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        """Hand on a part of the body."""
        self._overhead_bytes = 0
        cycle = self._newest
        if cycle is None or cycle.complete:
            return
        full = cycle.got_body(body)
        if cycle is not self._cycles[0]:
            # Not reading on would hide that the caller has left.
            if cycle.unread_bytes > _MAX_QUEUED_BODY_BYTES:
                self.transport.abort()
        elif full:
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._reading_body = False
        self._overhead_bytes = 0
        if self._newest is not None:
            self._newest.got_all()

    # What a cycle calls.

    async def drained(self) -> None:
        """Return when the caller has taken most of what was written, or has gone."""
        while self.write_paused and not self.transport.is_closing():
            if self._drained is None:
                self._drained = self.loop.create_future()
            await asyncio.shield(self._drained)

    def resume_reading(self) -> None:
        """The body that was read has been taken."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def completed(self) -> None:
        """An answer is whole: close, or go on to the next request."""
        cycle = self._cycles.popleft()
        if not cycle.keep_alive or (self._half_closed and not self._cycles):
            self._close()
            return
        self._idle_since_s = self.loop.time()
        if not self.transport.is_closing():
            self.transport.resume_reading()
        if self._cycles:
            self._start(self._cycles[0])

    # The application.

    def _scope(self, version: str) -> Message:
        raw_path, _, query = self._url.partition(b"?")
        path = raw_path.decode("ascii")
        return {
            **self._base,
            "http_version": version,
            "method": self._parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
        }

    def _start(self, cycle: Cycle) -> None:
        cycle.task = self._tasks.start(self._run(cycle))
        self._server.tasks.add(cycle.task)

    async def _run(self, cycle: Cycle) -> None:
        try:
            await self._app(cycle.scope, cycle.receive, cycle.send)
        except ClientGone:
            return  # it is not the application's fault
        except Exception as error:
            told = {"message": "the application failed", "exception": error}
            self.loop.call_exception_handler(told)
        finally:
            self._server.tasks.discard(cycle.task)
            cycle.scope = {}  # which refers back to the cycle: a collection would have to find it
        if not cycle.complete and not self.transport.is_closing():
            self._cut(cycle)

    def _cut(self, cycle: Cycle) -> None:
        """The application left without a whole answer."""
        reply = answer(Outcome.INTERNAL_ERROR, "Internal error.")
        headers = [*reply.headers, (b"connection", b"close")]
        if not cycle.answer(reply.status, headers, reply.body):  # it has begun, or can't now
            cycle.flush()
            self.transport.close()

    # Decisions.

    def _refuse(self, outcome: Outcome, message: str) -> None:
        self._deaf = True
        self._head_since_s = None
        cycle = self._newest
        if self._reading_body and cycle is not None and cycle.task is not None:
            self._break_off(cycle, outcome, message)
            return
        wait_s = self._on_refused(outcome)
        if self._cycles:
            self.transport.abort()  # an answer is on its way: nothing may be mixed into it
        else:
            self.transport.write(closing_answer(outcome, message, wait_s))
            self._close()

    def _break_off(self, cycle: Cycle, outcome: Outcome, message: str) -> None:
        """A body breaks of which the application knows: the request is its to end and to count."""
        self._reading_body = False
        if cycle.complete:
            self._close()
        elif cycle.started:
            self.transport.abort()
        else:
            cycle.broken(outcome, message)

    def _close(self) -> None:
        """Close; a caller who may still be sending gets time to read before that."""
        if not self._deaf or self._half_closed:
            self.transport.close()
            return
        if self._timer is not None:
            self._timer.cancel()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGER_S, self.transport.abort)

    def _departed(self, again_s: float) -> None:
        """Find out whether a caller that sends no more still reads.

        Its end looks the same either way. What is written to one that has left is answered with
        a reset, which nobody reads here any more, but the socket's state shows it. Of a unix
        socket there is no such state, and the write itself fails.
        """
        if self._cycles and not self.transport.is_closing():
            if (self._address and was_reset(self.transport)) or not self._cycles[0].nudge():
                self.transport.abort()
            else:
                slower_s = min(2 * again_s, _SLOWEST_LOOK_S)
                self._look = self.loop.call_later(again_s, self._departed, slower_s)

    def _watch_unsent(self, size: int) -> None:
        self._stall = self.loop.call_later(self._limits.send_timeout_s, self._check_unsent, size)

    def _check_unsent(self, before_bytes: int) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes < before_bytes:
            self._watch_unsent(unsent_bytes)
        else:
            self.transport.abort()

    def _period_s(self) -> float:
        return min(self._limits.header_timeout_s, self._limits.keepalive_s)

    def _check_time(self) -> None:
        """One timer for the connection's life: late heads, idle times, bodies nobody wants."""
        now, limits = self.loop.time(), self._limits
        due_s = now + self._period_s()
        if self._head_since_s is not None:
            due_s = self._head_since_s + limits.header_timeout_s
        elif not self._cycles:  # after an answer nobody wants the rest of a body
            idle_s = self._idle_since_s + limits.keepalive_s
            due_s = now if self._reading_body else min(due_s, idle_s)
        if due_s > now:
            self._timer = self.loop.call_later(due_s - now, self._check_time)
            return
        if self._head_since_s is not None:
            self._on_refused(Outcome.HEADER_TIMEOUT)
        self.transport.abort()
