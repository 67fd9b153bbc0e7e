"""Arbitrary and half-valid bytes at the listener, beside a second parser that reads the same.

What reaches the application must be what h11 reads in the same bytes: the listener may refuse more,
but never pass on a request that two parsers understand differently. Whatever comes, the answer is
well-formed HTTP or the connection closes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import h11
import pytest
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain import Refused
from gateway.edge import ClientGone, EdgeLimits, read_body, uvicorn_config
from tests.e2e.harness import eventually
from tests.fuzz.depth import fuzz

LIMITS = EdgeLimits(header_bytes=4096, header_timeout_s=1.0)
ANSWER_S = 5.0
QUIET_S = 0.02


@dataclass(slots=True)
class Edge:
    """A served application that answers every request alike, and what has reached it."""

    port: int
    seen: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        try:
            body = await read_body(receive, 1 << 16, 1.0)
            self.seen.append((scope["method"].encode(), scope["raw_path"] + query, body))
        except (Refused, ClientGone):
            body = b""
        except BaseException as error:
            self.failed.append(error)
            raise
        start = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"2")],
        }
        await send(start)
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def served() -> AsyncIterator[Edge]:
    edge = Edge(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await edge.serve(scope, receive, send)

    server = uvicorn.Server(uvicorn_config(app, "127.0.0.1", 0, LIMITS))
    serving = asyncio.ensure_future(server._serve())
    await eventually(lambda: server.started)
    edge.port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield edge
    finally:
        server.should_exit = server.force_exit = True
        await serving


@pytest.fixture(scope="module")
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="module")
async def edge(anyio_backend: Any) -> AsyncIterator[Edge]:
    async with served() as running:
        yield running


# -- the second parser ---------------------------------------------------------------------


@dataclass(slots=True)
class Read:
    """What h11 makes of the bytes: whole requests, and whether it waits, fails or is through."""

    requests: list[tuple[bytes, bytes, bytes]]
    state: str


def read_by_h11(data: bytes) -> Read:
    found = Read([], "waits")
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    if data:
        parser.receive_data(data)
    try:
        while found.state == "waits":
            request = parser.next_event()
            if request is h11.NEED_DATA:
                return found
            body = _body(parser)
            if body is None:
                return found
            found.requests.append((request.method, request.target, body))
            _answered(parser, found)
    except h11.RemoteProtocolError:
        found.state = "fails"
    return found


def _body(parser: h11.Connection) -> bytes | None:
    body = b""
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            return None
        if isinstance(event, h11.EndOfMessage):
            return body
        body += bytes(event.data)


def _answered(parser: h11.Connection, found: Read) -> None:
    parser.send(h11.Response(status_code=400, headers=[("content-length", "0")]))
    parser.send(h11.EndOfMessage())
    if parser.our_state is h11.DONE and parser.their_state is h11.DONE:
        parser.start_next_cycle()
    else:
        found.state = "through"


# -- the caller ----------------------------------------------------------------------------


async def answers(edge: Edge, pieces: list[bytes], expected: Read) -> tuple[list[int], bool]:
    """Send the pieces; the statuses of the answers, and whether the edge closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    try:
        for piece in pieces:
            if writer.is_closing():
                break
            writer.write(piece)
            await asyncio.sleep(0)
        return await _collected(reader, expected)
    finally:
        writer.transport.abort()


async def _collected(reader: asyncio.StreamReader, expected: Read) -> tuple[list[int], bool]:
    parser, statuses = _fresh(), []
    while True:
        enough = len(statuses) >= len(expected.requests) and expected.state == "waits"
        try:
            data = await asyncio.wait_for(reader.read(65536), QUIET_S if enough else ANSWER_S)
        except TimeoutError:
            assert enough, (statuses, expected)
            assert parser.trailing_data[0] == b""
            return statuses, False
        except ConnectionError:
            return statuses, True
        if not data:
            return statuses, True
        parser.receive_data(data)
        parser = _take(parser, statuses)


def _fresh(rest: bytes = b"") -> h11.Connection:
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    if rest:
        parser.receive_data(rest)
    return parser


