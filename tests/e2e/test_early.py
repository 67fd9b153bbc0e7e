"""Streams that begin before their answer, before an engine whose prefills take longer than that."""

from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from tests.e2e.configs import Served
from tests.e2e.conftest import Engines
from tests.e2e.harness import PLAIN, Front, caller, ids
from tests.e2e.test_sdk_anthropic import client

Start = Callable[..., Front]
# A prefill of a thousand tokens takes this engine one and a half seconds, a short one half of one.
CRAWLING = ("--time-scale", "0.02", "--sim-state")
LONG = 1000
LONG_MESSAGES: Any = [{"role": "user", "content": "word " * LONG}]


@pytest.fixture(scope="module")
def crawling(engines: Engines) -> str:
    return engines(CRAWLING)[0].url


def gateway_of(started: Start, engine: str, **changes: Any) -> Front:
    return started(
        {"simulated": Served([engine])},
        (engine,),
        server={"early_commit_after_s": 0.1, "principal_share": 1.0},
        **changes,
    )


async def lines_of(gateway: Front, body: dict[str, Any]) -> tuple[int, str, list[str]]:
    """Status, content type and lines of a stream, which is read to its end."""
    async with (
        caller() as client,
        client.stream(
            "POST", gateway.url + PLAIN, json={**body, "stream": True}, headers=gateway.headers()
        ) as answer,
    ):
        lines = [line async for line in answer.aiter_lines() if line]
        return answer.status_code, answer.headers["content-type"], lines


async def test_a_stream_begins_while_its_prompt_is_in_prefill_and_is_whole(
    started: Start, crawling: str
) -> None:
    gateway = gateway_of(started, crawling)
    async with gateway.expect(completed=1):
        status, kind, lines = await lines_of(gateway, ids(LONG, max_tokens=2))
    assert (status, kind) == (200, "text/event-stream; charset=utf-8")
    assert lines[0] == ": keep-alive"
    assert lines[1].startswith("data: {")
    assert lines[-1] == "data: [DONE]"
    assert len([line for line in lines if line.startswith("data: {")]) == 2


async def test_what_expires_behind_a_slow_prefill_is_told_in_the_stream_that_has_begun(
    started: Start, crawling: str
) -> None:
    gateway = gateway_of(
        started,
        crawling,
        flow={
            "long": {"interactive": {"max_age_s": 0.5, "principal_share": 1.0, "predict": False}}
        },
    )
    async with (
        gateway.expect(client_cancelled=1, queue_expired=2),
        gateway.stream(ids(LONG, max_tokens=500, ignore_eos=True), PLAIN),  # begun early, too
    ):
        status, _, lines = await lines_of(gateway, ids(LONG))
        async with client(gateway) as ours:
            with pytest.raises(anthropic.APIStatusError) as told:
                async with ours.messages.stream(
                    model="simulated", messages=LONG_MESSAGES, max_tokens=4
                ) as stream:
                    _ = [event async for event in stream]
    assert status == 200
    assert lines[0] == ": keep-alive"
    assert len(lines) == 2
    assert "queue_expired" in lines[1]
    body: Any = told.value.body
    assert (body["error"]["type"], body["error"]["code"]) == ("rate_limit_error", "queue_expired")
    assert {(line["outcome"], line["status"]) for line in gateway.requests()} == {
        ("queue_expired", 200),
        ("client_cancelled", 200),
    }
