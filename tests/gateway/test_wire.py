import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from gateway.wire import (
    BUFFER_BYTES,
    READ_BYTES,
    BadResponse,
    ConnectFailed,
    Disconnected,
    EngineClient,
    Exchange,
    Origin,
    TimedOut,
    WireError,
)
from tests.gateway.scripted import BACKEND, Peer, chunk, eventually, plain, scripted_engine

HEADERS = [(b"content-type", b"application/json")]


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def fetch(client: EngineClient, body: bytes = b"{}", method: bytes = b"POST") -> bytes:
    exchange = client.exchange(method, b"/v1/x", HEADERS, body)
    try:
        await exchange.start()
        return await read_all(exchange)
    finally:
        exchange.close()


async def read_all(exchange: Exchange) -> bytes:
    parts = []
    while data := await exchange.read():
        parts.append(data)
    return b"".join(parts)


async def test_a_request_arrives_as_it_was_given_and_the_answer_comes_back() -> None:
    async def script(peer: Peer) -> None:
        assert await peer.request() == (
            b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
            b"content-length: 2\r\n\r\n{}" % engine.port
        )
        await peer.send(plain(b"yes", b"201 Created", b"Server: s\r\nX-A: 1\r\n"))

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        exchange = client.exchange(b"POST", b"/v1/x", HEADERS, b"{}")
        await exchange.start()
        assert (exchange.status, exchange.headers) == (201, [(b"server", b"s"), (b"x-a", b"1")])
        assert await read_all(exchange) == b"yes"
        assert await exchange.read() == b""


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
@pytest.mark.parametrize(
    "answer",
    [
        plain(b"hello world"),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunk(b"hello")
        + chunk(b" world")
        + b"0\r\nx: y\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + plain(b"hello world"),
    ],
)
async def test_an_answer_in_pieces_of_any_size_is_the_same_answer(answer: bytes, size: int) -> None:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send_split(answer, size)

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        for _ in range(3):
            assert await fetch(client) == b"hello world"
        assert engine.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"hello world"),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"hello") + b"0\r\n\r\n",
    ],
)
async def test_a_connection_cut_after_any_byte_is_an_error_and_never_a_short_answer(
    answer: bytes,
) -> None:
    async def script(peer: Peer) -> None:
        length = engine.connections - 1
        await peer.request()
        await peer.send(answer[:length])
        if length % 2:
            await asyncio.sleep(0.002)
            peer.reset()

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        for _ in range(len(answer)):
            with pytest.raises(Disconnected):
                await fetch(client)
        assert engine.connections == len(answer)


async def test_a_body_may_end_with_its_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        assert await fetch(client) == b"all of it"
        assert client.idle == 0


async def test_garbage_is_a_bad_response_and_closes_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"+OK redis\r\n")
        await peer.closed()

    async with scripted_engine(script) as engine:
        with pytest.raises(BadResponse):
            await fetch(EngineClient(engine.url))


async def test_answers_without_a_body_leave_the_connection_usable() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        await peer.request()
        await peer.send(plain(b"next"))

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        assert [await fetch(client), await fetch(client)] == [b"", b"next"]
        assert engine.connections == 1


async def test_the_answer_to_head_is_its_head() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
        await peer.closed()

    async with scripted_engine(script) as engine:
        assert await fetch(EngineClient(engine.url), b"", b"HEAD") == b""


async def always_ok(peer: Peer) -> None:
    while True:
        await peer.request()
        await peer.send(plain(b"ok"))


async def test_one_connection_serves_requests_that_follow_each_other() -> None:
    async with scripted_engine(always_ok) as engine:
        client = EngineClient(engine.url)
        for _ in range(5):
            await fetch(client)
        assert (engine.connections, repr(client)) == (
            1,
            f"<EngineClient 127.0.0.1:{engine.port} 1 idle>",
        )


async def test_the_pool_keeps_no_more_than_its_share() -> None:
    async with scripted_engine(always_ok) as engine:
        client = EngineClient(engine.url, max_idle=2)
        await asyncio.gather(*(fetch(client) for _ in range(6)))
        assert (engine.connections, client.idle) == (6, 2)


async def test_a_connection_idle_for_too_long_is_not_used_again() -> None:
    async with scripted_engine(always_ok) as engine:
        client = EngineClient(engine.url, keepalive_s=0.02)
        await fetch(client)
        await asyncio.sleep(0.03)
        await fetch(client)
        assert engine.connections == 2


async def test_an_idle_connection_that_the_engine_closes_leaves_the_pool() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain(b"ok"))

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        await fetch(client)
        await eventually(lambda: client.idle == 0)


