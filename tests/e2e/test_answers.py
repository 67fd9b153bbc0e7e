"""What a served caller gets: the engine's answer, and the gateway's few words beside it."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.e2e.harness import CHAT, PLAIN, Front, caller, chat, endless, ids


async def test_a_whole_answer_says_its_class_its_wait_and_its_outcome(plain: Front) -> None:
    async with plain.expect(completed=1):
        answer = await plain.ask(chat())
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert answer.headers["x-sluicegate-class"] == "short"
    assert answer.headers["x-sluicegate-outcome"] == "completed"
    assert int(answer.headers["x-sluicegate-queue-ms"]) >= 0
    assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (PLAIN, ids(3))])
async def test_a_stream_is_the_engines_and_its_outcome_is_not_known_at_the_head(
    plain: Front, path: str, body: dict[str, Any]
) -> None:
    asked = {**body, "ignore_eos": True, "max_tokens": 6}
    async with plain.expect(completed=1), plain.stream(asked, path) as stream:
        headers, events = stream.response.headers, await stream.rest()
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-sluicegate-class"] == "short"
    assert "x-sluicegate-outcome" not in headers
    assert events[-1] == "[DONE]"
    assert len(events) == 6 + (path == CHAT) + 1
    assert plain.requests()[-1]["stream"] is True


async def test_the_engines_stream_passes_byte_for_byte(plain: Front, fast: str) -> None:
    asked = {**chat(), "stream": True, "seed": 5, "max_tokens": 9}
    async with caller() as client:
        direct = await client.post(fast + CHAT, json=asked, headers={"x-request-id": "same"})
    async with plain.expect(completed=1):
        relayed = await plain.ask(asked, X_Request_Id="same")

    def timeless(body: str) -> str:
        created = json.loads(body.partition("\n\n")[0].removeprefix("data: "))["created"]
        unnamed = re.sub('"id":"chatcmpl-[^"]*"', '"id":""', body)
        return unnamed.replace(f'"created":{created}', '"created":0')

    assert timeless(relayed.text) == timeless(direct.text)


async def test_a_model_may_be_called_by_its_alias(plain: Front) -> None:
    async with plain.expect(completed=1):
        answer = await plain.ask(chat(model="default"))
    assert answer.status_code == 200
    assert plain.requests()[-1]["model"] == "simulated"


async def test_one_connection_serves_good_and_refused_requests_in_turn(plain: Front) -> None:
    """A refusal that comes before its body was read must not spoil what follows."""
    good = json.dumps(chat()).encode()
    asks = [
        (CHAT, good, {}, 200),
        (CHAT, b"x" * 60000, {"authorization": "Bearer nothing"}, 401),
        (CHAT, good, {}, 200),
        ("/v1/nothing", b"x" * 60000, {}, 404),
        (CHAT, good, {}, 200),
        (CHAT, b"x" * 200000, {}, 413),
        (CHAT, good, {}, 200),
        (CHAT, b"x" * 60000, {"content-type": "text/plain"}, 415),
        (CHAT, good, {}, 200),
    ]
    statuses = []
    async with (
        plain.expect(completed=5, unauthenticated=1, not_found=1, body_too_large=1, bad_request=1),
        caller() as client,
    ):
        for path, content, headers, _ in asks:
            base = {**plain.headers(), "content-type": "application/json"}
            answer = await client.post(plain.url + path, content=content, headers=base | headers)
            statuses.append(answer.status_code)
    assert statuses == [status for *_, status in asks]


async def test_a_pipelined_second_request_is_answered_after_the_first(plain: Front) -> None:
    content = json.dumps(chat()).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"authorization: {plain.headers()['authorization']}\r\ncontent-length: {len(content)}\r\n"
    )
    first = f"{head}x-request-id: one\r\n\r\n".encode() + content
    second = f"{head}x-request-id: two\r\nconnection: close\r\n\r\n".encode() + content
    async with plain.expect(completed=2):
        answers = await plain.raw(first + second)
    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert answers.index(b"x-request-id: one") < answers.index(b"x-request-id: two")


async def test_many_callers_at_once_are_all_served_and_all_accounted_for(plain: Front) -> None:
    count = 120
    bodies = [
        chat(f"caller {n}", stream=n % 2 == 0, max_tokens=1 + n % 7, n=1 + n % 2)
        for n in range(count)
    ]
    async with plain.expect(completed=count):
        answers = await asyncio.gather(*(plain.ask(body) for body in bodies))
    assert {answer.status_code for answer in answers} == {200}
    assert await plain.total("sluicegate_in_flight") == 0


async def test_a_running_request_is_seen_by_operators_and_gone_afterwards(tight: Front) -> None:
    async with tight.expect(client_cancelled=1), tight.stream(endless(n=2)) as stream:
        assert await stream.next() is not None
        status = await tight.status()
        assert status["running"] == 1
        assert [engine["slots"] for engine in status["engines"]] == [2]
        assert await tight.total("sluicegate_engine_slots") == 2
        assert await tight.total("sluicegate_in_flight", service_class="roomy") == 1
