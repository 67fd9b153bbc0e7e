"""A caller who leaves frees the engine, in whichever phase, and leaves nothing in the ledger."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.e2e.harness import Front, endless, eventually
from tests.e2e.test_cancel import STREAMS, WAYS, Caller, depth_is, phases
from tests.engine.conftest import SEATS
from tests.engine.vllm import Engine

FOREVER = {**endless(), "max_tokens": 9000, "stream": True}


@pytest.fixture
def gateway(first: Engine, before: Callable[..., Front]) -> Front:
    flow = {"principal_share": 1.0}
    return before(first, flow={size: {"interactive": flow} for size in ("short", "long")})


async def counted(gateway: Front, phase: str, before: Any) -> int:
    return int((await phases(gateway))[phase] - before[phase])


async def fill(stack: AsyncExitStack, gateway: Front, engine: Engine) -> list[Caller]:
    """Take every seat of the engine."""
    held = [await stack.enter_async_context(Caller(gateway)) for _ in range(SEATS)]
    for caller in held:
        await caller.send(FOREVER)
        await caller.reader.readuntil(b"data: ")
    await engine.until(running=SEATS)
    return held


@WAYS
async def test_in_decode_the_seat_is_free_at_once(
    gateway: Front, first: Engine, abruptly: bool
) -> None:
    seen = await phases(gateway)
    async with gateway.expect(client_cancelled=1), Caller(gateway) as caller:
        await caller.send(FOREVER)
        await caller.reader.readuntil(b"data: ")
        await first.until(running=1)
        caller.leave(abruptly=abruptly)
        await first.until(running=0)
    assert await counted(gateway, "mid_stream", seen) == 1


@WAYS
@STREAMS
async def test_in_prefill_the_work_ends_at_the_next_step(
    gateway: Front, first: Engine, stream: bool, abruptly: bool
) -> None:
    """Four long prompts come at once, so that the last is surely in prefill when all leave."""
    seen, before = await phases(gateway), await first.scrape()
    body = endless(messages=[{"role": "user", "content": "word " * 8000}], stream=stream)
    async with gateway.expect(client_cancelled=SEATS), AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(Caller(gateway)) for _ in range(SEATS)]
        for caller in callers:
            await caller.send(body)

        async def begun() -> bool:
            page = await first.scrape()
            return bool((page.running or 0) + (page.waiting or 0) >= 2)

        await eventually(begun)
        for caller in callers:
            caller.leave(abruptly=abruptly)
        await first.until(running=0)
    assert await counted(gateway, "before_first_byte", seen) >= 1
    done = ((await first.scrape()).prompt_tokens or 0) - (before.prompt_tokens or 0)
    assert done < SEATS * 8000


@WAYS
@STREAMS
async def test_one_that_waits_in_the_engine_is_taken_out(
    gateway: Front, first: Engine, stream: bool, abruptly: bool
) -> None:
    seen = await phases(gateway)
    async with gateway.expect(client_cancelled=SEATS + 1), AsyncExitStack() as stack:
        held = await fill(stack, gateway, first)
        waiting = await stack.enter_async_context(Caller(gateway))
        await waiting.send({**FOREVER, "stream": stream})
        await first.until(running=SEATS, waiting=1)
        waiting.leave(abruptly=abruptly)
        await first.until(running=SEATS)
        assert await counted(gateway, "before_first_byte", seen) == 1
        for caller in held:
            caller.leave(abruptly=abruptly)
        await first.until(running=0)
    assert await counted(gateway, "mid_stream", seen) == SEATS


@STREAMS
async def test_one_that_waits_in_the_gateway_never_comes_to_the_engine(
    first: Engine, before: Callable[..., Front], stream: bool
) -> None:
    gateway = before(
        first, limits={"slots": 2}, flow={"short": {"interactive": {"predict": False}}}
    )
    seen = await phases(gateway)
    async with gateway.expect(client_cancelled=2), Caller(gateway) as held:
        await held.send({**FOREVER, "n": 2})
        await held.reader.readuntil(b"data: ")
        await first.until(running=2)
        prompts = (await first.scrape()).prompt_tokens
        async with Caller(gateway) as queued:
            await queued.send({**FOREVER, "stream": stream})
            await eventually(lambda: depth_is(gateway, 1))
            await first.until(running=2)
            queued.leave(abruptly=True)
            await eventually(lambda: depth_is(gateway, 0))
        assert await counted(gateway, "queued", seen) == 1
        await first.until(running=2)
        assert (await first.scrape()).prompt_tokens == prompts
        held.leave(abruptly=True)
        await first.until(running=0)
