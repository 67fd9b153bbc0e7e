"""Wraps one HTTP exchange of the raw ASGI server: reading a body, sending an answer.

Times don't occur here. A caller that has left is told by ``Gone`` while its body is read, and
by ``left`` afterwards.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import orjson

__all__ = ["Exchange", "Gone", "Receive", "Scope", "Send"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = b"application/json"
STREAM = b"text/event-stream; charset=utf-8"


class Gone(Exception):
    """The caller closed the connection before its request was complete."""


class Exchange:
    """One request and its answer."""

    __slots__ = ("_receive", "_send", "headers", "method", "path", "query")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        self.headers: dict[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        self._receive = receive
        self._send = send

    async def body(self) -> bytes:
        """The whole request body.

        Raises:
            Gone: The caller left before its end.
        """
        parts: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(parts)

    async def left(self) -> None:
        """Wait until the caller closes the connection (or has the whole answer)."""
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def answer(
        self,
        status: int,
        body: bytes = b"",
        kind: bytes = JSON,
        headers: Iterable[Header] = (),
    ) -> None:
        """Send a whole answer."""
        fixed = [(b"content-length", b"%d" % len(body))]
        if body:
            fixed.append((b"content-type", kind))
        await self._start(status, [*fixed, *headers])
        await self._send({"type": "http.response.body", "body": body})

    async def answer_json(self, status: int, value: Any) -> None:
        """Send a value as JSON."""
        await self.answer(status, orjson.dumps(value))

    async def open_stream(self) -> None:
        """Send the head of an event stream."""
        await self._start(200, [(b"content-type", STREAM)])

    async def write(self, data: bytes) -> None:
        """Send a piece of the open stream."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close_stream(self, data: bytes = b"") -> None:
        """Send the last piece and end the stream."""
        await self._send({"type": "http.response.body", "body": data})

    async def _start(self, status: int, headers: list[Header]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
