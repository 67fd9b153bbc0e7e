"""What people see through Anthropic's client library on the messages surface."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from loadgen.engine.launch import EngineProcess
from tests.e2e.configs import Served
from tests.e2e.harness import Front, eventually
from tests.e2e.test_queues import all_slots_taken
from tests.e2e.test_sdk import arriving

MESSAGES: Any = [{"role": "user", "content": "Hello there."}]
FEW: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4}


@asynccontextmanager
async def client(
    gateway: Front, key: str | None = None, **options: Any
) -> AsyncIterator[AsyncAnthropic]:
    """Anthropic's client with its own defaults but for the address and the key."""
    secret = key if key is not None else next(iter(gateway.keys.values()))
    async with AsyncAnthropic(base_url=gateway.url, api_key=secret, **options) as made:
        yield made


async def test_a_message_whole_and_streamed_and_its_count(plain: Front) -> None:
    async with client(plain) as ours:
        whole = await ours.messages.create(model="simulated", **FEW)
        assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 4)
        async with ours.messages.stream(model="simulated", **FEW) as stream:
            streamed = await stream.get_final_message()
        assert streamed.stop_reason == "max_tokens"
        counted = await ours.messages.count_tokens(model="simulated", messages=MESSAGES)
        assert counted.input_tokens == whole.usage.input_tokens == streamed.usage.input_tokens


async def test_a_wrong_key_is_told_once_and_in_their_form(plain: Front) -> None:
    wrong = "sg_nobody_" + "a" * 22
    async with arriving(plain, "unauthenticated", 1), client(plain, wrong) as ours:
        with pytest.raises(anthropic.AuthenticationError) as told:
            await ours.messages.create(model="simulated", **FEW)
    body: Any = told.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")


async def test_a_prompt_over_the_context_is_told_once(plain: Front) -> None:
    long: Any = [{"role": "user", "content": "word " * 1500}]
    async with arriving(plain, "prompt_too_long", 1), client(plain) as ours:
        with pytest.raises(anthropic.BadRequestError) as told:
            await ours.messages.create(model="narrow", messages=long, max_tokens=4)
    body: Any = told.value.body
    assert body["error"]["type"] == "invalid_request_error"


async def test_a_full_queue_is_retried_twice_after_the_seconds_that_were_advised(
    tight: Front,
) -> None:
    async with all_slots_taken(tight), client(tight, tight.keys["count"]) as ours:
        waits = asyncio.ensure_future(ours.messages.create(model="simulated", **FEW))
        await eventually(lambda: _deep(tight))
        async with arriving(tight, "queue_full", 3):
            started_s = time.monotonic()
            with pytest.raises(anthropic.RateLimitError) as told:
                await ours.messages.create(model="simulated", **FEW)
        assert time.monotonic() - started_s >= 2.0
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
    body: Any = told.value.body
    assert body["error"]["type"] == "rate_limit_error"
    assert 1 <= int(told.value.response.headers["retry-after"]) <= 30


async def _deep(gateway: Front) -> bool:
    return await gateway.total("sluicegate_queue_depth") >= 1


async def test_no_engine_is_retried_and_then_told_as_overloaded(plain: Front) -> None:
    async with arriving(plain, "no_engine", 3), client(plain) as ours:
        with pytest.raises(anthropic.InternalServerError) as told:
            await ours.messages.create(model="unserved", **FEW)
    body: Any = told.value.body
    assert (told.value.status_code, body["error"]["type"]) == (503, "overloaded_error")


async def test_a_stream_that_breaks_off_raises_in_the_middle(
    engines: Callable[..., list[EngineProcess]], started: Callable[..., Front]
) -> None:
    (broken,) = engines(("--fault", "kill-after=3"))
    gateway = started({"simulated": Served([broken.url])}, (broken.url,))
    async with arriving(gateway, "stream_interrupted", 1), client(gateway) as ours:
        with pytest.raises(anthropic.APIStatusError) as told:
            async with ours.messages.stream(
                model="simulated", messages=MESSAGES, max_tokens=50
            ) as stream:
                _ = [event async for event in stream]
    body: Any = told.value.body
    assert body["type"] == "error"
