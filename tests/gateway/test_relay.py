import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from gateway.domain import Outcome, Surface
from gateway.lifetime import Ending, Timeline, Timeouts
from gateway.relay import MAX_HELD_BYTES, Relayed, UpstreamCall, relay
from gateway.sse import MAX_EVENT_BYTES
from gateway.tallies import BOUNDS_S
from gateway.wire import EngineClient, Header
from tests.gateway.scripted import (
    BACKEND,
    CHUNKED_HEAD,
    DONE,
    LAST_CHUNK,
    Engine,
    Peer,
    chunk,
    event,
    eventually,
    plain,
    scripted_engine,
)

ROOMY = Timeouts(first_byte_s=300.0, idle_s=300.0, total_s=300.0)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
STREAM = event("a") + event("b") + event("", "stop") + USAGE + DONE
JSON = b"content-type: application/json\r\n"
ERROR_503 = b'data: {"error":{"message":"full","type":"x","param":null,"code":503}}\n\n'


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


@dataclass
class Caller:
    """The caller's side of ASGI: what was sent to it, and a gate that makes it slow."""

    status: int | None = None
    headers: dict[bytes, bytes] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    ended: bool = False
    gate: asyncio.Event | None = None
    passed: int = 0

    def pass_on(self, framed: bytes) -> bool:
        """A chunk as it came, which a caller who is behind does not take."""
        assert not self.ended
        assert self.status is not None
        if self.gate is not None:
            return False
        line, _, rest = framed.partition(b"\r\n")
        assert rest[int(line, 16) :] == b"\r\n"
        self.parts.append(rest[:-2])
        self.passed += 1
        return True

    def answer(self, status: int, headers: Sequence[Header], body: bytes) -> bool:
        """A whole answer in one step, which a caller who is behind does not take."""
        assert not self.ended
        assert self.status is None
        if self.gate is not None:
            return False
        self.status, self.headers, self.ended = status, dict(headers), True
        self.parts.append(body)
        self.passed += 1
        return True

    async def send(self, message: Mapping[str, Any]) -> None:
        assert not self.ended
        if message["type"] == "http.response.start":
            assert self.status is None
            self.status = message["status"]
            self.headers = dict(message["headers"])
            assert len(self.headers) == len(message["headers"])
            return
        assert self.status is not None
        self.parts.append(message["body"])
        self.ended = not message["more_body"]
        if self.gate is not None:
            await self.gate.wait()

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def error(self) -> dict[str, Any]:
        """The error event that ended the stream."""
        last = self.body.rstrip(b"\n").rsplit(b"\n\n", 1)[-1]
        assert last.startswith(b"data: ")
        error: dict[str, Any] = json.loads(last[6:])["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def call(stream: bool = True, surface: Surface = Surface.CHAT) -> UpstreamCall:
    return UpstreamCall(
        target=b"/v1/chat/completions",
        headers=[(b"content-type", b"application/json"), (b"x-request-id", b"r1")],
        body=b'{"stream":true}',
        stream=stream,
        surface=surface,
        answer_headers=[(b"x-request-id", b"r1")],
    )


@dataclass
class Setting:
    """One relayed request with everything round it."""

    engine: Engine
    caller: Caller = field(default_factory=Caller)
    gone: Ending = field(default_factory=Ending)
    first_events: int = 0
    hide_usage: bool = False
    pass_headers: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        self.client = EngineClient(self.engine.url)
        self.marks = Timeline(asyncio.get_running_loop().time, self._first)

    def _first(self) -> None:
        self.first_events += 1

    async def relay(self, limits: Timeouts = ROOMY, stream: bool = True) -> Relayed:
        async with asyncio.timeout(20):  # a limit that is not kept fails the test
            result = await relay(
                self.client,
                call(stream)._replace(
                    hide_usage=self.hide_usage,
                    pass_headers=self.pass_headers,
                    pass_on=self.caller.pass_on,
                    answer=self.caller.answer,
                ),
                self.caller.send,
                self.gone,
                self.marks,
                limits,
            )
        assert result.committed == (self.caller.status is not None)
        assert self.marks.ended_s is not None
        assert not self.gone._watchers
        assert not len(self.client.alarms.row(min(limits.first_byte_s, limits.total_s)))
        return result


def answers(*parts: bytes, pause_s: float = 0.0) -> Callable[[Peer], Any]:
    async def script(peer: Peer) -> None:
        await peer.request()
        for part in parts:
            await peer.send(part)
            await asyncio.sleep(pause_s)

    return script


def hangs_after(*parts: bytes, gone: asyncio.Event) -> Callable[[Peer], Any]:
    async def script(peer: Peer) -> None:
        await peer.request()
        for part in parts:
            await peer.send(part)
        await peer.closed()
        gone.set()

    return script


async def run(
    *parts: bytes, stream: bool = True, limits: Timeouts = ROOMY
) -> tuple[Relayed, Caller]:
    async with scripted_engine(answers(*parts)) as engine:
        setting = Setting(engine)
        return await setting.relay(limits, stream), setting.caller


# Streams that go well.


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 64, 1000])
async def test_a_stream_reaches_the_caller_byte_for_byte_however_it_is_cut(size: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED_HEAD)
        pieces = [STREAM[i : i + size] for i in range(0, len(STREAM), size)]
        for piece in pieces:
            await peer.send_split(chunk(piece), max(1, size - 1))
        await peer.send(LAST_CHUNK)
        await peer.closed()

    async with scripted_engine(script) as engine:
        setting = Setting(engine)
        result = await setting.relay()
        assert result == Relayed(
            Outcome.COMPLETED,
            True,
            200,
            prompt_tokens=7,
            completion_tokens=2,
            finish_reason="stop",
            began=True,
        )
        assert setting.caller.body == STREAM
        assert setting.caller.ended
        assert (setting.client.idle, setting.first_events, setting.marks.events) == (1, 1, 5)


