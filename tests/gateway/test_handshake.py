"""TLS with callers that are silent, slow, many, or in a hurry."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.handshake import Handshakes
from tests.gateway.certificates import Authority


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return ("asyncio", {"use_uvloop": request.param})


class Echo(asyncio.Protocol):
    """Says back what it is told."""

    def __init__(self, word: bytes) -> None:
        self._word = word

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert transport.get_extra_info("sslcontext") is not None
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._word + data)


@asynccontextmanager
async def serving(
    folder: Path, most: int, timeout_s: float
) -> AsyncIterator[tuple[int, ssl.SSLContext]]:
    authority = Authority(folder)
    signed = authority.sign("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.cert, signed.key)
    begun = Handshakes(context, Echo, most, timeout_s)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: begun(word=b"you said "), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield port, ssl.create_default_context(cafile=authority.file)
        begun.close()
        await asyncio.sleep(0.02)  # what was aborted is told so in the next turns of the loop


async def said(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"hello")
    answer = await reader.readexactly(14)
    writer.close()
    return answer


async def test_a_caller_is_served_while_others_say_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, most=3, timeout_s=30.0) as (port, context):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        assert await said(port, context) == b"you said hello"
        # The oldest of the silent ones have made room.
        for reader, _ in silent[:5]:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        for _, writer in silent:
            writer.close()


async def test_who_says_nothing_in_time_is_cut(tmp_path: Path) -> None:
    async with serving(tmp_path, most=3, timeout_s=0.05) as (port, context):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        assert await said(port, context) == b"you said hello"


async def test_who_speaks_no_tls_is_cut_and_others_are_served(tmp_path: Path) -> None:
    async with serving(tmp_path, most=3, timeout_s=30.0) as (port, context):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"HTTP" not in await reader.read()
        writer.close()
        assert await said(port, context) == b"you said hello"


async def test_what_comes_in_one_packet_with_the_handshakes_end_is_not_lost(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, most=3, timeout_s=30.0) as (port, context):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        tls.write(b"hello")
        writer.write(outgoing.read())
        answer = b""
        while len(answer) < 14:
            try:
                answer += tls.read(100)
            except ssl.SSLWantReadError:
                incoming.write(await reader.read(65536))
        assert answer == b"you said hello"
        writer.close()
