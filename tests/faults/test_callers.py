"""Callers who are slow, half-close, or leave, in each phase of a request: nothing stays behind."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.edge import EdgeLimits
from tests.e2e.harness import chat, eventually
from tests.faults.caller import ask, post, read_reply
from tests.faults.crooked import Peer, Script, chunk, plain
from tests.faults.stand import Stand, stand
from tests.faults.table import (
    GOOD_BODY,
    GOOD_STREAM,
    STREAM_EVENTS,
    STREAM_HEAD,
    event,
    good,
    says_and_hangs,
)

PATIENT = {
    "upstream": {"first_byte_timeout_s": 30.0, "answer_timeout_s": 30.0, "idle_timeout_s": 30.0},
    "server": {"body_timeout_s": 0.4, "header_timeout_s": 0.4, "header_bytes": 4096},
    "limits": {"slots": 2},
}
EDGE = EdgeLimits(header_bytes=4096, header_timeout_s=0.4, send_timeout_s=0.4, max_connections=40)


@pytest.fixture(scope="module")
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="module")
async def pair(
    anyio_backend: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stand]:
    folder = tmp_path_factory.mktemp("callers")
    async with stand(folder, PATIENT, edge=EDGE) as running:
        yield running


@asynccontextmanager
async def connected(
    pair: Stand,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = pair.url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def leave(writer: asyncio.StreamWriter, *, abruptly: bool) -> None:
    if abruptly:
        writer.transport.abort()
    else:
        writer.close()


WAYS = pytest.mark.parametrize("abruptly", [False, True], ids=["closed", "reset"])
STREAMS = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


async def ended(pair: Stand, outcome: str, count: int = 1) -> None:
    """So many requests ended so, the engine's connections were closed, and it serves again."""
    await pair.at_rest()
    assert [line["outcome"] for line in pair.requests] == [outcome] * count
    await pair.serves_well()


# -- leaving -------------------------------------------------------------------------------


@WAYS
@STREAMS
async def test_a_caller_who_leaves_before_the_first_byte(
    pair: Stand, stream: bool, abruptly: bool
) -> None:
    pair.requests.clear()
    pair.engine.script = says_and_hangs()
    async with connected(pair) as (_, writer):
        writer.write(post(chat(stream=stream), pair.key))
        await eventually(lambda: pair.engine.at_work == 1)
        leave(writer, abruptly=abruptly)
        await ended(pair, "client_cancelled")


@WAYS
@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (True, STREAM_HEAD + chunk(STREAM_EVENTS[0])),
        (True, STREAM_HEAD + chunk(STREAM_EVENTS[0] + b"data: {")),
        (False, plain(b"x" * 1000)[:-500]),
    ],
    ids=["stream", "inside an event", "whole"],
)
async def test_a_caller_who_leaves_in_the_middle_of_the_answer(
    pair: Stand, stream: bool, said: bytes, abruptly: bool
) -> None:
    pair.requests.clear()
    pair.engine.script = says_and_hangs(said)
    async with connected(pair) as (reader, writer):
        writer.write(post(chat(stream=stream), pair.key))
        await eventually(lambda: pair.engine.at_work == 1)
        if stream:
            await reader.readuntil(b"\n\n")
        leave(writer, abruptly=abruptly)
        await ended(pair, "client_cancelled")


@WAYS
@STREAMS
async def test_a_caller_who_leaves_the_queue(pair: Stand, stream: bool, abruptly: bool) -> None:
    pair.requests.clear()
    pair.engine.script = says_and_hangs()
    seen = len(pair.engine.requests)
    async with connected(pair) as (_, holder), connected(pair) as (_, writer):
        holder.write(post(chat(n=2), pair.key))
        await eventually(lambda: pair.engine.at_work == 1)
        writer.write(post(chat(stream=stream), pair.key))
        await eventually(lambda: pair.gateway.parts.turnstile.waiting == 1)
        leave(writer, abruptly=abruptly)
        await eventually(lambda: pair.gateway.parts.turnstile.waiting == 0)
        leave(holder, abruptly=abruptly)
        await pair.at_rest()
    assert len(pair.engine.requests) == seen + 1
    await ended(pair, "client_cancelled", 2)


