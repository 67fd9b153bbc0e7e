"""An engine that is well by its health checks and misbehaves on inference as its script says.

It runs on the test's own loop, on a real socket. A script gets the connection after a whole
request was read from it, and says what the engine writes and how it ends. ``at_work`` counts
scripts that have not ended: one that waits for the gateway to hang up shows a connection that
the gateway leaked.
"""

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

__all__ = ["Crooked", "Peer", "Script", "chunk", "crooked_engine", "plain"]

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_METRICS = (
    b"process_start_time_seconds 1.0\n"
    b'vllm:num_requests_running{model_name="simulated"} 0.0\n'
    b'vllm:num_requests_waiting{model_name="simulated"} 0.0\n'
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def plain(body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    """A whole answer of known length."""
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        kind,
        len(body),
        body,
    )


@dataclass(slots=True)
class Peer:
    """One connection from the gateway; ``served`` counts the requests answered on it before."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    served: int = 0
    request: bytes = b""

    async def send(self, data: bytes) -> None:
        if self.writer.is_closing():
            raise ConnectionResetError("the gateway has hung up")
        self.writer.write(data)
        await self.writer.drain()

    async def end(self) -> None:
        """Close in good order."""
        self.writer.close()
        await self.writer.wait_closed()

    def reset(self) -> None:
        """Close by a reset; what was written before has left already."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    async def closed(self) -> None:
        """Return when the gateway has hung up, in whatever way."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


Script = Callable[[Peer], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Crooked:
    """The engine. ``script`` may be exchanged between requests."""

    script: Script
    listener: socket.socket
    at_work: int = 0
    requests: list[bytes] = field(default_factory=list)
    _serving: dict[asyncio.Task[None], Peer | None] = field(default_factory=dict)
    _stuffing: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self) -> None:
        """Take connections, from the start or after ``accept_nobody``."""
        for sock in self._stuffing:
            sock.close()
        self._stuffing.clear()
        self.listener.listen(128)
        asyncio.get_running_loop().add_reader(self.listener, self._accept)

    def refuse(self) -> None:
        """Listen no more, for good."""
        self._accept_no_more()
        self.listener.close()

    def accept_nobody(self) -> None:
        """Let new connections hang: nobody accepts them, and the backlog is full."""
        self._accept_no_more()
        self.listener.listen(0)
        # With a backlog of none the kernel completes one connection, and is silent from then on.
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(self.listener.getsockname())
            self._stuffing.append(sock)

    def _accept_no_more(self) -> None:
        asyncio.get_running_loop().remove_reader(self.listener)
        self.drop_all()

    def drop_all(self) -> None:
        """Close the connections there are."""
        for peer in self._serving.values():
            if peer is not None:
                peer.writer.close()

    async def close(self) -> None:
        if self.listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.listener)
        tasks = list(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in (*self._stuffing, self.listener):
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the caller may have gone again
            connection, _ = self.listener.accept()
            connection.setblocking(False)
            task = asyncio.ensure_future(self._serve(connection))
            self._serving[task] = None
            task.add_done_callback(self._serving.pop)

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 20)
        task = asyncio.current_task()
        assert task is not None
        peer = self._serving[task] = Peer(reader, writer)
        try:
            while True:
                await self._answer(peer)
                peer.served += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway has closed, or the script has
        finally:
            writer.close()

    async def _answer(self, peer: Peer) -> None:
        head = await peer.reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await peer.reader.readexactly(int(length[1]) if length else 0)
        if head.startswith(b"GET "):
            page = b"" if head.startswith(b"GET /health") else _METRICS
            await peer.send(plain(page, kind=b"text/plain"))
            return
        peer.request = head + body
        self.requests.append(peer.request)
        self.at_work += 1
        try:
            await self.script(peer)
        finally:
            self.at_work -= 1


@asynccontextmanager
async def crooked_engine(script: Script) -> AsyncIterator[Crooked]:
    """A listening engine; all of it is gone after the block."""
    listener = socket.socket()
    listener.setblocking(False)
    listener.bind(("127.0.0.1", 0))
    engine = Crooked(script, listener)
    engine.accept()
    try:
        yield engine
    finally:
        await engine.close()
