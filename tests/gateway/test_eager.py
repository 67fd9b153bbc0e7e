import asyncio
from typing import Any

import pytest

from gateway.eager import OneTask, Started
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


async def test_one_after_another_they_run_in_one_task() -> None:
    tasks, ran = OneTask(asyncio.get_running_loop()), list[asyncio.Task[Any] | None]()

    async def work() -> None:
        ran.append(asyncio.current_task())

    started = []
    for _ in range(3):
        started.append(tasks.start(work()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    tasks.close()
    await started[0]
    assert ran == started == started[:1] * 3


async def test_what_is_started_before_the_one_before_it_is_over_has_a_task_of_its_own() -> None:
    tasks, gate = OneTask(asyncio.get_running_loop()), asyncio.Event()
    both = {tasks.start(_passes(gate)), tasks.start(_passes(gate))}
    await asyncio.sleep(0)
    gate.set()
    tasks.close()
    await asyncio.gather(*both)
    assert len(both) == 2


async def _passes(gate: asyncio.Event) -> None:
    await gate.wait()


async def test_after_a_task_was_cancelled_another_is_made() -> None:
    tasks, gate = OneTask(asyncio.get_running_loop()), asyncio.Event()
    gate.set()
    first = tasks.start(_passes(gate))
    await asyncio.sleep(0)
    given = tasks.start(_passes(gate))
    first.cancel()  # before it has begun what it was given
    await asyncio.wait((first,))
    second = tasks.start(_passes(gate))
    tasks.close()
    await second
    assert (given, first.cancelled(), second is first) == (first, True, False)


async def test_a_task_without_work_ends_when_it_is_told_to() -> None:
    tasks, gate = OneTask(asyncio.get_running_loop()), asyncio.Event()
    gate.set()
    only = tasks.start(_passes(gate))
    await asyncio.sleep(0)
    assert not only.done()
    tasks.close()
    await only