async def test_a_closed_client_keeps_no_connection() -> None:
    async with scripted_engine(always_ok) as engine:
        client = EngineClient(engine.url)
        await fetch(client)
        client.close()
        assert client.idle == 0
        await fetch(client)
        assert (client.idle, "closed" in repr(client)) == (0, True)


async def test_a_reused_connection_that_fails_before_any_byte_is_replaced_once() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain(b"ok"))
        await peer.request()  # and closes: the engine's keep-alive ended as the request came

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        assert [await fetch(client), await fetch(client)] == [b"ok", b"ok"]
        assert engine.connections == 2


async def test_a_request_is_never_sent_a_third_time() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if engine.connections == 1:
            await peer.send(plain(b"ok"))
            await peer.request()

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        await fetch(client)
        with pytest.raises(Disconnected):
            await fetch(client)
        assert engine.connections == 2


async def test_a_fresh_connection_that_fails_is_not_replaced() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()

    async with scripted_engine(script) as engine:
        with pytest.raises(Disconnected):
            await fetch(EngineClient(engine.url))
        assert engine.connections == 1


async def test_a_reused_connection_that_has_begun_to_answer_is_not_replaced() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain(b"ok"))
        await peer.request()
        await peer.send(b"H")

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        await fetch(client)
        with pytest.raises(Disconnected):
            await fetch(client)
        assert engine.connections == 1


@pytest.mark.parametrize("reason", [TimedOut("late"), Disconnected("ended from outside")])
async def test_an_abort_on_a_reused_connection_is_no_reason_to_send_again(
    reason: WireError,
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain(b"ok"))
        await peer.request()
        exchange.abort(reason)
        await peer.closed()

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        exchange = client.exchange(b"POST", b"/", HEADERS, b"{}")
        await fetch(client)
        with pytest.raises(type(reason)):
            await exchange.start()
        assert engine.connections == 1


async def test_a_refused_connection_is_told_apart() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ConnectFailed, match=f"127.0.0.1:{port}"):
            await fetch(EngineClient(f"http://127.0.0.1:{port}"))


async def test_a_connection_that_does_not_come_about_in_time_is_given_up() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        origin = f"http://127.0.0.1:{full.getsockname()[1]}"
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        with pytest.raises(ConnectFailed, match=r"no connection in 0\.05 s"):
            await fetch(EngineClient(origin, connect_timeout_s=0.05))
        for filler in fillers:
            filler.close()


async def test_tcp_delays_nothing() -> None:
    async with scripted_engine(always_ok) as engine:
        client = EngineClient(engine.url)
        await fetch(client)
        raw = client._idle[0]._transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def wait_for_head(peer: Peer, seen: asyncio.Event) -> None:
    await peer.request()
    seen.set()
    await peer.closed()


@pytest.mark.parametrize(
    "leave",
    [Exchange.close, lambda exchange: exchange.abort(TimedOut("late"))],
    ids=["close", "abort"],
)
async def test_giving_up_while_waiting_for_the_head_closes_the_connection(
    leave: Callable[[Exchange], None],
) -> None:
    seen, gone = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await wait_for_head(peer, seen)
        gone.set()

    async with scripted_engine(script) as engine:
        exchange = EngineClient(engine.url).exchange(b"POST", b"/", HEADERS, b"{}")
        start = asyncio.ensure_future(exchange.start())
        await seen.wait()
        leave(exchange)
        await asyncio.wait_for(gone.wait(), 5)
        start.cancel()
        with pytest.raises((asyncio.CancelledError, TimedOut)):
            await start


async def test_giving_up_in_the_middle_of_a_body_closes_the_connection() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart")
        await peer.closed()
        gone.set()

    async with scripted_engine(script) as engine:
        exchange = EngineClient(engine.url).exchange(b"POST", b"/", HEADERS, b"{}")
        await exchange.start()
        assert await exchange.read() == b"part"
        exchange.close()
        await asyncio.wait_for(gone.wait(), 5)
        with pytest.raises(WireError):
            await exchange.read()


async def test_an_abort_wakes_the_reader_with_its_reason() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
        await peer.closed()

    async with scripted_engine(script) as engine:
        exchange = EngineClient(engine.url).exchange(b"POST", b"/", HEADERS, b"{}")
        await exchange.start()
        reading = asyncio.ensure_future(exchange.read())
        await asyncio.sleep(0)
        exchange.abort(TimedOut("idle"))
        with pytest.raises(TimedOut, match="idle"):
            await reading
        exchange.abort(TimedOut("again"))
        with pytest.raises(TimedOut, match="idle"):
            await exchange.read()