async def test_a_streams_head_has_the_gateways_headers_and_not_the_engines() -> None:
    head = CHUNKED_HEAD.replace(
        b"\r\n\r\n", b"\r\nserver: uvicorn\r\ndate: today\r\nx-engine: 3\r\nset-cookie: a\r\n\r\n"
    )
    _, caller = await run(head + chunk(STREAM) + LAST_CHUNK)
    assert caller.headers == {
        b"content-type": b"text/event-stream",
        b"cache-control": b"no-cache",
        b"x-accel-buffering": b"no",
        b"x-request-id": b"r1",
    }


async def test_of_an_engines_head_callers_get_what_the_operator_lets_through() -> None:
    said = b"tenant: blue\r\ntelemetry-id: 7\r\nserver: engine\r\n" + JSON
    async with scripted_engine(answers(plain(b"{}", headers=said))) as engine:
        setting = Setting(engine, pass_headers=(b"tenant", b"telemetry-id", b"absent"))
        await setting.relay(stream=False)
    found = setting.caller.headers
    assert (found[b"tenant"], found[b"telemetry-id"]) == (b"blue", b"7")
    assert not {b"server", b"absent"} & set(found)


async def test_a_stream_that_the_engine_ended_because_it_repeats_itself_is_whole() -> None:
    stream = event("a") + event("a") + event("", "repetition") + USAGE + DONE
    result, caller = await run(CHUNKED_HEAD + chunk(stream) + LAST_CHUNK)
    assert (result.outcome, result.finish_reason) == (Outcome.COMPLETED, "repetition")
    assert caller.body == stream


async def test_comments_and_what_follows_the_mark_pass_unchanged() -> None:
    stream = b": keep-alive\n\n" + event("a", "stop") + DONE + b": bye\n\nrest"
    result, caller = await run(CHUNKED_HEAD + chunk(stream) + LAST_CHUNK)
    assert (result.outcome, caller.body) == (Outcome.COMPLETED, stream)


async def test_each_event_is_passed_on_before_the_next_one_comes() -> None:
    passed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED_HEAD + chunk(event("a")))
        await passed.wait()
        await peer.send(chunk(event("b", "stop") + DONE) + LAST_CHUNK)

    async with scripted_engine(script) as engine:
        setting = Setting(engine)
        running = asyncio.ensure_future(setting.relay())
        await eventually(lambda: setting.caller.body == event("a"))
        passed.set()
        assert (await running).outcome is Outcome.COMPLETED