@WAYS
async def test_a_caller_who_leaves_while_the_prompt_is_counted(
    pair: Stand, abruptly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pair.gateway.setup.counting.pool
    work, counting, go = pool.work, asyncio.Event(), asyncio.Event()

    async def slow(size_bytes: int, job: Callable[[], Any], *rest: Any) -> Any:
        counting.set()
        await go.wait()
        return await work(size_bytes, job, *rest)

    pair.requests.clear()
    seen = len(pair.engine.requests)
    monkeypatch.setattr(pool, "at_once", lambda _: False)
    monkeypatch.setattr(pool, "work", slow)
    async with connected(pair) as (_, writer):
        writer.write(post(chat(), pair.key))
        await counting.wait()
        leave(writer, abruptly=abruptly)
        await asyncio.sleep(0.05)
        go.set()
        await pair.at_rest()
    monkeypatch.undo()
    assert len(pair.engine.requests) == seen
    await ended(pair, "client_cancelled")


@WAYS
async def test_a_caller_who_leaves_inside_its_body(pair: Stand, abruptly: bool) -> None:
    pair.requests.clear()
    async with connected(pair) as (_, writer):
        writer.write(post(chat("word " * 500), pair.key)[:-100])
        await eventually(lambda: len(pair.gateway.running) == 1)
        leave(writer, abruptly=abruptly)
        await ended(pair, "client_cancelled")


@STREAMS
async def test_a_caller_who_only_ends_its_sending_still_gets_the_answer(
    pair: Stand, stream: bool
) -> None:
    pair.requests.clear()
    go = asyncio.Event()

    async def held(peer: Peer) -> None:
        await go.wait()
        await good(peer)

    pair.engine.script = held
    async with connected(pair) as (reader, writer):
        writer.write(post(chat(stream=stream), pair.key))
        await eventually(lambda: pair.engine.at_work == 1)
        writer.write_eof()
        await asyncio.sleep(0.1)
        go.set()
        reply = await read_reply(reader)
    assert (reply.status, reply.cut) == (200, None)
    assert reply.body == (GOOD_STREAM if stream else GOOD_BODY)
    await ended(pair, "completed")


async def test_a_caller_who_ends_its_sending_inside_its_body_has_left(pair: Stand) -> None:
    pair.requests.clear()
    async with connected(pair) as (reader, writer):
        writer.write(post(chat("word " * 500), pair.key)[:-100])
        await eventually(lambda: len(pair.gateway.running) == 1)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        await ended(pair, "client_cancelled")


# -- slowness ------------------------------------------------------------------------------


FLOOD = event("word " * 800)


def floods(total_bytes: int, sent: list[int]) -> Script:
    """Write events as fast as they are taken, noting how much was."""

    async def script(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        part = chunk(FLOOD)
        while sum(sent) < total_bytes:
            await peer.send(part)
            sent.append(len(part))
        await peer.send(chunk(b"".join(STREAM_EVENTS[-2:])) + b"0\r\n\r\n")

    return script


MORE_THAN_SOCKETS_HOLD = 64 << 20


async def test_a_caller_who_stops_reading_stops_the_engine_and_is_cut_off(pair: Stand) -> None:
    pair.requests.clear()
    sent: list[int] = []
    pair.engine.script = floods(MORE_THAN_SOCKETS_HOLD, sent)
    async with connected(pair) as (reader, writer):
        writer.write(post(chat(stream=True), pair.key))
        await reader.readuntil(b"\n\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await ended(pair, "client_cancelled")
    assert sum(sent) < MORE_THAN_SOCKETS_HOLD / 2


async def test_a_caller_who_reads_slowly_gets_all_of_it(pair: Stand) -> None:
    pair.requests.clear()
    sent: list[int] = []
    pair.engine.script = floods(4 << 20, sent)
    received = asyncio.StreamReader()
    async with connected(pair) as (reader, writer):
        writer.write(post(chat(stream=True), pair.key))
        while data := await asyncio.wait_for(reader.read(1 << 16), 10):
            received.feed_data(data)
            await asyncio.sleep(0.001)
            if data.endswith(b"0\r\n\r\n"):
                break
    reply = await read_reply(received)
    assert reply.body == FLOOD * len(sent) + b"".join(STREAM_EVENTS[-2:])
    await ended(pair, "completed")


@pytest.mark.parametrize("part", [b"", b"{"], ids=["nothing", "a byte at a time"])
async def test_a_body_that_does_not_come_to_an_end(pair: Stand, part: bytes) -> None:
    pair.requests.clear()
    request = post(chat("word " * 500), pair.key)
    head, _, _ = request.partition(b"\r\n\r\n")
    async with connected(pair) as (reader, writer):
        writer.write(head + b"\r\n\r\n")
        dripping = asyncio.ensure_future(_drip(writer, part))
        reply = await read_reply(reader)
        dripping.cancel()
    assert (reply.status, reply.error()["code"]) == (400, "body_timeout")
    await ended(pair, "body_timeout")


async def _drip(writer: asyncio.StreamWriter, part: bytes) -> None:
    while True:
        writer.write(part)
        await asyncio.sleep(0.02)


async def test_a_head_a_byte_at_a_time_is_cut_off_and_a_flood_of_headers_refused(
    pair: Stand,
) -> None:
    pair.requests.clear()
    async with connected(pair) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nx: ")
        dripping = asyncio.ensure_future(_drip(writer, b"y"))
        with contextlib.suppress(ConnectionResetError):  # a byte was on its way: cut off as well
            assert await asyncio.wait_for(reader.read(), 5) == b""
        dripping.cancel()
    flood = b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x-a: b\r\n" * 2000
    reply = await ask(pair.url, flood)
    assert (reply.status, reply.error()["code"]) == (431, "headers_too_large")
    assert pair.requests == []
    await pair.serves_well()


async def test_connections_beyond_the_cap_are_turned_away_and_those_within_it_served(
    pair: Stand,
) -> None:
    """Idle ones are closed in time, and there is room again."""
    host, port = pair.url.removeprefix("http://").rsplit(":", 1)
    held = [await asyncio.open_connection(host, int(port)) for _ in range(60)]
    first_reader, first_writer = held[0]
    first_writer.write(post(chat(stream=True), pair.key))
    pair.engine.script = good
    assert (await read_reply(first_reader)).body == GOOD_STREAM
    refused = [await read_reply(reader) for reader, _ in held[41:]]
    assert {reply.error().get("code") for reply in refused} == {"ingress_full"}
    for reader, _ in held[1:40]:
        assert await asyncio.wait_for(reader.read(), 5) == b""
    for _, writer in held:
        writer.transport.abort()
    await pair.serves_well()


# -- all at once ---------------------------------------------------------------------------


@pytest.mark.slow
async def test_callers_who_leave_at_any_moment_leave_nothing(pair: Stand) -> None:
    """Streams and whole answers, of a slow engine, left after anything from 0 to 40 ms."""
    pair.requests.clear()

    async def paced(peer: Peer) -> None:
        stream = b'"stream":true' in peer.request
        await asyncio.sleep(0.01)
        if not stream:
            await good(peer)
            return
        await peer.send(STREAM_HEAD)
        for part in STREAM_EVENTS:
            await peer.send(chunk(part))
            await asyncio.sleep(0.005)
        await peer.send(b"0\r\n\r\n")

    async def come_and_go(number: int) -> None:
        async with connected(pair) as (_, writer):
            writer.write(post(chat(stream=number % 2 == 0), pair.key))
            await asyncio.sleep((number % 41) * 0.001)
            leave(writer, abruptly=number % 3 == 0)

    pair.engine.script = paced
    for start in range(0, 200, 20):
        await asyncio.gather(*(come_and_go(start + n) for n in range(20)))
    await pair.at_rest()
    assert {line["outcome"] for line in pair.requests} <= {"client_cancelled", "completed"}
    await pair.serves_well()
