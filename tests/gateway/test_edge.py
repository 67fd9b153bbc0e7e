import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from gateway.domain import Outcome, Refused
from gateway.edge import ClientGone, EdgeLimits, caller_ending, read_body, uvicorn_config
from gateway.lifetime import Ending
from gateway.serve import ADMIN_LIMITS
from tests.gateway.scripted import BACKEND, eventually

App = Callable[[Any, Any, Any], Awaitable[None]]
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: a\r\n"


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


@dataclass
class Edge:
    """A served application, and what the edge refused."""

    port: int = 0
    refused: list[Outcome] = field(default_factory=list)
    scopes: list[dict[str, Any]] = field(default_factory=list)
    server: uvicorn.Server | None = None

    async def ask(self, data: bytes) -> bytes:
        """Send ``data`` and read until the edge closes."""
        reader, writer = await self.open()
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(-1), 10)
        finally:
            writer.close()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = await read_body(receive, 1 << 20, 5.0)
    await reply(send, body or b"empty")


async def reply(send: Any, body: bytes, close: bool = False) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def served(app: App = echo, limits: EdgeLimits | None = None) -> AsyncIterator[Edge]:
    edge = Edge()

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            edge.scopes.append(scope)
            await app(scope, receive, send)

    config = uvicorn_config(noting, "127.0.0.1", 0, limits or EdgeLimits(), edge.refused.append)
    config.lifespan = "off"
    server = edge.server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    edge.port = listener.getsockname()[1]
    task = asyncio.ensure_future(server._serve([listener]))
    await eventually(lambda: server.started)
    try:
        yield edge
    finally:
        server.should_exit = server.force_exit = True
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await task
        listener.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_a_plain_request_reaches_the_application_and_its_answer_the_caller() -> None:
    async with served() as edge:
        head = b"POST /v1/x?q=1 HTTP/1.1\r\nhost: a\r\nConnection: close\r\n"
        data = head + b"content-length: 2\r\n\r\nhi"
        assert await edge.ask(data) == (
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
        )
        assert edge.scopes[0]["path"] == "/v1/x"
        assert edge.scopes[0]["query_string"] == b"q=1"
        assert edge.refused == []


async def test_requests_that_follow_each_other_share_a_connection() -> None:
    async with served() as edge:
        reader, writer = await edge.open()
        for _ in range(3):
            writer.write(GET)
            assert (await reader.readuntil(b"empty")).startswith(b"HTTP/1.1 200")
        writer.write(GET * 3)
        for _ in range(3):
            await reader.readuntil(b"empty")
        writer.close()


async def test_a_head_and_a_chunked_body_in_single_bytes_are_understood() -> None:
    data = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    async with served() as edge:
        reader, writer = await edge.open()
        for byte in data:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_head_that_is_too_large_is_refused_with_431() -> None:
    limits = EdgeLimits(header_bytes=4096)
    async with served(limits=limits) as edge:
        for filler in (b"x: " + b"y" * 5000, b"\r\n".join([b"a: b"] * 1200)):
            answer = await edge.ask(b"GET / HTTP/1.1\r\nhost: a\r\n" + filler + b"\r\n\r\n")
            assert (status(answer), b'"code":"headers_too_large"' in answer) == (431, True)
        answer = await edge.ask(b"GET /" + b"p" * 5000 + b" HTTP/1.1\r\nhost: a\r\n\r\n")
        assert status(answer) == 431
        assert edge.refused == [Outcome.HEADERS_TOO_LARGE] * 3
        assert edge.scopes == []


async def test_a_head_without_end_is_refused_before_it_is_whole() -> None:
    async with served(limits=EdgeLimits(header_bytes=4096)) as edge:
        answer = await edge.ask(b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 5000)
        assert status(answer) == 431


async def test_a_head_just_within_the_bound_passes() -> None:
    async with served(limits=EdgeLimits(header_bytes=4096)) as edge:
        head = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx: " + b"y" * 3900 + b"\r\n\r\n"
        assert status(await edge.ask(head)) == 200


@pytest.mark.parametrize("part", [b"", b"G", b"GET / HTTP/1.1\r\nhost: a\r\n"])
async def test_a_head_that_does_not_come_in_time_closes_the_connection(part: bytes) -> None:
    async with served(limits=EdgeLimits(header_timeout_s=0.1)) as edge:
        assert await edge.ask(part) == b""
        assert edge.refused == [Outcome.HEADER_TIMEOUT]


