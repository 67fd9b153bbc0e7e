import asyncio
import contextlib

import pytest

from loadgen.capture import Capture
from loadgen.record import BenchError
from loadgen.stream import Pool, request_bytes
from tests.loadgen.truth import truth_server

BODY = b'{"max_tokens":4,"messages":[{"role":"user","content":"x"}]}'


@contextlib.asynccontextmanager
async def pool_at(url, spare=1):
    pool = Pool(url, spare)
    try:
        yield pool
    finally:
        await pool.close()


async def fetch(pool, seq=0, body=BODY, cancel_after_s=None):
    over = asyncio.Event()
    capture = Capture(seq)
    headers = {"X-Request-Id": f"t-{seq}"}
    pool.send(capture, request_bytes("h", "/v1/x", headers, body), lambda _: over.set())
    if cancel_after_s is not None:
        await asyncio.sleep(cancel_after_s)
        pool.cancel(seq)
    await over.wait()
    return capture


async def raw_server(answer):
    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_stamps_follow_each_other_and_never_precede_the_servers():
    async with truth_server(chunks=5) as truth, pool_at(truth.url) as pool:
        await pool.fill()
        capture = await fetch(pool)
    seen = truth.seen["t-0"]
    assert capture.complete
    assert capture.fault is None
    assert capture.asked_ns <= capture.sent_ns <= seen.arrived_ns <= capture.head_ns
    times = [at for at, _ in capture.reads]
    assert times == sorted(times)
    assert times[0] >= seen.sent_ns[0]
    assert times[-1] >= seen.sent_ns[-1]
    assert capture.end_ns == times[-1]


async def test_the_last_length_is_the_whole_body():
    async with truth_server() as truth, pool_at(truth.url) as pool:
        capture = await fetch(pool)
    assert capture.reads[-1][1] == len(capture.body)
    assert capture.body.endswith(b"data: [DONE]\n\n")


async def test_a_connection_is_used_again():
    async with truth_server() as truth, pool_at(truth.url) as pool:
        for seq in range(3):
            assert (await fetch(pool, seq)).complete
        assert truth.connections == 1


async def test_more_requests_than_open_connections_open_their_own():
    async with truth_server() as truth, pool_at(truth.url) as pool:
        await pool.fill()
        found = await asyncio.gather(*(fetch(pool, n) for n in range(6)))
        assert truth.connections == 6
    assert all(e.complete for e in found)


async def test_a_connection_cut_mid_stream_is_a_fault_and_keeps_what_came():
    async with truth_server(fault="cut") as truth, pool_at(truth.url) as pool:
        capture = await fetch(pool)
    assert capture.fault == "connection_lost"
    assert capture.status == 200
    assert not capture.complete
    assert capture.reads


async def test_cancelling_closes_the_connection_and_the_server_sees_it():
    async with truth_server(chunks=400) as truth, pool_at(truth.url) as pool:
        capture = await fetch(pool, cancel_after_s=0.08)
        assert not capture.complete
        while not truth.seen["t-0"].left:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)


async def test_a_refused_connection_is_a_fault_of_its_own():
    server, url = await raw_server(b"")
    server.close()
    await server.wait_closed()
    async with pool_at(url) as pool:
        capture = await fetch(pool)
    assert capture.fault.startswith("connect_failed_")
    assert capture.sent_ns is None


async def test_bytes_that_are_not_http_are_a_fault():
    server, url = await raw_server(b"hello there, this is not the protocol\r\n\r\n")
    async with server, pool_at(url) as pool:
        assert (await fetch(pool)).fault == "not_http"


async def test_a_body_without_a_length_ends_with_the_connection():
    server, url = await raw_server(b"HTTP/1.1 503 X\r\nConnection: close\r\n\r\nbusy")
    async with server, pool_at(url) as pool:
        capture = await fetch(pool)
    assert (capture.status, bytes(capture.body)) == (503, b"busy")
    assert capture.complete


async def test_a_large_request_arrives_whole():
    async with truth_server() as truth, pool_at(truth.url) as pool:
        text = "x" * 8_000_000
        capture = await fetch(pool, body=b'{"text":"' + text.encode() + b'"}')
        assert capture.complete
        assert truth.bodies[0]["text"] == text


async def test_a_connection_idle_too_long_is_not_used_again(monkeypatch):
    monkeypatch.setattr("loadgen.stream.MAX_IDLE_NS", 1)
    async with truth_server() as truth, pool_at(truth.url) as pool:
        await fetch(pool, 0)
        await fetch(pool, 1)
        assert truth.connections == 2


@pytest.mark.parametrize("url", ["https://h:1", "h:1", "http://"])
def test_a_url_it_cannot_speak_to_is_refused(url):
    with pytest.raises(BenchError, match="measuring client"):
        Pool(url)


def test_the_request_is_one_block_of_bytes():
    made = request_bytes("h:1", "/p", {"Authorization": "Bearer k"}, b"{}")
    head, body = made.split(b"\r\n\r\n")
    assert head.splitlines()[0] == b"POST /p HTTP/1.1"
    assert b"Content-Length: 2" in head.splitlines()
    assert b"Authorization: Bearer k" in head.splitlines()
    assert body == b"{}"
