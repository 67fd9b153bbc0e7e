"""Guards the listener: what of a connection reaches the application, and for how long.

``callers`` speaks with each caller within ``EdgeLimits``: size and time of a head, connections of
all and of each address, no framing or target that two readers could understand differently. The
body is the application's to read: ``read_body`` bounds its size and time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import uvicorn

from gateway.callers import ClientGone, EdgeLimits, EdgeProtocol, Message
from gateway.domain import Outcome, Refused
from gateway.eager import Started
from gateway.lifetime import Ending

__all__ = [
    "ClientGone",
    "EdgeLimits",
    "EdgeProtocol",
    "Receive",
    "caller_ending",
    "read_body",
    "uvicorn_config",
]

Receive = Callable[[], Awaitable[Message]]


async def read_body(
    receive: Receive,
    limit_bytes: int,
    timeout_s: float,
    on_bytes: Callable[[int], None] | None = None,
    take: Callable[[], bytes | None] | None = None,
    ending: Ending | None = None,
) -> bytes:
    """The request's whole body; ``on_bytes`` is told of each part's size before it is kept.

    ``take`` gives it at once where all of it is there, else None: then ``receive`` does, until
    ``ending`` is set.

    Raises:
        Refused: ``BODY_TOO_LARGE``, ``BODY_TIMEOUT``, ``DRAINING``, what ``on_bytes`` raises, or
            why the connection can't read the body to its end.
        ClientGone: the caller left.
    """
    whole = None if take is None else take()
    if whole is not None:
        _admit(len(whole), len(whole), limit_bytes, on_bytes)
        return whole
    reading = Started(_read_parts(receive, limit_bytes, on_bytes))
    if reading.value is not None:  # it was there: no timer
        return reading.value
    ending = ending or Ending()
    try:
        async with asyncio.timeout(timeout_s) as limit, _watched(ending, limit):
            return await reading or b""
    except TimeoutError:
        raise _unread(ending, timeout_s) from None


@asynccontextmanager
async def _watched(ending: Ending, limit: asyncio.Timeout) -> AsyncIterator[None]:
    """Inside, the time is over once ``ending`` is set."""

    def end() -> None:
        if not limit.expired():
            limit.reschedule(0.0)

    ending.watch(end)
    try:
        yield
    finally:
        ending.unwatch(end)


def _unread(ending: Ending, timeout_s: float) -> Exception:
    """Why a body is not read any further."""
    if ending.outcome is None:
        message = f"The request body did not arrive within {timeout_s:g} s."
        return Refused(Outcome.BODY_TIMEOUT, message)
    if ending.outcome is Outcome.CLIENT_CANCELLED:
        return ClientGone()
    return Refused(Outcome.DRAINING, "The gateway ended before the request body had arrived.")


async def _read_parts(
    receive: Receive, limit_bytes: int, on_bytes: Callable[[int], None] | None
) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            refused: tuple[Outcome, str] | None = message.get("sluicegate.refused")
            raise ClientGone if refused is None else Refused(*refused)
        part: bytes = message.get("body", b"")
        size += len(part)
        _admit(len(part), size, limit_bytes, on_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _admit(
    more_bytes: int, size_bytes: int, limit_bytes: int, on_bytes: Callable[[int], None] | None
) -> None:
    if size_bytes > limit_bytes:
        message = f"The request body is larger than {limit_bytes} bytes."
        raise Refused(Outcome.BODY_TOO_LARGE, message)
    if on_bytes is not None:
        on_bytes(more_bytes)


def caller_ending(scope: Message) -> Ending:
    """What ends this request when its caller leaves, at once and without a task of its own."""
    ending: Ending = scope["sluicegate.ending"]
    return ending


def uvicorn_config(
    app: Callable[..., Awaitable[None]],
    host: str,
    port: int,
    limits: EdgeLimits,
    on_refused: Callable[[Outcome], float | None] | None = None,
) -> uvicorn.Config:
    """The server's configuration: this edge, uvloop, no proxy headers, no log of its own.

    ``on_refused`` is told of the requests and connections that the edge refuses by itself, and
    gives the seconds to advise.
    """
    protocol = partial(EdgeProtocol, limits, on_refused, Counter())
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=limits.keepalive_s,
    )
