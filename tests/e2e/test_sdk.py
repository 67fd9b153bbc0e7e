"""What people see through the real client libraries: what they retry, how long, which exception.

Each test counts the requests that reached the gateway: the first, and the library's own retries.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from gateway.app import Gateway
from gateway.journal import EVERY_S
from loadgen.engine.launch import EngineProcess
from tests.e2e.configs import Served
from tests.e2e.harness import Front, eventually
from tests.e2e.inside import inside
from tests.e2e.test_queues import all_slots_taken

MESSAGES: Any = [{"role": "user", "content": "Hello there."}]
FEW: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4}


@asynccontextmanager
async def client(
    gateway: Front, key: str | None = None, **options: Any
) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's client with its own defaults but for the address and the key."""
    secret = key if key is not None else next(iter(gateway.keys.values()))
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=secret, **options) as made:
        yield made


@asynccontextmanager
async def arriving(gateway: Front, outcome: str, requests: int) -> AsyncIterator[None]:
    """Inside, so many requests reach the gateway and end in ``outcome``."""
    await asyncio.sleep(2 * EVERY_S)  # until what was before stands in the log
    before = len(gateway.requests())
    yield
    await eventually(lambda: len(gateway.requests()) >= before + requests)
    assert [line["outcome"] for line in gateway.requests()[before:]] == [outcome] * requests


async def test_an_answer_whole_and_streamed(plain: Front) -> None:
    async with client(plain) as ours:
        whole = await ours.chat.completions.create(model="simulated", **FEW)
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 4
        stream = await ours.chat.completions.create(model="simulated", stream=True, **FEW)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "length"
        assert [m.id async for m in await ours.models.list()][:2] == ["simulated", "default"]


async def test_the_queue_time_and_class_are_readable_on_the_answer(plain: Front) -> None:
    async with client(plain) as ours:
        raw = await ours.chat.completions.with_raw_response.create(model="simulated", **FEW)
    assert raw.headers["x-sluicegate-class"] == "short"
    assert int(raw.headers["x-sluicegate-queue-ms"]) >= 0


async def test_a_wrong_key_is_told_once_and_not_retried(plain: Front) -> None:
    async with arriving(plain, "unauthenticated", 1), client(plain, "sg_nobody_" + "a" * 22) as us:
        with pytest.raises(openai.AuthenticationError) as told:
            await us.chat.completions.create(model="simulated", **FEW)
    assert told.value.code == "unauthenticated"


async def test_a_model_that_is_not_granted_is_told_once(plain: Front) -> None:
    async with (
        arriving(plain, "forbidden", 1),
        client(plain, plain.keys["only-other"]) as ours,
    ):
        with pytest.raises(openai.PermissionDeniedError):
            await ours.chat.completions.create(model="simulated", **FEW)


async def test_a_prompt_over_the_context_is_told_once_with_the_code_people_look_for(
    plain: Front,
) -> None:
    long: Any = [{"role": "user", "content": "word " * 1500}]
    async with arriving(plain, "prompt_too_long", 1), client(plain) as ours:
        with pytest.raises(openai.BadRequestError) as told:
            await ours.chat.completions.create(model="narrow", messages=long)
    assert told.value.code == "context_length_exceeded"


async def test_a_full_queue_is_retried_twice_after_the_seconds_that_were_advised(
    tight: Front,
) -> None:
    async with all_slots_taken(tight), client(tight, tight.keys["count"]) as ours:
        waits = asyncio.ensure_future(ours.chat.completions.create(model="simulated", **FEW))
        await eventually(lambda: _deep(tight))
        async with arriving(tight, "queue_full", 3):
            started_s = time.monotonic()
            with pytest.raises(openai.RateLimitError) as told:
                await ours.chat.completions.create(model="simulated", **FEW)
        # Two pauses of at least a second each: the library obeys Retry-After.
        assert time.monotonic() - started_s >= 2.0
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
    assert told.value.code == "queue_full"
    assert 1 <= int(told.value.response.headers["retry-after"]) <= 30


async def _deep(gateway: Front) -> bool:
    return await gateway.total("sluicegate_queue_depth") >= 1


async def test_no_engine_is_retried_and_then_told_as_a_server_error(plain: Front) -> None:
    async with arriving(plain, "no_engine", 3), client(plain) as ours:
        with pytest.raises(openai.InternalServerError) as told:
            await ours.chat.completions.create(model="unserved", **FEW)
    assert (told.value.status_code, told.value.code) == (503, "no_engine")


async def test_a_fault_of_the_gateway_is_not_retried(fast: str, tmp_path: Path) -> None:
    def broken(gateway: Gateway) -> Gateway:
        def fault(*_: object, **__: object) -> None:
            raise RuntimeError("a planted fault")

        gateway.parts.turnstile.enter = fault  # type: ignore[method-assign,assignment]
        return gateway

    async with inside(tmp_path, fast, change=broken) as (_, outside, lines):
        async with client(outside) as ours:
            with pytest.raises(openai.InternalServerError) as told:
                await ours.chat.completions.create(model="simulated", **FEW)
        ended = [line["outcome"] for line in lines() if line["event"] == "request"]
    assert (told.value.status_code, ended) == (500, ["internal_error"])


async def test_a_stream_that_breaks_off_raises_in_the_middle(
    engines: Callable[..., list[EngineProcess]], started: Callable[..., Front]
) -> None:
    (broken,) = engines(("--fault", "kill-after=3"))
    gateway = started({"simulated": Served([broken.url])}, (broken.url,))
    async with arriving(gateway, "stream_interrupted", 1), client(gateway) as ours:
        stream = await ours.chat.completions.create(
            model="simulated", messages=MESSAGES, max_tokens=50, stream=True
        )
        with pytest.raises(openai.APIError) as told:
            _ = [chunk async for chunk in stream]
    assert told.value.code == "stream_interrupted"


async def test_a_caller_who_gives_up_is_counted_as_gone(tight: Front) -> None:
    async with (
        all_slots_taken(tight),
        arriving(tight, "client_cancelled", 1),
        client(tight, tight.keys["roomy"], timeout=0.5, max_retries=0) as ours,
    ):
        with pytest.raises(openai.APITimeoutError):
            await ours.chat.completions.create(model="simulated", **FEW)
