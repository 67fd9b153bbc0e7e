"""Connections in hard cases: heads behind others, bodies whose framing breaks, what is left."""

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from gateway.callers import EdgeProtocol
from gateway.cycle import Cycle
from gateway.domain import Outcome, Refused
from gateway.edge import EdgeLimits, caller_ending, read_body
from gateway.lifetime import Ending
from tests.gateway.scripted import BACKEND, eventually
from tests.gateway.test_edge import GET, POST, Edge, echo, reply, served, status

SMALL = EdgeLimits(header_bytes=4096)
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
BROKEN = b"zz\r\n"


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def head(size_bytes: int) -> bytes:
    return b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * (size_bytes - 33) + b"\r\n\r\n"


# Heads behind other requests.


async def test_a_head_in_one_read_with_another_request_is_held_to_the_bound() -> None:
    async with served(limits=SMALL) as edge:
        with suppress(ConnectionError):
            await edge.ask(GET + head(5000))
        assert edge.refused == [Outcome.HEADERS_TOO_LARGE]
        assert all(len(scope["headers"]) == 1 for scope in edge.scopes)


@pytest.mark.parametrize("first_bytes", [1, 2000, 4000])
async def test_a_head_that_begins_in_the_read_of_another_is_held_to_the_bound(
    first_bytes: int,
) -> None:
    async with served(limits=SMALL) as edge:
        reader, writer = await edge.open()
        large = head(5000)
        writer.write(GET + large[:first_bytes])
        await reader.readuntil(b"empty")
        writer.write(large[first_bytes:])
        assert status(await reader.read(-1)) == 431
        assert (len(edge.scopes), edge.refused) == (1, [Outcome.HEADERS_TOO_LARGE])
        writer.close()


async def test_a_head_within_the_bound_passes_behind_whatever_is_before_it_in_a_read() -> None:
    async with served(limits=SMALL) as edge:
        reader, writer = await edge.open()
        before = POST + b"content-length: 20000\r\n\r\n" + b"z" * 20_000
        writer.write(before + head(4000)[:2000])
        await reader.readuntil(b"z" * 20_000)
        writer.write(head(4000)[2000:] + head(4000) + before + head(4000))
        for end in (b"empty", b"empty", b"z" * 20_000, b"empty"):
            assert (await reader.readuntil(end)).startswith(b"HTTP/1.1 200")
        assert edge.refused == []
        writer.close()


# Bodies whose framing breaks.


async def told(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the outcome that the body's reader is told."""
    try:
        await echo(scope, receive, send)
    except Refused as refused:
        await reply(send, refused.outcome.encode())


@pytest.mark.parametrize("apart", [False, True], ids=["one segment", "a later segment"])
@pytest.mark.parametrize("ends", [False, True], ids=["open", "half-closed"])
@pytest.mark.parametrize("rest", [BROKEN, b"2\r\nhi\r\n" + BROKEN], ids=["none", "a part"])
async def test_whoever_reads_a_body_whose_framing_breaks_is_told_and_answers_and_counts(
    rest: bytes, ends: bool, apart: bool
) -> None:
    async with served(told) as edge:
        reader, writer = await edge.open()
        writer.write(CHUNKED)
        if apart:
            await eventually(lambda: len(edge.scopes) == 1)
        writer.write(rest)
        if ends:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(-1), 10)
        assert answer.count(b"HTTP/1.1 200") == 1
        assert answer.endswith(b"connection: close\r\n\r\nbad_request")
        assert edge.refused == []
        writer.close()


@pytest.mark.parametrize("endless", [b"1;" + b"e" * 9000, b"0\r\nx: " + b"y" * 9000])
async def test_chunk_framing_without_end_is_refused(endless: bytes) -> None:
    async with served(told, SMALL) as edge:
        reader, writer = await edge.open()
        writer.write(CHUNKED)
        await eventually(lambda: len(edge.scopes) == 1)
        writer.write(endless)
        assert (await reader.read(-1)).endswith(b"headers_too_large")
        assert edge.refused == []
        writer.close()


