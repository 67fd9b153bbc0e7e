"""Gives a stream that still waits its 200 before it begins, for callers that would give up.

Load balancers with short idle times cut what says nothing. An armed ``EarlySend`` sends the head
of a stream after a time, then a comment every ``COMMENT_EVERY_S`` until the answer comes. A
refusal that comes after that has lost its status; its body becomes an error event.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.contract import error_event
from gateway.domain import Headers, Outcome, Surface
from gateway.eager import Started
from gateway.relay import STREAM_HEADERS, Send

__all__ = ["COMMENT_EVERY_S", "EarlySend"]

COMMENT_EVERY_S = 10.0
COMMENT = b": keep-alive\n\n"
_OUTCOME = b"x-sluicegate-outcome"


class EarlySend:
    """An ASGI ``send`` that may begin a stream before there is anything to send.

    ``begun``: it did, and no other status can be told any more.

    Args:
        send: the caller's.
        pass_on: the caller's for chunks, where it has one.
        after_s: how long a stream may wait without a word.
    """

    def __init__(
        self, send: Send, after_s: float, pass_on: Callable[[bytes], bool] | None = None
    ) -> None:
        self._send = send
        self._pass_on = pass_on
        self._after_s = after_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._surface = Surface.CHAT
        self._sending: Started[None] | None = None
        self.begun = False
        # The body of an answer that has lost its own head, until it is whole.
        self._refusal: list[bytes] | None = None
        self._outcome, self._status = b"", 200

    def arm(self, surface: Surface, headers: Callable[[], Headers]) -> None:
        """A stream waits: begin it in time, with ``headers`` as they are then."""
        self._surface = surface
        self._timer = self._loop.call_later(self._after_s, self._begin, headers)

    def pass_on(self, chunk: bytes) -> bool:
        """As the caller's; False while something of our own is still on its way."""
        free = self._sending is None and self._refusal is None
        return free and self._pass_on is not None and self._pass_on(chunk)

    def disarm(self) -> None:
        """The answer has come, or the request is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def __call__(self, message: Mapping[str, Any]) -> None:
        """ASGI's ``send``."""
        self.disarm()
        if not self.begun:
            await self._send(message)
            return
        if self._sending is not None:
            sending, self._sending = self._sending, None
            await sending
        if message["type"] == "http.response.start":
            head = dict(message["headers"])
            kind, self._outcome = head.get(b"content-type", b""), head.get(_OUTCOME, b"")
            if message["status"] != 200 or b"text/event-stream" not in kind:
                self._refusal, self._status = [], message["status"]
        elif self._refusal is None:
            await self._send(message)
        else:
            await self._refuse(self._refusal, message)

    async def _refuse(self, parts: list[bytes], message: Mapping[str, Any]) -> None:
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            body, outcome = b"".join(parts), self._outcome.decode()
            event = _error_event(body, outcome, self._surface, self._status)
            await self._send({"type": "http.response.body", "body": event, "more_body": False})

    def _begin(self, headers: Callable[[], Headers]) -> None:
        self.begun = True
        kind = (b"content-type", b"text/event-stream; charset=utf-8")
        head = [kind, *STREAM_HEADERS, *headers()]
        start = {"type": "http.response.start", "status": 200, "headers": head}
        self._start(self._send(start))
        self._comment()

    def _comment(self) -> None:
        if self._sending is None:  # else the caller is behind, and needs no comment
            body = {"type": "http.response.body", "body": COMMENT, "more_body": True}
            self._start(self._send(body))
        self._timer = self._loop.call_later(COMMENT_EVERY_S, self._comment)

    def _start(self, sending: Any) -> None:
        started = Started(sending)
        if not started.done:
            self._sending = started


def _error_event(body: bytes, outcome: str, surface: Surface, status: int) -> bytes:
    """A refusal's body as the last event of a stream; an engine's own one as it is."""
    try:
        message = orjson.loads(body)["error"]["message"]
        return error_event(Outcome(outcome), str(message), surface, status)
    except (ValueError, KeyError, TypeError):  # not one of ours
        return b"data: %b\n\n" % b" ".join(body.splitlines())