async def test_bytes_that_trickle_do_not_extend_the_time_for_a_head() -> None:
    async with served(limits=EdgeLimits(header_timeout_s=0.15)) as edge:
        reader, writer = await edge.open()
        writer.write(GET)
        await reader.readuntil(b"empty")

        async def trickle() -> None:
            writer.write(b"GET / HTTP/1.1\r\n")
            while True:
                writer.write(b"a: b\r\n")
                await asyncio.sleep(0.01)

        trickling = asyncio.ensure_future(trickle())
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(-1), 5) == b""
        trickling.cancel()
        assert edge.refused == [Outcome.HEADER_TIMEOUT]
        writer.close()


async def test_a_long_answer_is_not_a_late_head() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.25)
        await reply(send, b"late", close=True)

    async with served(slow, EdgeLimits(header_timeout_s=0.05)) as edge:
        assert (await edge.ask(GET)).endswith(b"late")


@pytest.mark.parametrize(
    "head",
    [
        POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: identity\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        POST + b"content-length: 1\r\ncontent-length: 1\r\n\r\nx",
        POST + b"content-length: -1\r\n\r\n",
        b"GET http://other/ HTTP/1.1\r\nhost: a\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        POST + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 1\r\n\r\nx",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/2.0\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx: \x00\r\n\r\n",
        b"GET / HTTP/1.1\nhost: a\n\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_two_readers_could_read_differently_is_refused(head: bytes) -> None:
    async with served() as edge:
        answer = await edge.ask(head)
        assert (status(answer), b'"code":"bad_request"' in answer) == (400, True)
        assert b"connection: close" in answer
        assert edge.scopes == []
        assert edge.refused == [Outcome.BAD_REQUEST]


async def test_trailers_do_not_become_headers() -> None:
    seen = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await echo(scope, receive, send)
        seen.set()

    async with served(app) as edge:
        reader, writer = await edge.open()
        writer.write(
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
            b"2\r\nhi\r\n0\r\nauthorization: Bearer x\r\n\r\n"
        )
        await reader.readuntil(b"hi")
        await seen.wait()
        assert [name for name, _ in edge.scopes[0]["headers"]] == [b"host", b"transfer-encoding"]
        writer.close()


async def test_a_bad_request_behind_a_good_one_never_mixes_into_its_answer() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await asyncio.sleep(0.1)
        await send({"type": "http.response.body", "body": b"rest", "more_body": False})

    async with served(slow) as edge:
        reader, writer = await edge.open()
        writer.write(GET)
        await reader.readuntil(b"part")
        writer.write(b"garbage\r\n\r\n")
        try:
            rest = await reader.read(-1)
        except ConnectionError:
            rest = b""
        assert b"HTTP" not in rest
        writer.close()


async def test_connections_over_the_cap_are_told_so_and_the_others_live() -> None:
    async with served(limits=EdgeLimits(max_connections=2)) as edge:
        held = [await edge.open() for _ in range(2)]
        await eventually(lambda: len(edge.server.server_state.connections) == 2)  # type: ignore[union-attr]
        answer = await edge.ask(GET)
        assert (status(answer), b'"code":"ingress_full"' in answer) == (429, True)
        assert b"retry-after" in answer
        assert edge.refused == [Outcome.INGRESS_FULL]
        held[0][1].write(GET)
        assert (await held[0][0].readuntil(b"empty")).startswith(b"HTTP/1.1 200")
        held[1][1].close()
        await eventually(lambda: len(edge.server.server_state.connections) == 1)  # type: ignore[union-attr]
        assert status(await edge.ask(GET.replace(b"host", b"connection: close\r\nhost"))) == 200
        held[0][1].close()


async def test_a_caller_that_does_not_read_is_dropped_and_the_application_is_told() -> None:
    told = asyncio.Event()

    async def flood(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive, 10, 5.0)
        ending = caller_ending(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not ending.is_set():
            await send({"type": "http.response.body", "body": b"z" * 65536, "more_body": True})
            await asyncio.sleep(0)
        assert ending.outcome is Outcome.CLIENT_CANCELLED
        told.set()

    async with served(flood, EdgeLimits(send_timeout_s=0.1)) as edge:
        _, writer = await edge.open()
        writer.write(GET)
        await asyncio.wait_for(told.wait(), 10)
        writer.close()


async def test_a_slow_caller_that_does_read_is_not_dropped() -> None:
    size = 48 << 20

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, b"z" * size, close=True)

    async with served(large, EdgeLimits(send_timeout_s=0.25)) as edge:
        reader, writer = await edge.open()
        writer.write(GET)
        received = 0
        while data := await reader.read(256 * 1024):
            received += len(data)
            await asyncio.sleep(0.005)
        assert received > size
        writer.close()
        await writer.wait_closed()


async def test_a_caller_that_goes_on_sending_after_its_answer_is_cut_off() -> None:
    async def early(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, b"no")

    async with served(early, EdgeLimits(header_timeout_s=0.1)) as edge:
        reader, writer = await edge.open()
        writer.write(POST + b"content-length: 1000000\r\n\r\n")
        await reader.readuntil(b"no")

        async def trickle() -> None:
            while True:
                writer.write(b"z")
                await asyncio.sleep(0.01)

        trickling = asyncio.ensure_future(trickle())
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(-1), 5) == b""
        trickling.cancel()
        writer.close()


async def test_a_caller_that_leaves_sets_the_ending() -> None:
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive, 10, 5.0)
        ending = caller_ending(scope)
        await ending.wait()
        assert ending.outcome is Outcome.CLIENT_CANCELLED
        ended.set()

    async with served(app) as edge:
        _, writer = await edge.open()
        writer.write(GET)
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_head_and_what_follows_it_leave_in_one_piece_and_a_head_alone_leaves_at_once() -> (
    None
):
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await go.wait()
        await send({"type": "http.response.body", "body": b"hi"})

    async with served(app) as edge:
        reader, writer = await edge.open()
        writer.write(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        go.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"2\r\nhi\r\n0\r\n\r\n"
        writer.close()


# read_body, against a scripted receive.


def receiving(*messages: Any) -> Callable[[], Awaitable[Any]]:
    queue = list(messages)

    async def receive() -> Any:
        if not queue:
            await asyncio.Event().wait()
        return queue.pop(0)

    return receive


def part(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_parts_is_joined_and_each_part_is_accounted_for() -> None:
    sizes: list[int] = []
    receive = receiving(part(b"ab"), part(b""), part(b"cde", more=False))
    assert await read_body(receive, 5, 5.0, sizes.append) == b"abcde"
    assert sizes == [2, 0, 3]


async def test_a_body_one_byte_too_long_is_refused_before_it_is_accounted_for() -> None:
    sizes: list[int] = []
    with pytest.raises(Refused, match="larger than 4 bytes") as refused:
        await read_body(receiving(part(b"abc"), part(b"de")), 4, 5.0, sizes.append)
    assert (refused.value.outcome, sizes) == (Outcome.BODY_TOO_LARGE, [3])


async def test_a_body_that_does_not_come_in_time_is_refused() -> None:
    with pytest.raises(Refused, match=r"within 0\.02 s") as refused:
        await read_body(receiving(part(b"abc")), 10, 0.02)
    assert refused.value.outcome is Outcome.BODY_TIMEOUT


async def test_a_caller_that_leaves_within_its_body_is_gone() -> None:
    with pytest.raises(ClientGone):
        await read_body(receiving(part(b"abc"), {"type": "http.disconnect"}), 10, 5.0)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("outcome", "raised"),
    [(Outcome.DRAIN_TERMINATED, Refused), (Outcome.CLIENT_CANCELLED, ClientGone)],
)
async def test_a_body_that_still_comes_is_read_no_further_once_its_request_must_end(
    outcome: Outcome, raised: type[Exception], before: bool
) -> None:
    ending = Ending()
    if before:
        ending.set(outcome)
    reading = asyncio.ensure_future(
        read_body(receiving(part(b"abc")), 10, 600.0, None, None, ending)
    )
    await asyncio.sleep(0)
    ending.set(outcome)
    with pytest.raises(raised) as ended:
        await asyncio.wait_for(reading, 10)
    assert getattr(ended.value, "outcome", None) in {Outcome.DRAINING, None}


async def test_an_ending_in_the_moment_of_the_time_limit_harms_nobody() -> None:
    ending = Ending()
    reading = asyncio.ensure_future(read_body(receiving(part(b"abc")), 10, 0.0, None, None, ending))
    for _ in range(4):
        await asyncio.sleep(0)
        ending.set(Outcome.DRAIN_TERMINATED)
    with pytest.raises(Refused):
        await reading


async def test_a_body_that_is_there_is_taken_in_the_same_bounds() -> None:
    sizes: list[int] = []
    assert await read_body(receiving(), 3, 5.0, sizes.append, lambda: b"abc") == b"abc"
    with pytest.raises(Refused, match="larger than 2 bytes"):
        await read_body(receiving(), 2, 5.0, sizes.append, lambda: b"abc")
    received = receiving(part(b"xyz", more=False))
    assert await read_body(received, 3, 5.0, sizes.append, lambda: None) == b"xyz"
    assert sizes == [3, 3]


async def test_whoever_accounts_for_the_bytes_may_refuse_them() -> None:
    def full(size: int) -> None:
        raise Refused(Outcome.INGRESS_FULL, "full")

    with pytest.raises(Refused, match="full"):
        await read_body(receiving(part(b"abc", more=False)), 10, 5.0, full)


async def test_a_caller_that_leaves_ends_its_pipelined_requests_too() -> None:
    endings: list[Ending] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        endings.append(caller_ending(scope))
        await endings[-1].wait()
        await reply(send, b"too late")

    async with served(app) as edge:
        _, writer = await edge.open()
        writer.write(GET + GET)
        await eventually(lambda: len(endings) == 1)
        writer.close()
        await eventually(endings[0].is_set)


async def test_a_length_of_thousands_of_digits_is_not_well_framed() -> None:
    async with served(echo) as edge:
        length = b"0" * 5000 + b"2"
        assert status(await edge.ask(POST + b"content-length: " + length + b"\r\n\r\nhi")) == 400


async def test_a_large_body_in_the_pipeline_does_not_hide_that_the_caller_left() -> None:
    endings: list[Ending] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        endings.append(caller_ending(scope))
        await endings[-1].wait()

    async with served(app) as edge:
        _, writer = await edge.open()
        writer.write(GET)
        await eventually(lambda: len(endings) == 1)
        writer.write(POST + b"content-length: 400000\r\n\r\n" + b"z" * 200_000)
        await eventually(endings[0].is_set)
        writer.close()


# Callers of other kinds.


async def test_a_caller_of_http_1_0_gets_a_body_that_ends_with_the_connection() -> None:
    async def parts(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await send({"type": "http.response.body", "body": b"two", "more_body": False})

    async with served(parts) as edge:
        assert await edge.ask(b"GET / HTTP/1.0\r\n\r\n") == (
            b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\none two"
        )
    async with served() as edge:
        answer = await edge.ask(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        assert b"content-length: 5\r\n" in answer
        assert answer.endswith(b"\r\n\r\nempty")


async def test_a_head_request_gets_no_body_and_the_connection_lives_on() -> None:
    async with served() as edge:
        reader, writer = await edge.open()
        writer.write(GET.replace(b"GET", b"HEAD") + GET)
        both = await reader.readuntil(b"empty")
        assert both.count(b"HTTP/1.1 200 OK\r\n") == 2
        writer.close()


async def test_a_caller_that_waits_for_leave_to_send_its_body_gets_it() -> None:
    async with served() as edge:
        reader, writer = await edge.open()
        writer.write(POST + b"content-length: 2\r\nexpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_target_with_a_fragment_is_refused() -> None:
    async with served() as edge:
        assert status(await edge.ask(b"GET /v1/models#f HTTP/1.1\r\nhost: a\r\n\r\n")) == 400
        assert edge.scopes == []


async def test_one_address_may_not_take_all_connections() -> None:
    async with served(limits=EdgeLimits(max_connections_per_address=1)) as edge:
        held = await edge.open()
        await eventually(lambda: len(edge.server.server_state.connections) == 1)  # type: ignore[union-attr]
        assert b'"code":"ingress_full"' in await edge.ask(GET)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", edge.port, local_addr=("127.0.0.2", 0)
        )
        writer.write(GET)
        assert (await reader.readuntil(b"empty")).startswith(b"HTTP/1.1 200")
        writer.close()
        held[1].close()
        await eventually(lambda: len(edge.server.server_state.connections) == 0)  # type: ignore[union-attr]
        assert (await edge.ask(GET.replace(b"host", b"connection: close\r\nhost"))).endswith(
            b"empty"
        )


async def test_one_address_may_not_keep_operators_elsewhere_out() -> None:
    async with served(limits=ADMIN_LIMITS) as edge:
        held = [await edge.open() for _ in range(ADMIN_LIMITS.max_connections_per_address)]
        connections = edge.server.server_state.connections  # type: ignore[union-attr]
        await eventually(lambda: len(connections) == len(held))
        assert b'"code":"ingress_full"' in await edge.ask(GET)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", edge.port, local_addr=("127.0.0.2", 0)
        )
        writer.write(GET)
        assert (await reader.readuntil(b"empty")).startswith(b"HTTP/1.1 200")
        for _, open_writer in (*held, (reader, writer)):
            open_writer.close()


@pytest.mark.parametrize("begun", [False, True])
async def test_a_caller_that_ends_its_sending_still_gets_its_answer(begun: bool) -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive, 10, 5.0)
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await go.wait()
        assert not caller_ending(scope).is_set()
        if not begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"two", "more_body": False})

    async with served(app) as edge:
        reader, writer = await edge.open()
        writer.write(GET)
        await eventually(lambda: len(edge.scopes) == 1)
        writer.write_eof()
        await asyncio.sleep(0.05)
        go.set()
        answer = await reader.read(-1)
        head, _, body = answer.partition(b"\r\ntransfer-encoding: chunked\r\n\r\n")
        assert head.count(b"HTTP/1.1 200 OK") == 1
        assert set(head.split(b"HTTP/1.1 200 OK")[0].split(b"\r\n")) <= {
            b"",
            b"HTTP/1.1 100 Continue",
        }
        assert dechunked(body) == (b"one two" if begun else b"two")
        writer.close()


