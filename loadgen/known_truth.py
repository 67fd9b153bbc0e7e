"""Answers with events at known instants, so that a client's own errors can be seen.

`python -m loadgen.known_truth GAP_S CHUNKS` prints its address and serves until its standard input
closes. Every event bears the nanosecond of the monotonic clock at which it was handed to the
kernel; on one machine that is the client's clock too. It parses no more of a request than its
length and computes nothing per event, so that it is not what limits the client.
"""

import asyncio
import sys
import time

import uvloop

__all__ = ["main", "serve"]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"sent_ns":%d,"choices":[{"index":0,"delta":{"content":"a"}%s}]}\n\n'
FINISH = b',"finish_reason":"length"'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d}}\n\n'
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Stream(asyncio.Protocol):
    """One connection; one response at a time."""

    def __init__(self, gap_s: float, chunks: int) -> None:
        self._gap_s, self._chunks = gap_s, chunks
        self._loop = asyncio.get_running_loop()
        self._usage = _chunk(USAGE % chunks)
        self._transport: asyncio.Transport
        self._request = b""
        self._left = 0
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment] # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop answering."""
        del exc
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer once the request is whole."""
        self._request += data
        head, found, body = self._request.partition(b"\r\n\r\n")
        if found and len(body) >= _length(head):
            self._request = b""
            self._left, self._due_s = self._chunks, self._loop.time() + self._gap_s
            if self._gap_s:
                self._transport.write(HEAD)
                self._timer = self._loop.call_at(self._due_s, self._next)
            else:
                self._transport.write(HEAD + self._events(self._chunks))

    def _events(self, count: int) -> bytes:
        self._left -= count
        now_ns = time.monotonic_ns()
        if self._left:
            return _chunk(EVENT % (now_ns, b"")) * count
        last = _chunk(EVENT % (now_ns, FINISH))
        return _chunk(EVENT % (now_ns, b"")) * (count - 1) + last + self._usage + END

    def _next(self) -> None:
        self._transport.write(self._events(1))
        if self._left:
            self._due_s += self._gap_s
            self._timer = self._loop.call_at(self._due_s, self._next)


def _length(head: bytes) -> int:
    named = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return int(named or 0)


async def serve(gap_s: float, chunks: int) -> None:
    """Serve on a free port until standard input closes; the address is the first line printed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Stream(gap_s, chunks), "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    """Serve with the gap and the number of events of the arguments."""
    uvloop.run(serve(float(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
