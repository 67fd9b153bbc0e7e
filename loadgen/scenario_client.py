"""Plays one caller of a scenario: plain, hardly reading, leaving early, or trying again.

A caller that tries again does what the SDKs do by default: at most two more tries on 408, 409,
429, 5xx and broken connections, after `Retry-After` if it is at most a minute, else after half a
second doubled each time up to eight, less up to a quarter; `x-should-retry` decides before all.
"""

import asyncio
import random
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httptools

from loadgen.capture import Capture
from loadgen.events import judge, read_events
from loadgen.record import Outcome
from loadgen.scenario import Call, Told, Try
from loadgen.stream import request_bytes

__all__ = ["Server", "payload_of", "play_call", "retry_delay_s"]

SDK_RETRIES = 2
SDK_FIRST_S = 0.5
SDK_MOST_S = 8.0
SDK_LONGEST_ADVICE_S = 60.0
SLOW_BYTES = 256
SLOW_PAUSE_S = 0.02
SLOW_BUFFER_BYTES = 4096
READ_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Server:
    """Where callers call: address, keys by service class, and the clock's scale."""

    url: str
    keys: Mapping[str, str]
    scale: float
    begin_s: float
    until_s: float

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80


class _Body:
    """Fills a capture from what httptools parses."""

    def __init__(self) -> None:
        self.capture = Capture(0)
        self.parser: Any = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        before = len(self.capture.body)
        self.parser.feed_data(data)
        if len(self.capture.body) > before:
            self.capture.reads.append((time.monotonic_ns(), len(self.capture.body)))

    def end(self) -> None:
        """Take the connection's end: a body without a length of its own is whole then."""
        headers = self.capture.headers
        framed = b"content-length" in headers or b"transfer-encoding" in headers
        self.capture.complete = self.capture.status is not None and not framed
        if not self.capture.complete:
            self.capture.fault = "connection_lost"

    def on_header(self, name: bytes, value: bytes) -> None:
        self.capture.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.capture.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.capture.body += data

    def on_message_complete(self) -> None:
        self.capture.complete = True


async def _connect(server: Server, slow: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER_BYTES)
        await asyncio.get_running_loop().sock_connect(sock, server.address)
        limit = SLOW_BUFFER_BYTES if slow else READ_BYTES
        return await asyncio.open_connection(sock=sock, limit=limit)
    except BaseException:
        sock.close()
        raise


async def _read(body: _Body, reader: asyncio.StreamReader, call: Call) -> bool:
    """Read to the end; returns whether the caller left after its last wanted event."""
    slow = call.manner == "slow"
    while not body.capture.complete:
        data = await reader.read(SLOW_BYTES if slow else READ_BYTES)
        if not data:
            body.end()
            return False
        body.feed(data)
        wanted = call.leave_after_events
        if wanted is not None and body.capture.body.count(b"data:") >= wanted:
            return True
        if slow:
            await asyncio.sleep(SLOW_PAUSE_S)
    return False


async def _exchange(body: _Body, server: Server, payload: bytes, call: Call) -> bool:
    try:
        reader, writer = await _connect(server, call.manner == "slow")
    except OSError as error:
        body.capture.fault = f"connect_failed_{error.errno}"
        return False
    try:
        writer.write(payload)
        body.capture.sent_ns = time.monotonic_ns()
        return await _read(body, reader, call)
    except OSError as error:
        body.capture.fault = f"connection_{error.errno}"
        return False
    except httptools.HttpParserError:
        body.capture.fault = "not_http"
        return False
    finally:
        writer.transport.abort()


def _judged(capture: Capture, call: Call) -> tuple[Outcome, str | None, int]:
    response = read_events(bytes(capture.body), capture.reads) if capture.status == 200 else None
    verdict = judge(
        capture.status,
        capture.headers,
        bytes(capture.body),
        capture.fault,
        response,
        call.output_tokens,
    )
    return verdict.outcome, verdict.code, len(response.event_us) if response else 0


async def _one_try(server: Server, payload: bytes, call: Call) -> Try:
    body, begin_s = _Body(), time.monotonic()
    leave_s = None if call.leave_after_s is None else begin_s + call.leave_after_s / server.scale
    by_itself = leave_s is not None and leave_s <= server.until_s
    try:
        async with asyncio.timeout_at(leave_s if by_itself else server.until_s):
            left = await _exchange(body, server, payload, call)
        outcome, code, events = _judged(body.capture, call)
        if left:
            outcome, code = Outcome.CANCELLED, "after_events"
    except TimeoutError:
        outcome = Outcome.CANCELLED if by_itself else Outcome.UNFINISHED
        code, events = "left" if by_itself else "deadline", 0
    sent_ns = body.capture.sent_ns
    return Try(
        begin_s - server.begin_s,
        None if sent_ns is None else sent_ns * 1e-9 - server.begin_s,
        time.monotonic() - server.begin_s,
        body.capture.status,
        outcome,
        code,
        _retry_after_s(body.capture.headers),
        _may_retry(body.capture),
        events,
    )


def _retry_after_s(headers: Mapping[bytes, bytes]) -> float | None:
    text = headers.get(b"retry-after", b"").decode("latin-1")
    return float(text) if text.replace(".", "", 1).isdigit() else None


def _may_retry(capture: Capture) -> bool:
    asked = capture.headers.get(b"x-should-retry")
    if asked in {b"true", b"false"}:
        return asked == b"true"
    return capture.status is None or capture.status in {408, 409, 429} or capture.status >= 500


def retry_delay_s(tries: int, retry_after_s: float | None, luck: float) -> float:
    """Return how long an SDK waits before its next try.

    Args:
        tries: how many it has made.
        retry_after_s: the server's advice, if there was one.
        luck: 0 to 1, for the jitter.
    """
    if retry_after_s is not None and 0 < retry_after_s <= SDK_LONGEST_ADVICE_S:
        return retry_after_s
    longest_s: float = min(SDK_FIRST_S * 2.0 ** (tries - 1), SDK_MOST_S)
    return longest_s * (1.0 - 0.25 * luck)


async def play_call(server: Server, call: Call, payload: bytes, luck: random.Random) -> Told:
    """Wait for the call's time, play it, and say what became of it.

    Args:
        server: where it calls; the scenario began at its `begin_s` on the loop's clock.
        call: who it is.
        payload: the whole request, built before.
        luck: for the jitter of tries.
    """
    await asyncio.sleep(max(0.0, server.begin_s + call.at_s / server.scale - time.monotonic()))
    tries: list[Try] = []
    while True:
        tries.append(await _one_try(server, payload, call))
        last = tries[-1]
        again = call.manner == "sdk" and last.may_retry and last.status != 200
        if not again or len(tries) > SDK_RETRIES:
            return Told(call, tuple(tries))
        delay_s = retry_delay_s(len(tries), last.retry_after_s, luck.random())
        if time.monotonic() + delay_s > server.until_s:
            return Told(call, tuple(tries))
        await asyncio.sleep(delay_s)


def payload_of(server_url: str, key: str | None, body: bytes) -> bytes:
    """Return the bytes of a chat request."""
    host = server_url.split("://", 1)[-1]
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return request_bytes(host, "/v1/chat/completions", {**headers, "Connection": "close"}, body)