async def test_events_alike_pass_in_the_framing_they_came_in() -> None:
    words = [event(word) for word in ("one", "two", "three", "four, five")]
    told = event('a "quote"'), event("", "stop"), DONE
    parts = [chunk(part) for part in (*words, *told)]
    script = answers(CHUNKED_HEAD, *parts, LAST_CHUNK, pause_s=0.01)
    async with scripted_engine(script) as engine:
        setting = Setting(engine)
        result = await setting.relay()
    assert result.outcome is Outcome.COMPLETED
    assert setting.caller.body == b"".join((*words, *told))
    assert setting.caller.passed >= 2  # of the first ones the first shows what an event is like
    assert setting.marks.events == len(parts)


async def test_a_caller_that_falls_behind_gets_the_same_bytes() -> None:
    words = [event(f"word {n}") for n in range(12)]
    everything = (*words, event("", "stop"), DONE)
    script = answers(CHUNKED_HEAD, *map(chunk, everything), LAST_CHUNK, pause_s=0.01)
    async with scripted_engine(script) as engine:
        setting = Setting(engine)
        running = asyncio.get_running_loop().create_task(setting.relay())
        await eventually(lambda: setting.caller.passed > 2)
        setting.caller.gate = asyncio.Event()
        await asyncio.sleep(0.05)
        gate, setting.caller.gate = setting.caller.gate, None
        gate.set()
        assert (await running).outcome is Outcome.COMPLETED
    assert setting.caller.body == b"".join(everything)


async def test_a_stream_that_ends_with_its_connection_is_judged_by_its_mark() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    result, caller = await run(head + STREAM)
    assert (result.outcome, caller.body) == (Outcome.COMPLETED, STREAM)
    result, caller = await run(head + event("a"))
    assert (result.outcome, result.detail) == (Outcome.STREAM_INTERRUPTED, "no_end_mark")


async def test_an_event_of_any_length_is_passed_on() -> None:
    stream = event("y" * (5 * MAX_EVENT_BYTES)) + event("", "stop") + DONE
    result, caller = await run(CHUNKED_HEAD + chunk(stream) + LAST_CHUNK)
    assert (result.outcome, caller.body == stream) == (Outcome.COMPLETED, True)


async def test_a_stream_whose_end_was_seen_is_complete_even_if_the_engine_then_dies() -> None:
    result, caller = await run(CHUNKED_HEAD + chunk(STREAM))
    assert (result.outcome, caller.body, caller.ended) == (Outcome.COMPLETED, STREAM, True)


async def test_the_timeline_tells_first_last_and_longest_gap() -> None:
    now = 1.0

    def caller_has(sent: bytes) -> bool:
        return setting.caller.body == sent

    async def script(peer: Peer) -> None:
        nonlocal now
        await peer.request()
        await peer.send(CHUNKED_HEAD)
        sent = b""
        for at, part in ((10.0, event("a")), (11.5, event("b")), (15.0, event("", "stop") + DONE)):
            now, sent = at, sent + part
            await peer.send(chunk(part))
            await eventually(partial(caller_has, sent))
        now = 16.0
        await peer.send(LAST_CHUNK)

    async with scripted_engine(script) as engine:
        setting = Setting(engine)
        setting.marks.clock = lambda: now
        await setting.relay()
        marks = setting.marks
        assert (marks.dispatched_s, marks.first_event_s, marks.last_event_s) == (1.0, 10.0, 15.0)
        assert (marks.max_gap_s, marks.events, marks.ended_s) == (3.5, 4, 16.0)


# A stream's first event decides about its head.


async def test_a_first_event_with_error_503_is_a_rejection_and_not_a_200() -> None:
    head = CHUNKED_HEAD.replace(b"\r\n\r\n", b"\r\nretry-after: 3\r\n\r\n")
    result, caller = await run(head + chunk(b": hi\n\n" + ERROR_503 + DONE) + LAST_CHUNK)
    assert (result.outcome, result.committed) == (Outcome.ENGINE_REJECTED, False)
    assert (result.retry_after_s, caller.status) == (3.0, None)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (b'{"error":{"message":"bad","code":400}}', 400),
        (b'{"error":{"message":"odd","code":200}}', 500),
        (b'{"error":"plain"}', 500),
    ],
)
async def test_another_error_first_is_the_engines_answer_with_its_status(
    error: bytes, status: int
) -> None:
    result, caller = await run(CHUNKED_HEAD + chunk(b"data: " + error + b"\n\n") + LAST_CHUNK)
    assert result == Relayed(
        Outcome.ENGINE_ERROR, False, status, body=error, detail="error_event_first"
    )
    assert caller.status is None


