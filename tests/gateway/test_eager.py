import asyncio
from typing import Any

import pytest

from gateway.eager import Started
from tests.gateway.scripted import BACKEND


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def test_what_has_nothing_to_wait_for_is_done_at_once() -> None:
    async def ready() -> int:
        return 7

    started = Started(ready())
    assert (started.done, started.value) == (True, 7)


async def test_what_waits_goes_on_in_the_task_that_awaits_it() -> None:
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    steps: list[str] = []

    async def waits() -> int:
        steps.append("begun")
        first = await gate
        await asyncio.sleep(0)
        return first + 1

    started = Started(waits())
    assert (steps, started.done) == (["begun"], False)
    gate.set_result(1)
    assert await started == 2
    assert (started.done, started.value) == (True, 2)


async def test_a_future_that_is_done_before_the_rest_is_awaited_is_no_matter() -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def waits() -> str:
        await gate
        return "so"

    started = Started(waits())
    gate.set_result(None)
    await asyncio.sleep(0)
    assert await asyncio.wait_for(_all_of(started), 5) == "so"


async def _all_of(started: Started[str]) -> str | None:
    return await started


async def test_a_cancelled_wait_cancels_what_was_started() -> None:
    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def awaits(started: Started[None]) -> None:
        await started

    task = asyncio.ensure_future(awaits(Started(waits())))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_faults_come_where_they_happen() -> None:
    async def at_once() -> None:
        raise LookupError("now")

    async def later() -> None:
        await asyncio.sleep(0)
        raise LookupError("later")

    with pytest.raises(LookupError, match="now"):
        Started(at_once())
    started = Started(later())
    with pytest.raises(LookupError, match="later"):
        await started