async def test_an_application_that_reads_late_is_told_that_the_framing_broke() -> None:
    async def late(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.02)
        await told(scope, receive, send)

    async with served(late) as edge:
        assert (await edge.ask(CHUNKED + b"2\r\nhi\r\n" + BROKEN)).endswith(b"bad_request")
        assert edge.refused == []


async def test_framing_that_breaks_inside_the_answer_cuts_it_off_and_is_not_counted_again() -> None:
    async def early(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await caller_ending(scope).wait()

    async with served(early) as edge:
        reader, writer = await edge.open()
        writer.write(CHUNKED)
        await reader.readuntil(b"part")
        writer.write(BROKEN)
        with suppress(ConnectionError):
            assert b"HTTP" not in await reader.read(-1)
        assert (caller_ending(edge.scopes[0]).is_set(), edge.refused) == (True, [])
        writer.close()


async def test_framing_that_breaks_after_the_answer_gets_no_second_one() -> None:
    async def early(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, b"no")

    async with served(early) as edge:
        reader, writer = await edge.open()
        writer.write(CHUNKED)
        await reader.readuntil(b"no")
        writer.write(BROKEN)
        assert await reader.read(-1) == b""
        assert edge.refused == []
        writer.close()


async def test_framing_that_breaks_behind_another_request_is_counted_once() -> None:
    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await caller_ending(scope).wait()

    async with served(waits) as edge:
        with suppress(ConnectionError):
            assert await edge.ask(GET + CHUNKED + BROKEN) == b""
        assert (len(edge.scopes), edge.refused) == (1, [Outcome.BAD_REQUEST])


# What a closed connection leaves.


def living() -> Counter[str]:
    """Objects of callers' connections, whether reachable or only not collected yet."""
    kinds = (EdgeProtocol, Cycle, Ending)
    return Counter(type(found).__name__ for found in gc.get_objects() if isinstance(found, kinds))


@contextmanager
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def stays(scope: Any, receive: Any, send: Any) -> None:
    await read_body(receive, 1 << 20, 5.0)
    await caller_ending(scope).wait()


async def floods(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while not caller_ending(scope).is_set():
        await send({"type": "http.response.body", "body": b"z" * 65536, "more_body": True})
        await asyncio.sleep(0)


PIPELINED = POST + b"content-length: 20000\r\n\r\n" + b"a" * 20_000


@pytest.mark.parametrize(
    ("app", "data"),
    [
        (echo, b""),
        (echo, GET),
        (echo, GET * 3),
        (echo, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n" + GET),
        (echo, b"garbage\r\n\r\n"),
        (echo, POST + b"content-length: 9\r\n\r\nhi"),
        (told, CHUNKED + BROKEN),
        (stays, GET),
        (stays, GET + PIPELINED * 7),
        (stays, GET + CHUNKED + BROKEN),
        (floods, GET + PIPELINED),
    ],
    ids=[
        "nothing asked", "kept alive", "pipelined", "closed by the answer", "refused", "half a one",
        "broken body", "left", "left with bodies that never begin", "broken behind", "not reading",
    ],
)  # fmt: skip
async def test_a_connection_that_has_closed_leaves_nothing_for_the_collector(
    app: Any, data: bytes
) -> None:
    async with served(app) as edge:
        edge.scopes = Forgetful()
        await once(edge, GET if data == b"" else data)  # what is made once
        with uncollected():
            before = living()
            for _ in range(3):
                await once(edge, data)
            await eventually(lambda: living() == before)


class Forgetful(list[dict[str, Any]]):
    """Keeps nothing."""

    def append(self, item: dict[str, Any]) -> None:
        """Forget."""


async def once(edge: Edge, data: bytes) -> None:
    """Send ``data``, give it time to be taken, and leave."""
    _, writer = await edge.open()
    writer.write(data)
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.transport.abort()
    connections = edge.server.server_state.connections  # type: ignore[union-attr]
    await eventually(lambda: not connections)
