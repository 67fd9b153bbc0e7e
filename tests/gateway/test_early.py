import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway import early
from gateway.contract import answer
from gateway.domain import Outcome, Surface
from gateway.early import COMMENT, EarlySend
from tests.gateway.scripted import BACKEND, eventually

STREAM = [(b"content-type", b"text/event-stream")]


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


class Sent:
    def __init__(self) -> None:
        self.heads: list[Mapping[str, Any]] = []
        self.body = b""
        self.ended = False

    async def __call__(self, message: Mapping[str, Any]) -> None:
        assert not self.ended
        if message["type"] == "http.response.start":
            self.heads.append(message)
        else:
            self.body += message["body"]
            self.ended = not message["more_body"]


def start(status: int, headers: Any) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def part(body: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def test_an_answer_that_comes_in_time_passes_untouched() -> None:
    sent = Sent()
    send = EarlySend(sent, 60.0)
    send.arm(Surface.CHAT, list)
    await send(start(429, [(b"a", b"b")]))
    await send(part(b"x", False))
    assert (sent.heads, sent.body) == ([start(429, [(b"a", b"b")])], b"x")
    assert (send._timer, send.begun) == (None, False)


async def test_a_stream_that_waits_begins_and_is_kept_alive_until_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early, "COMMENT_EVERY_S", 0.005)
    sent = Sent()
    send = EarlySend(sent, 0.005)
    send.arm(Surface.CHAT, lambda: [(b"x-request-id", b"r")])
    await eventually(lambda: sent.body.count(COMMENT) >= 3)
    assert sent.heads[0]["status"] == 200
    assert (b"x-request-id", b"r") in sent.heads[0]["headers"]
    await send(start(200, STREAM))
    waited = sent.body
    await send(part(b"data: a\n\n", True))
    await asyncio.sleep(0.02)
    await send(part(b"data: [DONE]\n\n", False))
    assert sent.body == waited + b"data: a\n\ndata: [DONE]\n\n"
    assert len(sent.heads) == 1


@pytest.mark.parametrize("surface", [Surface.CHAT, Surface.MESSAGES, Surface.RESPONSES])
async def test_a_refusal_that_comes_later_becomes_an_error_event(surface: Surface) -> None:
    sent = Sent()
    send = EarlySend(sent, 0.0)
    send.arm(surface, list)
    await eventually(lambda: bool(sent.body))
    reply = answer(Outcome.QUEUE_EXPIRED, "Waited\ntoo long.", surface=surface)
    await send(start(reply.status, reply.headers))
    await send(part(reply.body, False))
    event = sent.body.removeprefix(COMMENT)
    assert event.startswith(b"data: " if surface is Surface.CHAT else b"event: error\ndata: ")
    error = json.loads(event.partition(b"data: ")[2])
    assert error["error"]["message"] == "Waited\ntoo long."
    assert error["error"]["code"] == "queue_expired"
    assert error["error"]["type"] == "rate_limit_error"
    assert send.begun
    assert event.endswith(b"\n\n")
    assert (len(sent.heads), sent.ended) == (1, True)


async def test_an_engines_own_answer_that_is_no_stream_becomes_one_event() -> None:
    sent = Sent()
    send = EarlySend(sent, 0.0)
    send.arm(Surface.CHAT, list)
    await eventually(lambda: bool(sent.body))
    await send(start(400, [(b"content-type", b"application/json")]))
    await send(part(b'{"a":\n', True))
    await send(part(b"1}", False))
    assert sent.body == COMMENT + b'data: {"a": 1}\n\n'


async def test_an_engines_own_error_keeps_the_type_of_its_status_on_messages() -> None:
    sent = Sent()
    send = EarlySend(sent, 0.0)
    send.arm(Surface.MESSAGES, list)
    await eventually(lambda: bool(sent.body))
    head = [(b"content-type", b"application/json"), (b"x-sluicegate-outcome", b"engine_error")]
    await send(start(400, head))
    await send(part(b'{"type":"error","error":{"type":"x","message":"bad"}}', False))
    error = json.loads(sent.body.partition(b"data: ")[2])["error"]
    assert error == {"type": "invalid_request_error", "message": "bad", "code": "engine_error"}


async def test_a_caller_that_is_behind_is_waited_for_before_the_answer_goes_on() -> None:
    sent, gate = Sent(), asyncio.Event()

    async def slow(message: Mapping[str, Any]) -> None:
        await gate.wait()
        await sent(message)

    send = EarlySend(slow, 0.0)
    send.arm(Surface.CHAT, list)
    await eventually(lambda: send._sending is not None)
    going_on = asyncio.ensure_future(send(start(200, STREAM)))
    await asyncio.sleep(0.01)
    assert not sent.heads
    gate.set()
    await going_on
    await send(part(b"data: a\n\n", False))
    assert (len(sent.heads), sent.body) == (1, b"data: a\n\n")