def dechunked(body: bytes) -> bytes:
    whole, size = b"", 1
    while size:
        line, _, body = body.partition(b"\r\n")
        size = int(line, 16)
        whole, body = whole + body[:size], body[size + 2 :]
    assert body == b""
    return whole


@pytest.mark.parametrize("begun", [False, True])
async def test_a_caller_that_ended_its_sending_and_then_leaves_is_noticed(begun: bool) -> None:
    endings: list[Ending] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive, 10, 5.0)
        endings.append(caller_ending(scope))
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await endings[0].wait()

    async with served(app) as edge:
        _, writer = await edge.open()
        writer.write(GET)
        await eventually(lambda: len(endings) == 1)
        writer.write_eof()
        await asyncio.sleep(0.05)
        assert not endings[0].is_set()
        writer.close()
        await eventually(endings[0].is_set)


async def test_over_a_unix_socket_a_caller_that_sends_no_more_gets_its_answer_too(
    tmp_path: Path,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.05)
        await echo(scope, receive, send)

    config = uvicorn_config(app, "127.0.0.1", 0, EdgeLimits())
    config.load()
    make: Any = config.http_protocol_class
    state = uvicorn.server.ServerState()
    path = str(tmp_path / "edge")
    loop = asyncio.get_running_loop()
    async with await loop.create_unix_server(lambda: make(config=config, server_state=state), path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET)
        writer.write_eof()
        assert (await reader.read(-1)).endswith(b"empty")
        writer.close()


