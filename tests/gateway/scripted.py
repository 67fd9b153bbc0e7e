"""Scripted peers on real sockets: an engine that does exactly what a test says, and no more."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

BACKEND = ("asyncio", {"use_uvloop": True})

CHUNKED_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(text: str = "x", finish: str | None = None, extra: str = "") -> bytes:
    """One chat chunk as vLLM writes it."""
    reason = f'"{finish}"' if finish else "null"
    choice = f'{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":{reason}}}'
    return f'data: {{"id":"c","choices":[{choice}]{extra}}}\n\n'.encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def plain(body: bytes, head: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (head, headers, len(body), body)


@dataclass
class Peer:
    """One connection, seen from the engine."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> bytes:
        """The next whole request, head and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return head + await self.reader.readexactly(int(line[15:]))
        return head

    async def send(self, data: bytes) -> None:
        if self.writer.is_closing():
            raise ConnectionResetError("the gateway has closed")
        self.writer.write(data)
        await self.writer.drain()

    async def send_split(self, data: bytes, size: int) -> None:
        """``data`` in pieces of ``size``, each a read of its own at the other end, mostly."""
        for start in range(0, len(data), size):
            self.writer.write(data[start : start + size])
            await asyncio.sleep(0)

    async def closed(self) -> None:
        """Return when the other end has closed, in whatever way."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            return

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class Engine:
    """Where the scripted engine listens, and what it has seen."""

    port: int = 0
    connections: int = 0
    faults: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def scripted_engine(script: Script) -> AsyncIterator[Engine]:
    """Run ``script`` for each connection; its failed assertions fail the test."""
    engine = Engine()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        engine.connections += 1
        try:
            await script(Peer(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway closed: what many scripts wait for
        except asyncio.CancelledError:
            pass  # the test is over
        except AssertionError as fault:
            engine.faults.append(fault)
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()
        pending = list(tasks)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if engine.faults:
            raise engine.faults[0]


async def eventually(condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    """Wait until ``condition`` holds; fail when it does not come to."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - conditions are about others' state
            await asyncio.sleep(0.002)
