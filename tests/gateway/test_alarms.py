import asyncio
import time
from typing import Any

import pytest

from gateway.alarms import Alarms
from tests.gateway.scripted import BACKEND, eventually


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def test_what_is_not_over_rings_once_and_in_order_and_what_is_over_never() -> None:
    row, rung = Alarms(asyncio.get_running_loop()).row(0.02), []
    rings = [lambda n=n: rung.append(n) for n in range(4)]
    for ring in rings:
        row.add(ring)
    row.discard(rings[1])
    await eventually(lambda: len(rung) == 3)
    await asyncio.sleep(0.05)
    assert (rung, len(row)) == ([0, 2, 3], 0)


async def test_it_rings_for_what_came_later_only_after_its_own_time() -> None:
    loop = asyncio.get_running_loop()
    row, rung = Alarms(loop).row(0.05), []
    row.add(lambda: rung.append(loop.time()))
    await asyncio.sleep(0.03)
    began_s = loop.time()
    row.add(lambda: rung.append(loop.time()))
    await eventually(lambda: len(rung) == 2)
    assert rung[1] - began_s >= 0.049


async def test_a_row_that_emptied_rings_again_for_what_comes_then() -> None:
    row, rung = Alarms(asyncio.get_running_loop()).row(0.01), []
    for _ in range(2):
        row.add(lambda: rung.append(1))
        await eventually(lambda: not len(row))
    assert len(rung) == 2


async def test_what_rings_may_end_another_that_is_due_as_well() -> None:
    row, rung = Alarms(asyncio.get_running_loop()).row(0.01), []

    def early() -> None:
        rung.append("early")
        row.discard(late)

    def late() -> None:
        rung.append("late")

    row.add(early)
    row.add(late)
    time.sleep(0.02)  # noqa: ASYNC251 - both are due at the loop's next look
    row.add(lambda: rung.append("last"))
    await eventually(lambda: "last" in rung)
    assert rung == ["early", "last"]


async def test_what_is_begun_by_a_ring_does_not_put_off_what_waits() -> None:
    loop = asyncio.get_running_loop()
    row, rung = Alarms(loop).row(0.2), []
    row.add(lambda: row.add(lambda: rung.append("begun")))
    await asyncio.sleep(0.1)
    row.add(lambda: rung.append("waited"))
    await eventually(lambda: len(rung) == 2)
    assert rung == ["waited", "begun"]


async def test_what_fails_is_told_to_the_loop_and_the_others_ring() -> None:
    loop = asyncio.get_running_loop()
    row, rung, told = Alarms(loop).row(0.01), [], []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    row.add(lambda: 1 // 0)
    row.add(lambda: rung.append("next"))
    await eventually(lambda: bool(rung))
    assert [type(error) for error in told] == [ZeroDivisionError]


async def test_delays_have_rows_of_their_own_which_are_found_again() -> None:
    alarms, rung = Alarms(asyncio.get_running_loop()), []
    alarms.row(30.0).add(lambda: rung.append("long"))
    alarms.row(0.01).add(lambda: rung.append("short"))
    await eventually(lambda: bool(rung))
    assert rung == ["short"]
    assert alarms.row(30.0) is alarms.row(30.0)
    assert len(alarms.row(30.0)) == 1
