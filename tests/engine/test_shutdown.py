"""Engines that end, told to or killed, through the gateway: the outcomes that are promised.

Each test ends the engine it is given, so these run after all others.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.e2e.harness import PLAIN, Front, chat, eventually, ids, refused
from tests.engine.vllm import Engine

pytestmark = pytest.mark.last
LONG = {"max_tokens": 9000, "ignore_eos": True}
# A second or two, so that what hangs is found within the test.
UPSTREAM = {
    "upstream": {"idle_timeout_s": 2.0, "answer_timeout_s": 6.0, "first_byte_timeout_s": 6.0},
    "flow": {"short": {"interactive": {"max_age_s": 4.0, "principal_share": 1.0}}},
}


async def down(gateway: Front) -> None:
    await eventually(lambda: bool(gateway.events("engine_down")), 30.0)


def no_success(answer: httpx.Response) -> None:
    """A 200 may be the engine's own; the gateway says of each that it is none."""
    assert answer.headers["x-sluicegate-outcome"] != "completed", answer.text
    if answer.status_code == 200:
        assert answer.json()["choices"][0]["finish_reason"] == "abort"


def told_cut_short(events: list[Any]) -> None:
    """The last that the caller read is an error: the gateway's, or the engine's where it could."""
    last = events[-2] if events[-1] == "[DONE]" else events[-1]
    assert "error" in last, events[-2:]


async def none_served(gateway: Front, **outcomes: int) -> None:
    """Three were asked; these outcomes are sure, and nobody was told of a success."""
    await gateway.at_rest()
    counted = await gateway.counts("sluicegate_outcomes_total", "outcome")
    assert {name: counted[name] for name in outcomes} == outcomes
    assert (counted["completed"], counted.total()) == (0, 3)


async def test_told_to_end_at_once_it_leaves_streams_hanging_and_the_gateway_ends_them(
    first: Engine, before: Callable[..., Front]
) -> None:
    """vLLM's default: nothing more comes, an abort, or an error if its core is gone first."""
    gateway = before(first, **UPSTREAM)
    async with gateway.stream(chat(**LONG)) as stream:
        assert await stream.next() is not None
        whole = asyncio.ensure_future(gateway.ask(chat(**LONG)))
        await first.until(running=2)
        first.process.send_signal(signal.SIGTERM)
        told_cut_short(await stream.rest())
    no_success(await whole)
    await down(gateway)
    await asyncio.sleep(2.0)  # no engine for so long is told at once
    refused(await gateway.ask(chat()), "no_engine")
    await none_served(gateway, stream_interrupted=1, no_engine=1)


async def test_told_to_end_with_time_it_finishes_what_runs_and_new_work_is_no_success(
    narrow: Engine, before: Callable[..., Front]
) -> None:
    """It goes on accepting and its health stays good; it answers 500, or an empty 200."""
    gateway = before(narrow)
    body = ids(20, max_tokens=600, ignore_eos=True)
    async with gateway.stream(body, PLAIN) as stream:
        assert await stream.next() is not None
        whole = asyncio.ensure_future(gateway.ask(body, PLAIN))
        await narrow.until(running=2)
        narrow.process.send_signal(signal.SIGTERM)
        await eventually(lambda: "draining in-flight requests" in narrow.log.read_text())
        for late in (ids(20), ids(20, stream=True)):
            no_success(await gateway.ask(late, PLAIN))
        for late in (chat(), chat(stream=True)):
            no_success(await gateway.ask(late))
        events = await stream.rest()
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert (await whole).json()["usage"]["completion_tokens"] == 600
    await asyncio.to_thread(narrow.process.wait, 60)
    await down(gateway)
    await gateway.at_rest()


async def test_a_killed_core_interrupts_streams_and_no_answer_is_a_success(
    qwen: Engine, before: Callable[..., Front]
) -> None:
    """The process that serves says so in its own words where it has time; it ends soon after."""
    gateway = before(qwen, **UPSTREAM)
    async with gateway.stream(chat(**LONG)) as stream:
        assert await stream.next() is not None
        whole = asyncio.ensure_future(gateway.ask(chat(**LONG)))
        await qwen.until(running=2)
        os.kill(qwen.core_pid, signal.SIGKILL)
        told_cut_short(await stream.rest())
    no_success(await whole)
    await down(gateway)
    await asyncio.sleep(2.0)
    refused(await gateway.ask(chat()), "no_engine")
    await none_served(gateway, stream_interrupted=1, no_engine=1)


async def test_a_killed_engine_interrupts_streams_and_is_unreachable_to_what_had_no_byte(
    victim: Engine, before: Callable[..., Front]
) -> None:
    gateway = before(victim, **UPSTREAM)
    async with gateway.expect(stream_interrupted=1, upstream_unreachable=1, no_engine=1):
        async with gateway.stream(chat(**LONG)) as stream:
            assert await stream.next() is not None
            whole = asyncio.ensure_future(gateway.ask(chat(**LONG)))
            await victim.until(running=2)
            victim.stop()
            last = (await stream.rest())[-1]
        assert last["error"]["code"] == "stream_interrupted"
        refused(await whole, "upstream_unreachable")
        await down(gateway)
        await asyncio.sleep(2.0)
        refused(await gateway.ask(chat()), "no_engine")
