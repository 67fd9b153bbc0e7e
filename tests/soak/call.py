"""One request on a bare socket: cheap enough that one process can overload a gateway.

A call is sent in one write; its times count from that moment, which is when the gateway has the
last byte of the body at the earliest. Nothing of the answer is kept but what the figures need.
"""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

__all__ = ["Behaviour", "Call", "Result", "perform"]

_OUTCOME = re.compile(rb"\r\nx-sluicegate-outcome: ([a-z_]+)\r\n")
_RETRY = re.compile(rb"\r\nretry-after: (\d+)\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
_CODE = re.compile(rb'"code":"?([a-z_0-9]+)')
_TAIL = 4096
STUCK_S = 200.0


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What kind of caller it is. Seconds; None: does not."""

    leaves_after_s: float | None = None
    stops_reading_s: float | None = None


@dataclass(slots=True)
class Result:
    """How one call ended, in the gateway's words where it said one; times in seconds."""

    status: int | None
    outcome: str
    retry_after_s: int | None
    first_s: float | None
    stall_s: float
    end_s: float


class Call(asyncio.Protocol):
    """The connection of one call."""

    def __init__(self, clock: Callable[[], float], request: bytes, behaviour: Behaviour) -> None:
        self._clock, self._request, self._behaviour = clock, request, behaviour
        self._sent_s = self._last_s = clock()
        self._head, self._tail, self._body_bytes = b"", b"", 0
        self._length: int | None = None
        self.status: int | None = None
        self.first_s: float | None = None
        self.stall_s = 0.0
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._sent_s = self._last_s = self._clock()
        self._transport.write(self._request)
        if self._behaviour.leaves_after_s is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(self._behaviour.leaves_after_s, self._leave)

    def _leave(self) -> None:
        self._finish("client_cancelled")

    def data_received(self, data: bytes) -> None:
        now = self._clock()
        if self.status is None:
            data = self._take_head(data, now)
        elif now - self._last_s > self.stall_s:
            self.stall_s = now - self._last_s
        self._last_s = now
        self._body_bytes += len(data)
        self._tail = (self._tail + data)[-_TAIL:]
        if self._ended():
            self._finish(self._word())

    def _take_head(self, data: bytes, now: float) -> bytes:
        self._head += data
        head, found, rest = self._head.partition(b"\r\n\r\n")
        if not found:
            return b""
        self._head = head + b"\r\n"
        self.status = int(head[9:12])
        self.first_s = now - self._sent_s
        length = _LENGTH.search(self._head)
        self._length = int(length[1]) if length else None
        if self._behaviour.stops_reading_s is not None:
            self._transport.pause_reading()
            loop = asyncio.get_running_loop()
            loop.call_later(self._behaviour.stops_reading_s, self._read_on)
        return rest

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _ended(self) -> bool:
        if self.status is None:
            return False
        if self._length is not None:
            return self._body_bytes >= self._length
        return self._tail.endswith(b"0\r\n\r\n")

    def _word(self) -> str:
        said = _OUTCOME.search(self._head)
        if said:
            return said[1].decode()
        if b'"error":' in self._tail and b"[DONE]" not in self._tail.rpartition(b'"error":')[0]:
            code = _CODE.search(self._tail.rpartition(b'"error":')[2])
            word = code[1].decode() if code else ""
            return word if word.isalpha() or "_" in word else "stream_interrupted"
        return "completed"

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish("cut")

    def _finish(self, outcome: str) -> None:
        if not self.over.done():
            retry = _RETRY.search(self._head)
            self.over.set_result(
                Result(
                    self.status,
                    outcome,
                    int(retry[1]) if retry else None,
                    self.first_s,
                    self.stall_s,
                    self._clock() - self._sent_s,
                )
            )
        self._transport.abort()


async def perform(host: str, port: int, request: bytes, behaviour: Behaviour) -> Result:
    """Send one request and say how it ended."""
    loop = asyncio.get_running_loop()
    try:
        _, call = await loop.create_connection(
            lambda: Call(time.perf_counter, request, behaviour), host, port
        )
    except OSError:
        return Result(None, "no_connection", None, None, 0.0, 0.0)
    try:
        async with asyncio.timeout(STUCK_S):
            found: Result = await call.over
            return found
    except TimeoutError:
        call._finish("stuck")
        return Result(call.status, "stuck", None, call.first_s, call.stall_s, STUCK_S)
