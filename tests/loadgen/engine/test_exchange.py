"""One exchange over a hand-made ASGI channel: bodies in pieces, callers that leave."""

from collections.abc import MutableMapping
from typing import Any

import pytest

from loadgen.engine.exchange import Exchange, Gone

SCOPE = {"method": "POST", "path": "/x", "headers": [(b"X-Name", b"v\xe9")]}


def exchange(*messages: dict[str, Any]) -> tuple[Exchange, list[MutableMapping[str, Any]]]:
    incoming = iter(messages)
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return next(incoming)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    return Exchange(SCOPE, receive, send), sent


def piece(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_pieces_is_joined_and_headers_are_lower_case() -> None:
    one, _ = exchange(piece(b"ab", more=True), piece(b"c", more=False))
    assert await one.body() == b"abc"
    assert one.headers == {"x-name": "vé"}


async def test_a_caller_that_leaves_within_its_body_is_gone() -> None:
    one, _ = exchange(piece(b"ab", more=True), {"type": "http.disconnect"})
    with pytest.raises(Gone):
        await one.body()


async def test_left_returns_at_the_disconnect_and_not_before() -> None:
    one, _ = exchange(piece(b"", more=False), {"type": "http.disconnect"})
    await one.left()
    with pytest.raises(RuntimeError, match="StopIteration"):
        await one.left()  # both messages were used up


async def test_an_empty_answer_has_a_length_and_no_type() -> None:
    one, sent = exchange()
    await one.answer(200)
    assert sent[0]["headers"] == [(b"content-length", b"0")]
    assert sent[1]["body"] == b""


async def test_a_stream_is_open_until_it_is_closed() -> None:
    one, sent = exchange()
    await one.open_stream()
    await one.write(b"a")
    await one.close_stream(b"b")
    assert [message.get("more_body", False) for message in sent] == [False, True, False]
    assert sent[0]["headers"] == [(b"content-type", b"text/event-stream; charset=utf-8")]