async def test_an_abort_before_anything_was_passed_on_is_a_rejection() -> None:
    result, caller = await run(CHUNKED_HEAD + chunk(event("", "abort") + DONE) + LAST_CHUNK)
    assert (result.outcome, result.detail) == (Outcome.ENGINE_REJECTED, "finish_abort")
    assert caller.status is None


async def test_a_stream_without_any_event_is_an_engine_that_can_not_be_reached() -> None:
    result, caller = await run(CHUNKED_HEAD + chunk(b": hm\n\n") + LAST_CHUNK)
    assert (result.outcome, result.detail) == (Outcome.UPSTREAM_UNREACHABLE, "no_event")
    assert caller.status is None


async def test_an_error_later_in_the_stream_passes_and_is_not_said_twice() -> None:
    stream = event("a") + ERROR_503 + DONE
    result, caller = await run(CHUNKED_HEAD + chunk(stream) + LAST_CHUNK)
    assert (result.outcome, result.detail) == (Outcome.STREAM_INTERRUPTED, "error_event")
    assert (caller.body, caller.ended) == (stream, True)


# A stream that breaks.


@pytest.mark.parametrize("length", range(len(chunk(event("a") + event("b")))))
async def test_a_stream_cut_after_any_byte_ends_with_whole_events_and_one_error_event(
    length: int,
) -> None:
    data = chunk(event("zero")) + chunk(event("a") + event("b"))[:length]
    result, caller = await run(CHUNKED_HEAD + data)
    assert (result.outcome, result.detail) == (Outcome.STREAM_INTERRUPTED, "disconnected")
    assert caller.ended
    assert caller.error["code"] == "stream_interrupted"
    events = caller.body.split(b"\n\n")[:-2]
    assert [e + b"\n\n" for e in events] == [event("zero"), event("a"), event("b")][: len(events)]


async def test_garbage_in_the_middle_of_a_stream_interrupts_it() -> None:
    result, caller = await run(CHUNKED_HEAD + chunk(event("a")) + b"not a chunk\r\n")
    assert (result.outcome, result.detail) == (Outcome.STREAM_INTERRUPTED, "bad_response")
    assert caller.body.startswith(event("a"))
    assert caller.error["code"] == "stream_interrupted"


async def test_an_event_too_long_to_hold_back_is_closed_before_the_error_event() -> None:
    torn = event("y" * (3 * MAX_EVENT_BYTES))[:-20]
    result, caller = await run(CHUNKED_HEAD + chunk(event("a") + torn))
    assert result.outcome is Outcome.STREAM_INTERRUPTED
    assert caller.body.startswith(event("a") + torn + b"\n\ndata: ")
    assert caller.error["code"] == "stream_interrupted"


@pytest.mark.parametrize(
    ("stream", "detail"),
    [
        (event("a", "stop"), "no_end_mark"),
        (event("a") + DONE, "finish_None"),
        (event("a") + event("b", "stop") + event("", "weird") + DONE, "finish_weird"),
    ],
)
async def test_a_stream_that_ends_without_its_rule_says_so_to_the_caller(
    stream: bytes, detail: str
) -> None:
    result, caller = await run(CHUNKED_HEAD + chunk(stream) + LAST_CHUNK)
    assert (result.outcome, result.detail) == (Outcome.STREAM_INTERRUPTED, detail)
    # The mark would tell a client that all is well: the error event comes in its place.
    passed = stream.removesuffix(DONE)
    assert caller.body.startswith(passed)
    assert DONE not in caller.body
    assert caller.error["code"] == "stream_interrupted"


async def test_an_abort_after_the_first_event_is_interrupted() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED_HEAD + chunk(event("a")))
        await eventually(lambda: bool(setting.caller.parts))
        await peer.send(chunk(event("", "abort") + DONE) + LAST_CHUNK)

    async with scripted_engine(script) as engine:
        setting = Setting(engine)
        result = await setting.relay()
        assert (result.outcome, result.detail) == (Outcome.STREAM_INTERRUPTED, "finish_abort")
        assert setting.caller.error["code"] == "stream_interrupted"


# Time limits.


