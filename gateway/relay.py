"""Relays one admitted request to its engine and the answer back, and says how that ended.

A stream is committed to the caller only when its first data event has come: an engine that lost
a race answers 200 and then an error event, and that must become a proper status. From then on
bytes pass unchanged as they come, but only up to the end of an event: what ends the stream early
never ends it inside one, so that the error event which then follows can be read. A non-streamed
answer is held until it is whole, up to ``MAX_HELD_BYTES``.

Three things end a request from outside: the caller's leaving and a drain (``Ending``), and the
time limits. Each closes the connection to the engine at once, in every phase; that is the only
way an engine learns of it. The idle limit counts data events, not bytes, because a dead engine
may go on sending comments; time in which the caller does not read does not count.

When the caller is slow, ``send`` waits, nothing is read, and the engine's connection pauses. While
it is not, parts of a stream pass from the engine's read to the caller's write without a task.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.contract import MAX_RETRY_AFTER_S, error_event
from gateway.domain import Outcome, Surface
from gateway.eager import Started
from gateway.lifetime import Ending, Timeline, Timeouts, Watch
from gateway.sse import END_RULES, MAX_EVENT_BYTES, StreamScanner, scan_answer
from gateway.trim import before_mark, without_usage
from gateway.wire import (
    BadResponse,
    ConnectFailed,
    ConnectTimedOut,
    EngineClient,
    Exchange,
    Header,
    NoSocket,
    TimedOut,
    WireError,
)

__all__ = [
    "MAX_HELD_BYTES",
    "STREAM_HEADERS",
    "Ending",
    "Relayed",
    "Send",
    "Timeline",
    "Timeouts",
    "UpstreamCall",
    "relay",
]

MAX_HELD_BYTES = 8 << 20

Send = Callable[[Mapping[str, Any]], Coroutine[Any, Any, None]]

STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_COMPLETED = Outcome.COMPLETED
_BAD_REASONS = frozenset({"abort", "error"})
_INTERRUPTED = "The engine ended this stream before it was complete."
_DRAINED = "What served this stream was drained, and the drain reached its deadline."


class UpstreamCall(NamedTuple):
    """What to send to the engine, and what its answer gets besides its own bytes.

    ``answer_headers`` are added to the head of the answer; hop-by-hop ones have no place there.
    ``pass_on`` writes a chunk of a stream as it came, and ``answer`` all of an answer that is no
    stream; they return False where ``send`` must.
    ``pass_headers``: of the engine's head, what the answer gets too. ``hide_usage``: the caller
    did not ask for the usage event that the engine will send.
    """

    target: bytes
    headers: Sequence[Header]
    body: bytes
    stream: bool
    surface: Surface
    answer_headers: Sequence[Header] = ()
    method: bytes = b"POST"
    hide_usage: bool = False
    pass_headers: Collection[bytes] = ()
    pass_on: Callable[[bytes], bool] | None = None
    answer: Callable[[int, Sequence[Header], bytes], bool] | None = None


class Relayed(NamedTuple):
    """How a relayed request ended.

    ``committed``: the caller has a head, and nothing else may be sent. Else the answer is still
    to be made, from ``outcome`` and, for an engine's own error, ``status`` and ``body``.
    ``began``: the head of the engine's answer had come. ``detail`` is a word for the log;
    ``connect_failed`` and ``connect_timeout`` mean that nothing was sent.
    """

    outcome: Outcome
    committed: bool
    status: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    body: bytes | None = None
    retry_after_s: float | None = None
    detail: str = ""
    began: bool = False


async def relay(
    client: EngineClient,
    call: UpstreamCall,
    send: Send,
    gone: Ending,
    marks: Timeline,
    timeouts: Timeouts,
) -> Relayed:
    """Send ``call`` to the engine and pass its answer to ``send``.

    Returns how it ended, whatever the engine does; ValueError if ``call`` may not be sent.
    """
    exchange = client.exchange(call.method, call.target, call.headers, call.body)
    watch = Watch(exchange, gone, marks, timeouts, client.alarms)
    run = _Run(exchange, call, send, marks, watch)
    try:
        return await run.answer()
    except WireError as error:
        return await run.fail(error, gone.outcome)
    finally:
        watch.close()
        exchange.close()
        marks.ended_s = marks.clock()


class _Unfinished(WireError):
    """The stream ended in good order, but not as a success; the message is a word."""


class _Run:
    """One answer on its way: ``answer`` passes it on, ``fail`` ends it when it broke."""

    __slots__ = (
        "_broken",
        "_call",
        "_committed",
        "_exchange",
        "_head",
        "_held",
        "_marks",
        "_scanner",
        "_send",
        "_sending",
        "_watch",
    )

    def __init__(
        self, exchange: Exchange, call: UpstreamCall, send: Send, marks: Timeline, watch: Watch
    ) -> None:
        self._exchange, self._call, self._send = exchange, call, send
        self._marks, self._watch = marks, watch
        self._committed = self._broken = False
        self._head: dict[bytes, bytes] = {}
        self._scanner: StreamScanner | None = None
        # Of a stream: the beginning of an event that is not whole, and a send that has to wait.
        self._held = b""
        self._sending: Started[None] | None = None

    async def answer(self) -> Relayed:
        """Pass the answer on; WireError when it breaks."""
        await self._exchange.start()
        self._head = head = dict(self._exchange.headers)
        if head.get(b"content-encoding", b"identity") != b"identity":
            raise BadResponse("a content-encoding that was not asked for")
        rule = END_RULES.get(self._call.surface) if self._call.stream else None
        if rule is None or self._exchange.status != 200:
            return await self._whole()
        kind = head.get(b"content-type", b"").lower()
        if b"text/event-stream" in kind:
            self._scanner = StreamScanner(rule)
            return await self._stream(self._scanner)
        if b"json" in kind:  # some engines answer so where they find nothing to stream
            return await self._whole()
        raise BadResponse("no stream where one was asked for")

    async def _stream(self, scanner: StreamScanner) -> Relayed:
        data = b""
        while not scanner.events and len(data) <= MAX_EVENT_BYTES:
            more = await self._exchange.read()
            if not more:
                raise _Unfinished("no_event")
            scanner.feed(more)
            data += more
        if scanner.error_event == 1:
            return self._error_first(scanner)
        if scanner.finish_reason in _BAD_REASONS:
            return self._unsent(Outcome.ENGINE_REJECTED, 503, f"finish_{scanner.finish_reason}")
        if scanner.done and scanner.events == 1:
            raise _Unfinished("no_event")
        await self._commit(STREAM_HEADERS)
        taken = self._pass(scanner, data)
        while not taken or await self._exchange.flow(self._take):
            await self._settle(scanner)
            taken = True
        if not scanner.complete:
            raise _Unfinished(_shortfall(scanner))
        return await self._complete(self._held)

    def _take(self, data: bytes, framed: bytes | None) -> bool:
        """A part of the stream has come, in the middle of the engine connection's read."""
        scanner, pass_on = self._scanner, self._call.pass_on
        if scanner is None:
            raise TypeError("only a stream flows")
        if framed is None or pass_on is None or self._held or not scanner.ordinary(data):
            scanner.feed(data)
        elif pass_on(framed):
            self._watch.quiet_from_s = self._marks.saw(scanner.events)
            return True
        return self._pass(scanner, data)

    def _pass(self, scanner: StreamScanner, data: bytes) -> bool:
        """Send on what is whole of events now, and hold the rest; False calls for ``_settle``."""
        if self._held:
            data, self._held = self._held + data, b""
        if scanner.open_bytes:
            whole = len(data) - scanner.open_bytes
            data, self._held = data[:whole], data[whole:]
        if scanner.events != self._marks.events:
            self._watch.heard(self._marks.saw(scanner.events))
        if scanner.done and not scanner.complete and scanner.error is None:
            # A client takes the mark for a good end: it must not see it before the error event.
            data, self._broken = before_mark(data, self._call.surface), True
        if self._call.hide_usage and b'"usage"' in data:
            data = without_usage(data)
        if data:
            message = {"type": "http.response.body", "body": data, "more_body": True}
            sending = Started(self._send(message))
            if not sending.done:
                self._sending = sending
                return False
        return not self._broken

    async def _settle(self, scanner: StreamScanner) -> None:
        """Wait for a caller that is behind; end a stream that can't become complete."""
        sending, self._sending = self._sending, None
        if sending is not None:
            events, self._watch.delivering = self._marks.events, True
            await sending
            self._watch.delivering = False
            if events == scanner.events:
                self._watch.heard(self._marks.clock())
        if self._broken:
            raise _Unfinished(_shortfall(scanner))

    async def _deliver(self, data: bytes) -> None:
        self._watch.delivering = True
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._watch.delivering = False

    async def _complete(self, held: bytes) -> Relayed:
        await self._send({"type": "http.response.body", "body": held, "more_body": False})
        return self._ended(Outcome.COMPLETED, "")

    def _error_first(self, scanner: StreamScanner) -> Relayed:
        status = scanner.error_code or 500
        if status == 503:
            return self._unsent(Outcome.ENGINE_REJECTED, 503, "error_event_503")
        status = status if 400 <= status <= 599 else 500
        return self._unsent(Outcome.ENGINE_ERROR, status, "error_event_first", scanner.error)

    def _unsent(
        self, outcome: Outcome, status: int, detail: str, body: bytes | None = None
    ) -> Relayed:
        """An answer of the engine's that is left to the caller of ``relay`` to send."""
        advice = self._head.get(b"retry-after", b"")
        wait_s = float(advice) if advice.isdigit() and len(advice) < 6 else None
        return Relayed(outcome, False, status, body=body, retry_after_s=wait_s, detail=detail)

    def _ended(self, outcome: Outcome, detail: str) -> Relayed:
        status = self._exchange.status if self._committed else None
        scanner = self._scanner
        if scanner is None:
            began = bool(self._exchange.status)
            return Relayed(outcome, self._committed, status, detail=detail, began=began)
        return Relayed(
            outcome, self._committed, status, scanner.prompt_tokens, scanner.completion_tokens,
            scanner.finish_reason, detail=detail, began=True,
        )  # fmt: skip

    async def _whole(self) -> Relayed:
        body, status = self._exchange.whole(), self._exchange.status
        if body is None:
            body = await self._read_whole()
        if len(body) > MAX_HELD_BYTES:
            return await self._oversize(body)
        if status == 503:
            return self._unsent(Outcome.ENGINE_REJECTED, 503, "status_503", body)
        facts = scan_answer(body, self._call.surface)
        if status < 300 and facts.finish_reason in _BAD_REASONS:  # cut short, as 200
            return self._unsent(Outcome.ENGINE_REJECTED, 503, f"finish_{facts.finish_reason}")
        good = status < 300 and not facts.error
        outcome = _COMPLETED if good else Outcome.ENGINE_ERROR
        length = () if status == 204 else ((b"content-length", b"%d" % len(body)),)
        said = (*length, (b"x-sluicegate-outcome", outcome.encode()))
        write = None if self._call.stream else self._call.answer
        if write is None or not write(status, self._headers(said), body):
            await self._commit(said)
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
        return Relayed(
            outcome, True, status, facts.prompt_tokens, facts.completion_tokens,
            facts.finish_reason, None, None, "" if good else "engine_answer",
        )  # fmt: skip

    async def _read_whole(self) -> bytes:
        """The whole body, or a beginning that is longer than may be held."""
        parts, size = [], 0
        self._watch.heard(self._marks.clock())
        while size <= MAX_HELD_BYTES and (data := await self._exchange.read()):
            self._watch.heard(self._marks.clock())
            parts.append(data)
            size += len(data)
        return b"".join(parts)

    async def _oversize(self, data: bytes) -> Relayed:
        await self._commit(())
        while data:
            await self._deliver(data)
            self._watch.heard(self._marks.clock())
            data = await self._exchange.read()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        outcome = Outcome.COMPLETED if self._exchange.status < 300 else Outcome.ENGINE_ERROR
        return Relayed(outcome, True, self._exchange.status, detail="oversize")

    async def _commit(self, headers: Sequence[Header]) -> None:
        head = self._headers(headers)
        start = {"type": "http.response.start", "status": self._exchange.status, "headers": head}
        await self._send(start)

    def _headers(self, own: Sequence[Header]) -> list[Header]:
        """The head of the answer, which from now on counts as the caller's."""
        # The rest of an engine's head describes the engine, not the answer.
        kind = self._head.get(b"content-type")
        passed = [] if kind is None else [(b"content-type", kind)]
        head, wanted = self._head, self._call.pass_headers
        if wanted:
            passed += [(name, head[name]) for name in wanted if name in head]
        advice = head.get(b"retry-after", b"")
        if advice.isdigit():  # client libraries obey up to minutes, whoever says so
            passed.append((b"retry-after", b"%d" % min(int(advice[:6]), MAX_RETRY_AFTER_S)))
        self._committed = True
        return [*passed, *own, *self._call.answer_headers]

    async def fail(self, error: WireError, ended: Outcome | None) -> Relayed:
        """End an answer that broke, for the caller's eyes where there is a way to tell it."""
        scanner = self._scanner
        self._marks.broke()
        if ended is Outcome.CLIENT_CANCELLED:
            return self._ended(ended, "client_gone")
        if not self._committed:
            return self._ended(*_unbegun(error, ended))
        if scanner is None:  # cut in the middle of a body: only closing says so
            return self._ended(Outcome.STREAM_INTERRUPTED, _word(error))
        if scanner.complete:
            return await self._complete(b"")
        outcome = ended or Outcome.STREAM_INTERRUPTED
        last = b"\n\n" if scanner.torn else b""
        if ended is not None or scanner.error is None:  # else the engine has said so itself
            message = _INTERRUPTED if ended is None else _DRAINED
            last += error_event(outcome, message, self._call.surface)
        await self._send({"type": "http.response.body", "body": last, "more_body": False})
        return self._ended(outcome, "drain" if ended else _word(error))


def _shortfall(scanner: StreamScanner) -> str:
    """Why a stream that ended in good order is no success."""
    if scanner.error is not None:
        return "error_event"
    if not scanner.done:
        return "no_end_mark"
    return f"finish_{scanner.finish_reason}"


def _unbegun(error: WireError, ended: Outcome | None) -> tuple[Outcome, str]:
    """The outcome of an answer of which the caller has seen nothing."""
    if ended is not None:
        return Outcome.DRAINING, "drain"
    if isinstance(error, TimedOut):
        return Outcome.UPSTREAM_TIMEOUT, str(error)
    return Outcome.UPSTREAM_UNREACHABLE, _word(error)


def _word(error: WireError) -> str:
    """The log's word for what broke."""
    if isinstance(error, TimedOut | _Unfinished):
        return str(error)
    if isinstance(error, NoSocket):
        return "no_socket"
    if isinstance(error, ConnectTimedOut):
        return "connect_timeout"
    if isinstance(error, ConnectFailed):
        return "connect_failed"
    return "bad_response" if isinstance(error, BadResponse) else "disconnected"