async def test_an_abort_while_connecting_leaves_no_connection_behind() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.closed()
        gone.set()

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        for turns in range(8):
            gone.clear()
            before = engine.connections
            exchange = client.exchange(b"POST", b"/", HEADERS, b"{}")
            start = asyncio.ensure_future(exchange.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            exchange.abort(TimedOut("late"))
            with pytest.raises(TimedOut):
                await start
            await asyncio.sleep(0.01)
            if engine.connections > before:
                await asyncio.wait_for(gone.wait(), 5)
        assert client.idle == 0


async def test_a_cancelled_start_closes_what_it_opened() -> None:
    seen, gone = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await wait_for_head(peer, seen)
        gone.set()

    async with scripted_engine(script) as engine:
        task = asyncio.ensure_future(fetch(EngineClient(engine.url)))
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 5)


async def test_what_came_before_the_break_is_read_before_the_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart")

    async with scripted_engine(script) as engine:
        exchange = EngineClient(engine.url).exchange(b"POST", b"/", HEADERS, b"{}")
        await exchange.start()
        await asyncio.sleep(0.01)
        assert await exchange.read() == b"part"
        with pytest.raises(Disconnected):
            await exchange.read()


async def test_a_slow_reader_pauses_the_engine_and_holds_a_bounded_buffer() -> None:
    sent = 0
    total = 24 << 20

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        block = b"z" * 65536
        while sent < total:
            await peer.send(block)
            sent += len(block)

    async with scripted_engine(script) as engine:
        exchange = EngineClient(engine.url).exchange(b"POST", b"/", HEADERS, b"{}")
        await exchange.start()
        connection = exchange._connection
        assert connection is not None
        await eventually(lambda: connection.pauses > 0)
        await asyncio.sleep(0.05)
        stuck_at = sent
        await asyncio.sleep(0.05)
        assert sent == stuck_at < total
        assert exchange._buffered <= BUFFER_BYTES + READ_BYTES
        received = 0
        while data := await exchange.read():
            assert len(data) <= BUFFER_BYTES + READ_BYTES
            received += len(data)
        assert (received, connection.pauses > 10) == (total, True)
        exchange.close()


async def test_a_large_request_body_arrives_whole() -> None:
    body = bytes(range(256)) * 40_000

    async def script(peer: Peer) -> None:
        request = await peer.request()
        assert request.endswith(body)
        await peer.send(plain(b"%d" % len(request)))

    async with scripted_engine(script) as engine:
        assert int(await fetch(EngineClient(engine.url), body)) > len(body)


async def test_an_answer_before_the_request_is_all_sent_is_taken_and_ends_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(plain(b"too large", b"413 Content Too Large"))
        await asyncio.sleep(0.05)

    async with scripted_engine(script) as engine:
        client = EngineClient(engine.url)
        assert await fetch(client, b"z" * (16 << 20)) == b"too large"
        assert client.idle == 0


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("http://127.0.0.1:8000", Origin("127.0.0.1", 8000), b"127.0.0.1:8000"),
        ("http://[::1]:8000/", Origin("::1", 8000), b"[::1]:8000"),
        ("http://engine", Origin("engine", 80), b"engine:80"),
        ("https://engine", Origin("engine", 443, tls=True), b"engine:443"),
    ],
)
def test_addresses_are_understood(url: str, origin: Origin, authority: bytes) -> None:
    assert Origin.parse(url) == origin
    assert origin.authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "engine:80",
        "ftp://e:1",
        "http://",
        "http://e:x",
        "http://e/v1",
        "http://u@e",
        "http://e?q",
    ],
)
def test_other_addresses_are_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError, match=r"engine address|Port"):
        Origin.parse(url)


async def test_an_engine_on_ipv6_is_reached() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"{}")
        writer.write(plain(head.split(b"\r\n")[1]))
        await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(serve, "::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await fetch(EngineClient(f"http://[::1]:{port}")) == b"host: [::1]:%d" % port


async def test_an_engine_whose_certificate_is_not_trusted_gets_no_request() -> None:
    async def script(peer: Peer) -> None:
        assert await peer.reader.read(1) in {b"", b"\x16"}

    async with scripted_engine(script) as engine:
        client = EngineClient(f"https://127.0.0.1:{engine.port}")
        assert client._tls is not None
        assert client._tls.verify_mode is ssl.CERT_REQUIRED
        with pytest.raises(ConnectFailed):
            await fetch(client)