def limits(first_byte_s: float = 300.0, idle_s: float = 300.0, total_s: float = 300.0) -> Timeouts:
    return Timeouts(first_byte_s, idle_s, total_s)


async def comments_for_ever(peer: Peer, *before: bytes) -> None:
    await peer.request()
    await peer.send(CHUNKED_HEAD + b"".join(chunk(part) for part in before))
    while True:
        await peer.send(chunk(b": keep-alive\n\n"))
        await asyncio.sleep(0.005)


async def test_comments_are_not_the_first_byte() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        try:
            await comments_for_ever(peer)
        finally:
            gone.set()

    async with scripted_engine(script) as engine:
        setting = Setting(engine)
        result = await setting.relay(limits(first_byte_s=0.05))
        assert (result.outcome, result.detail) == (Outcome.UPSTREAM_TIMEOUT, "first_byte_timeout")
        assert (result.committed, setting.first_events) == (False, 0)
        await asyncio.wait_for(gone.wait(), 5)


async def test_comments_do_not_keep_a_stalled_stream_alive() -> None:
    async with scripted_engine(lambda peer: comments_for_ever(peer, event("a"))) as engine:
        setting = Setting(engine)
        result = await setting.relay(limits(idle_s=0.05))
        assert (result.outcome, result.detail) == (Outcome.STREAM_INTERRUPTED, "idle_timeout")
        assert setting.caller.error["code"] == "stream_interrupted"


async def test_a_stream_whose_events_keep_coming_is_not_idle() -> None:
    parts = [chunk(event("a")) for _ in range(12)] + [chunk(event("", "stop") + DONE)]
    script = answers(CHUNKED_HEAD, *parts, LAST_CHUNK, pause_s=0.02)
    async with scripted_engine(script) as engine:
        result = await Setting(engine).relay(limits(first_byte_s=0.2, idle_s=0.2))
        assert result.outcome is Outcome.COMPLETED


async def test_the_total_limit_ends_a_stream_that_never_stalls() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED_HEAD)
        while True:
            await peer.send(chunk(event("a")))
            await asyncio.sleep(0.005)

    async with scripted_engine(script) as engine:
        result = await Setting(engine).relay(limits(total_s=0.1))
        assert (result.outcome, result.detail) == (Outcome.STREAM_INTERRUPTED, "total_timeout")


@pytest.mark.parametrize("slow_at", [0, 1])
async def test_time_in_which_the_caller_does_not_read_is_not_the_engines(slow_at: int) -> None:
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED_HEAD + chunk(event("a")))
        await eventually(lambda: len(setting.caller.parts) == 1)
        if slow_at == 1:
            setting.caller.gate = gate
        await peer.send(chunk(event("", "stop") + DONE) + LAST_CHUNK)

    async with scripted_engine(script) as engine:
        setting = Setting(engine, Caller(gate=gate if slow_at == 0 else None))
        running = asyncio.ensure_future(setting.relay(limits(first_byte_s=0.2, idle_s=0.1)))
        await eventually(lambda: len(setting.caller.parts) > slow_at)
        await asyncio.sleep(0.45)
        gate.set()
        assert (await running).outcome is Outcome.COMPLETED


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_says_nothing_times_out_and_loses_its_connection(stream: bool) -> None:
    gone = asyncio.Event()
    async with scripted_engine(hangs_after(gone=gone)) as engine:
        setting = Setting(engine)
        result = await setting.relay(limits(first_byte_s=0.05), stream)
        assert (result.outcome, result.status) == (Outcome.UPSTREAM_TIMEOUT, None)
        await asyncio.wait_for(gone.wait(), 5)


# The caller leaves, or the gateway drains.

PHASES = {
    "head": b"",
    "first event": CHUNKED_HEAD,
    "stream": CHUNKED_HEAD + chunk(event("a")),
    "comments": CHUNKED_HEAD + chunk(b": hm\n\n"),
    "body": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
}


@pytest.mark.parametrize("phase", PHASES)
async def test_a_caller_that_leaves_closes_the_engines_connection_in_every_phase(
    phase: str,
) -> None:
    gone = asyncio.Event()
    async with scripted_engine(hangs_after(PHASES[phase], gone=gone)) as engine:
        setting = Setting(engine)
        running = asyncio.ensure_future(setting.relay())
        await asyncio.sleep(0.02)
        setting.gone.set()
        result = await running
        assert (result.outcome, result.detail) == (Outcome.CLIENT_CANCELLED, "client_gone")
        assert result.committed is (phase == "stream")
        assert not setting.caller.ended
        await asyncio.wait_for(gone.wait(), 5)


