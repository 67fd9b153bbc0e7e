import asyncio
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


async def test_what_rings_may_end_another_and_begin_one() -> None:
    row, rung = Alarms(asyncio.get_running_loop()).row(0.01), []

    def late() -> None:
        rung.append("late")

    def early() -> None:
        rung.append("early")
        row.discard(late)
        row.add(later)

    def later() -> None:
        rung.append("later")

    row.add(early)
    await asyncio.sleep(0.005)
    row.add(late)
    await eventually(lambda: "later" in rung)
    assert rung in (["early", "later"], ["early", "late", "later"])


async def test_delays_have_rows_of_their_own_which_are_found_again() -> None:
    alarms, rung = Alarms(asyncio.get_running_loop()), []
    alarms.row(30.0).add(lambda: rung.append("long"))
    alarms.row(0.01).add(lambda: rung.append("short"))
    await eventually(lambda: bool(rung))
    assert rung == ["short"]
    assert alarms.row(30.0) is alarms.row(30.0)
    assert len(alarms.row(30.0)) == 1
