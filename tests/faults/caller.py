"""A strict caller: h11 reads the answer, so one that is not well-formed HTTP shows as cut."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import h11

from tests.e2e.harness import CHAT, LIMIT_S

__all__ = ["Reply", "ask", "post", "read_reply"]


@dataclass(slots=True)
class Reply:
    """What a caller read. ``cut``: the connection ended before the answer did, and how."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: str | None = None

    def error(self) -> dict[str, Any]:
        """The error object of a refusal; empty where the body is none."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        error = found.get("error") if isinstance(found, dict) else None
        return error if isinstance(error, dict) else {}


def post(body: Mapping[str, Any], key: str, path: str = CHAT) -> bytes:
    """The bytes of a request."""
    content = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"authorization: {key}\r\ncontent-length: {len(content)}\r\n\r\n"
    ).encode() + content


async def read_reply(reader: asyncio.StreamReader, limit_s: float = LIMIT_S) -> Reply:
    """One answer, up to its end or the connection's."""
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    reply = Reply()
    async with asyncio.timeout(limit_s):
        try:
            while (event := parser.next_event()) is h11.NEED_DATA or not _took(event, reply):
                if event is h11.NEED_DATA:
                    parser.receive_data(await reader.read(65536))
        except (h11.RemoteProtocolError, ConnectionError) as error:
            reply.cut = str(error) or type(error).__name__
    return reply


def _took(event: Any, reply: Reply) -> bool:
    """Note one event; True at the answer's end."""
    if isinstance(event, h11.Response):
        reply.status = event.status_code
        reply.headers = {k.decode(): v.decode("latin-1") for k, v in event.headers}
    elif isinstance(event, h11.Data):
        reply.body += bytes(event.data)
    elif isinstance(event, h11.ConnectionClosed):
        raise h11.RemoteProtocolError("closed without an answer")
    return isinstance(event, h11.EndOfMessage)


async def ask(url: str, data: bytes, limit_s: float = LIMIT_S) -> Reply:
    """Send a whole request on a connection of its own."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        return await read_reply(reader, limit_s)
    finally:
        writer.close()