async def test_a_caller_that_has_left_already_costs_the_engine_nothing() -> None:
    async with scripted_engine(answers()) as engine:
        setting = Setting(engine)
        setting.gone.set()
        assert (await setting.relay()).outcome is Outcome.CLIENT_CANCELLED
        await asyncio.sleep(0.01)
        assert engine.connections == 0


async def test_a_cancelled_relay_closes_the_engines_connection() -> None:
    gone = asyncio.Event()
    async with scripted_engine(hangs_after(PHASES["stream"], gone=gone)) as engine:
        setting = Setting(engine)
        running = asyncio.ensure_future(setting.relay())
        await eventually(lambda: bool(setting.caller.parts))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(gone.wait(), 5)
        assert setting.marks.ended_s is not None


async def test_a_drain_ends_a_stream_with_an_event_that_names_it() -> None:
    gone = asyncio.Event()
    async with scripted_engine(hangs_after(PHASES["stream"], gone=gone)) as engine:
        setting = Setting(engine)
        running = asyncio.ensure_future(setting.relay())
        await eventually(lambda: bool(setting.caller.parts))
        setting.gone.set(Outcome.DRAIN_TERMINATED)
        result = await running
        assert (result.outcome, result.committed) == (Outcome.DRAIN_TERMINATED, True)
        assert setting.caller.error["code"] == "drain_terminated"
        assert setting.caller.ended
        await asyncio.wait_for(gone.wait(), 5)


async def test_a_drain_before_the_head_leaves_a_proper_status_to_be_sent() -> None:
    gone = asyncio.Event()
    async with scripted_engine(hangs_after(PHASES["first event"], gone=gone)) as engine:
        setting = Setting(engine)
        running = asyncio.ensure_future(setting.relay())
        await asyncio.sleep(0.02)
        setting.gone.set(Outcome.DRAIN_TERMINATED)
        result = await running
        assert (result.outcome, result.committed) == (Outcome.DRAINING, False)


async def test_a_slow_caller_pauses_the_engine() -> None:
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(CHUNKED_HEAD)
        block = chunk(event("y" * 1000) * 30)
        while sent < 600:
            await peer.send(block)
            sent += 1
        await peer.send(chunk(event("", "stop") + DONE) + LAST_CHUNK)

    async with scripted_engine(script) as engine:
        setting = Setting(engine, Caller(gate=asyncio.Event()))
        running = asyncio.ensure_future(setting.relay())
        await eventually(lambda: bool(setting.caller.parts))
        await asyncio.sleep(0.1)
        stuck_at = sent
        await asyncio.sleep(0.05)
        assert sent == stuck_at < 600
        assert setting.caller.gate is not None
        setting.caller.gate.set()
        assert (await running).outcome is Outcome.COMPLETED
        assert len(setting.caller.body) > 600 * 30 * 1000


# Answers that are not streams.


async def test_a_whole_answer_passes_unchanged_with_its_usage_known() -> None:
    usage = b'"usage":{"prompt_tokens":3,"completion_tokens":4}'
    body = b'{"choices":[{"finish_reason":"length"}],' + usage + b"}"
    result, caller = await run(plain(body, headers=JSON + b"server: uvicorn\r\n"), stream=False)
    assert result == Relayed(
        Outcome.COMPLETED,
        True,
        200,
        prompt_tokens=3,
        completion_tokens=4,
        finish_reason="length",
    )
    assert (caller.status, caller.body, caller.ended, caller.passed) == (200, body, True, 1)
    assert caller.headers == {
        b"content-type": b"application/json",
        b"content-length": b"%d" % len(body),
        b"x-sluicegate-outcome": b"completed",
        b"x-request-id": b"r1",
    }


async def test_an_empty_answer_has_no_body_and_no_length() -> None:
    result, caller = await run(b"HTTP/1.1 204 No Content\r\n\r\n", stream=False)
    assert (result.status, caller.body, caller.ended) == (204, b"", True)
    assert b"content-length" not in caller.headers