async def test_half_a_request_and_the_end_of_sending_is_a_departure() -> None:
    async with served() as edge:
        reader, writer = await edge.open()
        writer.write(POST + b"content-length: 5\r\n\r\nhi")
        await eventually(lambda: len(edge.scopes) == 1)
        writer.write_eof()
        assert await reader.read(-1) == b""
        assert caller_ending(edge.scopes[0]).is_set()
        writer.close()


@pytest.mark.parametrize(
    "headers", [[(b"x a", b"1")], [(b"x", b"a\r\nb: c")], [(b"x\r\ny", b"1")], [(b"x", b"\x00")]]
)
async def test_a_header_that_would_split_the_answer_is_never_sent(headers: Any) -> None:
    faults: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(str(context["exception"])))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async with served(app) as edge:
        answer = await edge.ask(GET)
        assert b"HTTP/1.1 200" not in answer
        assert b"b: c" not in answer
    loop.set_exception_handler(None)
    assert faults == ["the answer has a header that may not be sent"]


async def test_an_application_that_fails_before_its_answer_is_a_500_and_the_fault_is_told() -> None:
    faults: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("secret")

    async with served(app) as edge:
        answer = await edge.ask(GET)
        assert (status(answer), b"secret" in answer) == (500, False)
    loop.set_exception_handler(None)
    assert [type(fault) for fault in faults] == [LookupError]


async def test_an_answer_shorter_than_it_says_is_cut_off() -> None:
    faults: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        head = [(b"content-length", b"5")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b"four"})

    async with served(app) as edge:
        assert not (await edge.ask(GET)).endswith(b"four")
    loop.set_exception_handler(None)
    assert len(faults) == 1
