"""Clocks that jump: what waits expires by the rule and no sooner, nothing breaks or is left."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import chat, eventually
from tests.faults.caller import ask, post
from tests.faults.crooked import Peer
from tests.faults.stand import Stand, stand
from tests.faults.table import GOOD_BODY, good

HOUR_S = 3600.0
PATIENT = {
    "upstream": {"first_byte_timeout_s": 30.0, "answer_timeout_s": 30.0, "idle_timeout_s": 30.0},
    "limits": {"slots": 2},
}


@dataclass
class Clock:
    """The monotonic clock, with jumps."""

    offset_s: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset_s


@pytest.fixture
def clock() -> Clock:
    return Clock(2 * HOUR_S)


@pytest.fixture
async def pair(tmp_path: Path, clock: Clock) -> AsyncIterator[Stand]:
    async with stand(tmp_path, PATIENT, clock=clock) as running:
        yield running


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


async def one_runs_and_one_waits(pair: Stand, go: asyncio.Event) -> list[asyncio.Task[Any]]:
    async def held(peer: Peer) -> None:
        await go.wait()
        await good(peer)

    pair.requests.clear()
    pair.engine.script = held
    tasks, turnstile = [], pair.gateway.parts.turnstile
    for count, n in enumerate((2, 1)):
        request = post(chat(n=n), pair.key)
        tasks.append(asyncio.ensure_future(ask(pair.url, request)))
        await eventually(lambda c=count: (pair.engine.at_work, turnstile.waiting) == (1, c))
    return tasks


async def test_a_jump_forward_beyond_the_age_cap_expires_what_waits_and_keeps_what_runs(
    pair: Stand, clock: Clock
) -> None:
    go = asyncio.Event()
    runs, waits = await one_runs_and_one_waits(pair, go)
    clock.offset_s += 6.0  # the age cap is five
    go.set()
    assert ((await runs).body, (await waits).error()["code"]) == (GOOD_BODY, "queue_expired")
    await pair.serves_well()


async def test_a_jump_forward_below_the_age_cap_expires_nothing(pair: Stand, clock: Clock) -> None:
    go = asyncio.Event()
    tasks = await one_runs_and_one_waits(pair, go)
    clock.offset_s += 3.0
    await asyncio.sleep(0.1)
    go.set()
    assert [(await task).body for task in tasks] == [GOOD_BODY] * 2
    await pair.serves_well()


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S], ids=["forward", "back"])
async def test_a_jump_of_an_hour_breaks_nothing(pair: Stand, clock: Clock, jump_s: float) -> None:
    go = asyncio.Event()
    tasks = await one_runs_and_one_waits(pair, go)
    clock.offset_s += jump_s
    go.set()
    replies = [await task for task in tasks]
    assert {reply.status for reply in replies} <= {200, 429, 504}, replies
    if jump_s < 0:
        assert [reply.body for reply in replies] == [GOOD_BODY] * 2
    await pair.serves_well()
    clock.offset_s -= jump_s
    await pair.serves_well()
    assert "internal_error" not in {line["outcome"] for line in pair.requests}


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S, -1e9], ids=["forward", "back", "to the past"])
async def test_a_jump_of_the_wall_clock_has_no_effect(
    pair: Stand, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    go = asyncio.Event()
    tasks = await one_runs_and_one_waits(pair, go)
    real = time.time  # noqa: TID251 - it is what jumps
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    await asyncio.sleep(0.1)
    go.set()
    assert [(await task).body for task in tasks] == [GOOD_BODY] * 2
    await pair.serves_well()