@pytest.mark.parametrize("status", [b"400 Bad Request", b"404 Not Found", b"500 Oops", b"429 Slow"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_engines_error_passes_unchanged(status: bytes, stream: bool) -> None:
    body = b'{"error":{"message":"m","type":"t","param":null,"code":1}}'
    result, caller = await run(plain(body, status, JSON + b"retry-after: 7\r\n"), stream=stream)
    assert (result.outcome, result.committed) == (Outcome.ENGINE_ERROR, True)
    assert (caller.status, caller.body) == (int(status[:3]), body)
    assert caller.headers[b"retry-after"] == b"7"
    assert caller.headers[b"x-sluicegate-outcome"] == b"engine_error"


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [(b"", None), (b"retry-after: 9\r\n", 9.0), (b"retry-after: Tue, 1 Dec 2026\r\n", None)],
)
async def test_an_engine_that_is_full_leaves_the_answer_to_the_gateway(
    header: bytes, wait_s: float | None
) -> None:
    result, caller = await run(plain(b'{"error":"full"}', b"503 Full", header), stream=False)
    assert result == Relayed(
        Outcome.ENGINE_REJECTED,
        False,
        503,
        body=b'{"error":"full"}',
        retry_after_s=wait_s,
        detail="status_503",
    )
    assert caller.status is None


async def test_a_success_that_is_none_is_counted_as_the_engines_error() -> None:
    body = b'{"error":{"message":"m","code":500}}'
    result, caller = await run(plain(body, headers=JSON), stream=False)
    assert (result.outcome, result.status, caller.body) == (Outcome.ENGINE_ERROR, 200, body)
    assert caller.headers[b"x-sluicegate-outcome"] == b"engine_error"


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_a_whole_answer_that_the_engine_cut_short_is_a_rejection(reason: str) -> None:
    body = b'{"choices":[{"message":{"content":"half"},"finish_reason":"%b"}]}' % reason.encode()
    result, caller = await run(plain(body, headers=JSON), stream=False)
    assert (result.outcome, result.detail) == (Outcome.ENGINE_REJECTED, f"finish_{reason}")
    assert (result.committed, caller.status) == (False, None)


@pytest.mark.parametrize("length", [0, 1, 16, 60, 70, 79])
async def test_a_whole_answer_that_is_cut_never_reaches_the_caller(length: int) -> None:
    answer = plain(b'{"choices":[]}', headers=JSON)
    assert len(answer) > 79
    result, caller = await run(answer[:length], stream=False)
    assert (result.outcome, result.status) == (Outcome.UPSTREAM_UNREACHABLE, None)
    assert (result.detail, caller.status) == ("disconnected", None)


async def test_a_whole_answer_that_stalls_never_reaches_the_caller() -> None:
    gone = asyncio.Event()
    async with scripted_engine(hangs_after(PHASES["body"], gone=gone)) as engine:
        setting = Setting(engine)
        result = await setting.relay(limits(idle_s=0.05), stream=False)
        assert (result.outcome, result.detail) == (Outcome.UPSTREAM_TIMEOUT, "idle_timeout")
        assert result.committed is False
        await asyncio.wait_for(gone.wait(), 5)


async def test_json_in_answer_to_a_request_for_a_stream_is_a_whole_answer() -> None:
    result, caller = await run(plain(b'{"choices":[{"finish_reason":"stop"}]}', headers=JSON))
    assert (result.outcome, result.finish_reason) == (Outcome.COMPLETED, "stop")
    assert b"x-accel-buffering" not in caller.headers


async def test_a_coding_that_was_not_asked_for_is_refused() -> None:
    result, caller = await run(plain(b"xx", headers=b"content-encoding: gzip\r\n"), stream=False)
    assert (result.outcome, result.detail) == (Outcome.UPSTREAM_UNREACHABLE, "bad_response")
    assert caller.status is None


async def test_an_answer_too_large_to_hold_streams_on_and_is_not_ended_when_cut() -> None:
    size = MAX_HELD_BYTES + 300_000
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
    result, caller = await run(head, b"z" * size, stream=False)
    assert (result.outcome, len(caller.body), caller.ended) == (Outcome.COMPLETED, size, True)
    assert len(caller.parts) > 1

    result, caller = await run(head, b"z" * (size - 1), stream=False)
    assert (result.outcome, result.committed) == (Outcome.STREAM_INTERRUPTED, True)
    assert not caller.ended


async def test_an_engine_that_is_not_there_is_told_apart_for_a_second_try() -> None:
    async with scripted_engine(answers()) as engine:
        pass
    setting = Setting(engine)
    result = await setting.relay()
    assert (result.outcome, result.detail) == (Outcome.UPSTREAM_UNREACHABLE, "connect_failed")


async def test_a_call_that_would_change_the_framing_is_refused_before_anything_is_sent() -> None:
    async with scripted_engine(answers()) as engine:
        setting = Setting(engine)
        bad = UpstreamCall(b"/ HTTP/1.1\r\n", [], b"", True, Surface.CHAT)
        with pytest.raises(ValueError, match="not sendable"):
            await relay(
                setting.client, bad, setting.caller.send, setting.gone, setting.marks, ROOMY
            )
        assert engine.connections == 0


async def test_an_engines_own_advice_is_bounded_as_ours_is() -> None:
    head = JSON + b"retry-after: 999999\r\n"
    _, caller = await run(plain(b'{"error":"x"}', b"429 Too Many", head), stream=False)
    assert caller.headers[b"retry-after"] == b"30"


async def test_a_stream_whose_first_event_is_the_mark_is_no_stream() -> None:
    result, caller = await run(CHUNKED_HEAD + chunk(DONE) + LAST_CHUNK)
    assert (result.outcome, result.detail) == (Outcome.UPSTREAM_UNREACHABLE, "no_event")
    assert caller.status is None


async def test_a_page_in_answer_to_a_request_for_a_stream_is_no_answer() -> None:
    page = plain(b"<html>", headers=b"content-type: text/html\r\n")
    result, caller = await run(page)
    assert (result.outcome, result.detail) == (Outcome.UPSTREAM_UNREACHABLE, "bad_response")
    assert caller.status is None


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
async def test_the_usage_event_that_only_the_gateway_asked_for_is_taken_out_again(
    size: int,
) -> None:
    odd = event('\\"usage\\":{\\"choices\\":[]', extra=',"usage":null')
    stream = event("a") + b": hi\r\n\r\n" + odd + event("", "stop") + USAGE + DONE
    pieces = [chunk(stream[i : i + size]) for i in range(0, len(stream), size)]
    async with scripted_engine(answers(CHUNKED_HEAD, *pieces, LAST_CHUNK)) as engine:
        setting = Setting(engine, hide_usage=True)
        result = await setting.relay()
    assert (result.outcome, result.completion_tokens) == (Outcome.COMPLETED, 2)
    assert setting.caller.body == stream.replace(USAGE, b"")


async def test_the_silence_before_a_cut_counts_as_a_stall() -> None:
    now = 1.0

    async def script(peer: Peer) -> None:
        nonlocal now
        await peer.request()
        await peer.send(CHUNKED_HEAD + chunk(event("a")))
        await eventually(lambda: bool(setting.caller.parts))
        now = 9.0
        peer.reset()

    async with scripted_engine(script) as engine:
        setting = Setting(engine)
        setting.marks.clock = lambda: now
        assert (await setting.relay()).outcome is Outcome.STREAM_INTERRUPTED
        assert setting.marks.max_gap_s == 8.0


async def test_the_gaps_between_events_are_counted_by_bucket() -> None:
    times = iter([1.0, 1.0, 1.02, 1.5, 1.5, 1.5])
    marks = Timeline(times.__next__)
    for events in (1, 2, 3, 4):
        marks.saw(events)
    counted = {bound: n for bound, n in zip((*BOUNDS_S, None), marks.gaps, strict=True) if n}
    assert counted == {0.001: 1, 0.025: 1, 0.5: 1}


async def test_a_caller_that_is_behind_gets_a_whole_answer_all_the_same() -> None:
    body = b'{"choices":[{"finish_reason":"stop"}]}'
    async with scripted_engine(answers(plain(body, headers=JSON))) as engine:
        setting = Setting(engine)
        setting.caller.gate = asyncio.Event()
        setting.caller.gate.set()
        result, caller = await setting.relay(stream=False), setting.caller
    assert (result.outcome, caller.body, caller.passed) == (Outcome.COMPLETED, body, 0)
    assert caller.headers[b"content-length"] == b"%d" % len(body)