def _take(parser: h11.Connection, statuses: list[int]) -> h11.Connection:
    """Read what has come; h11 raises where it is no well-formed answer."""
    while (event := parser.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
        if isinstance(event, h11.Response):
            statuses.append(event.status_code)
        elif isinstance(event, h11.ConnectionClosed):
            break
        elif isinstance(event, h11.EndOfMessage):
            parser = _fresh(parser.trailing_data[0])
    return parser


# -- what is sent --------------------------------------------------------------------------

METHODS = st.sampled_from([b"GET", b"POST", b"get", b"PRI", b"OPTIONS", b"CONNECT", b"P\0ST", b""])
TARGETS = st.sampled_from(
    [
        b"/", b"/v1/chat/completions", b"*", b"http://a/v1", b"//a", b"/a b", b"/\x7f", b"/%2e%2e/",
        b"a", b"/?q=\xff", b"/#f", b"", b"/..;/", b"/\t",
    ]
)  # fmt: skip
VERSIONS = st.sampled_from(
    [b"HTTP/1.1"] * 6 + [b"HTTP/1.0", b"HTTP/2.0", b"http/1.1", b"HTTP/1.", b""]
)
LINES = st.sampled_from(
    [
        b"host: a", b"Host: b", b"content-length: 0", b"content-length: 2", b"Content-Length: 2",
        b"content-length: +2", b"content-length: 2, 2", b"content-length: 02",
        b"content-length: -1",
        b"content-length: 99999999999999999999", b"content-length:", b"content-length: 0x2",
        b"content-length: 2 2", b"content_length: 5", b"transfer-encoding: chunked",
        b"Transfer-Encoding: Chunked", b"transfer-encoding: chunked, chunked",
        b"transfer-encoding: identity", b"transfer-encoding: gzip, chunked",
        b"transfer-encoding : chunked", b" transfer-encoding: chunked",
        b"transfer-encoding:\x0bchunked",
        b"transfer-encoding: xchunked", b"transfer-encoding: chunked;q=1", b"transfer-encoding:",
        b"x: a\0b", b"x: \xff", b"x:\ty", b": no name", b"no colon", b"x\xe9: y",
        b"connection: close",
        b"connection: keep-alive", b"connection: upgrade\r\nupgrade: websocket",
        b"expect: 100-continue",
        b"expect: nonsense", b"upgrade: h2c", b"te: trailers", b"x: " + b"y" * 5000,
    ]
)  # fmt: skip
ENDS = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r", b"\r\r\n", b"\n\r\n"])
BODIES = st.sampled_from(
    [
        b"", b"hi", b"hi there", b"2\r\nhi\r\n0\r\n\r\n", b"2;x=y\r\nhi\r\n0\r\nt: u\r\n\r\n",
        b"2\nhi\n0\n\n", b"0002\r\nhi\r\n0\r\n\r\n", b"2 \r\nhi\r\n0\r\n\r\n",
        b"0x2\r\nhi\r\n0\r\n\r\n",
        b"-2\r\nhi\r\n0\r\n\r\n", b"2\r\nhiX0\r\n\r\n", b"ffffffffffffffffff\r\nhi", b"0\r\n\r\n",
        b"2\r\nhi\r\n0\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", b"\r\n", b"2\r\nhi\r\n0\r\n\rX\n\r\n",
        b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n",
    ]
)  # fmt: skip
SOUND = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST /p?q=1 HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
        b"POST /c HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ]
)


@st.composite
def built(draw: st.DrawFn) -> bytes:
    """A request put together from sound and unsound parts."""
    start = b" ".join([draw(METHODS), draw(TARGETS), draw(VERSIONS)])
    lines = draw(st.lists(LINES, min_size=1, max_size=5))
    head = b"".join(line + draw(ENDS) for line in (start, *lines, b""))
    return head + draw(BODIES)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """One or more sound requests, with a few bytes changed, lost or said twice."""
    data = bytearray(b"".join(draw(st.lists(SOUND, min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["insert", "delete", "repeat", "set"]))
        if kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=3))
        elif kind == "delete":
            del data[at : at + draw(st.integers(1, 8))]
        elif kind == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
        else:
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
    return bytes(data)


SENT = st.one_of(built(), mutated(), st.binary(max_size=200))
CUTS = st.lists(st.integers(0, 400), max_size=4)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    return [data[a:b] for a, b in pairwise(places)]


@given(data=SENT, cuts=CUTS)
@fuzz(800)
@example(
    data=b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n\r\nGET / HTTP/1.1\r\n", cuts=[]
)
async def test_what_reaches_the_application_is_what_a_second_parser_reads(
    edge: Edge, data: bytes, cuts: list[int]
) -> None:
    expected = read_by_h11(data)
    edge.seen.clear()
    statuses, closed = await answers(edge, pieces(data, cuts), expected)
    seen = list(edge.seen)
    assert edge.failed == []
    assert seen == expected.requests[: len(seen)]
    assert all(status in {200, 400, 413, 431} for status in statuses), statuses
    assert closed or expected.state == "waits"
