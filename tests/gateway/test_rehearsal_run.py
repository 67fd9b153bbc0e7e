"""What others do to the routes while a rehearsal runs: what is about it, and what is not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from gateway.admin_pages import shaped
from gateway.drains import Drains
from gateway.moves import RouteError
from gateway.rehearsal_desk import Rehearsals
from gateway.rehearsal_facts import Limits
from gateway.rehearsal_pages import RehearsalBody
from gateway.rehearsal_run import Order, Run
from gateway.steering import Move, Steering
from tests.gateway.controlled import WHOLE, controlled

POOLS = """
[pool.b]
engines = ["http://127.0.0.1:8002"]
[pool.c]
engines = ["http://127.0.0.1:8003"]
"""
SHORT, LONG = "m/short", "m/long"


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@asynccontextmanager
async def rehearsing(folder: Path) -> AsyncIterator[tuple[Steering, Run]]:
    """A rehearsal of ``m/short`` from pool a to pool b that is told of every move."""
    async with controlled(folder, WHOLE + POOLS) as held:
        steering = Steering(held.control)
        drains = Drains(held.gateway, held.control.trail)
        run = Run(steering, drains, Order("r", "ben", ("m", "short"), "b", 0.5, 1.0, Limits()))
        follower = Rehearsals(steering, drains, None)  # type: ignore[arg-type]  asks no record
        follower._run = run
        steering.followers += [drains, follower]
        try:
            yield steering, run
        finally:
            await drains.close()


@pytest.mark.parametrize(
    "move",
    [
        Move("flip", LONG, to="c", force=True),
        Move("canary", LONG, to="b", weight=0.1, force=True),
        Move("drain", LONG),
        Move("drain", pool="c"),
    ],
)
async def test_a_move_of_another_route_or_pool_is_no_fault_of_the_rehearsal(
    tmp_path: Path, move: Move
) -> None:
    async with rehearsing(tmp_path) as (steering, run):
        told = await steering.change("anna", move)
        assert told["changed"]
        assert (run.faults, run.observed().differences) == ([], ())
        await run._move("flip", route=SHORT, to="b", force=True)  # its own goes on
        assert run.revisions["flip"] == told["revision"] + 1
        assert run.observed().differences == (f"{SHORT} is not as it was",)
        await run._move("rollback", route=SHORT, to_revision=run.base.revision)
        assert run.observed().differences == ()
        assert run.faults == []


@pytest.mark.parametrize(
    ("move", "differs"),
    [
        (Move("flip", SHORT, to="c", force=True), SHORT),
        (Move("flip", "m", to="c", force=True), SHORT),
        (Move("drain", SHORT), SHORT),
        (Move("drain", pool="a"), "a"),
        (Move("drain", pool="b"), "b"),
    ],
)
async def test_a_move_of_its_route_or_pools_ends_it_and_stays(
    tmp_path: Path, move: Move, differs: str
) -> None:
    async with rehearsing(tmp_path) as (steering, run):
        await steering.change("anna", move)
        assert run.faults == [f"anna moved the route meanwhile ({move.action})"]
        assert run.observed().differences == (f"{differs} is not as it was",)
        with pytest.raises(RouteError, match="somebody else moved the route"):
            await run._move("rollback", route=SHORT, to_revision=run.base.revision)


async def test_a_candidate_that_another_route_began_to_use_is_drained_of_this_one_alone(
    tmp_path: Path,
) -> None:
    """Also where the other began at the very moment of the drain."""
    async with rehearsing(tmp_path) as (steering, run):
        drains = run._drains
        asked: list[Move] = []

        async def late(move: Move) -> Any:
            asked.append(move)
            await steering.change("anna", Move("flip", LONG, to="b", force=True))
            return await steering.change("ben", move)

        drain = Move("drain", pool="b", deadline_s=7.0, why="over")
        assert await drains.end_candidate(SHORT, "ben", drain, late) == f"{SHORT}@b"
        assert len(asked) == 1
        (row,) = drains.rows()["drains"]
        assert (row["route"], row["pool"], row["by"], row["why"]) == (SHORT, "b", "ben", "over")
        assert row["deadline_s"] == 7.0
        assert steering.control.gateway.setup.table.draining == frozenset()


async def test_a_candidate_that_nobody_uses_is_drained_whole_and_once(tmp_path: Path) -> None:
    async with rehearsing(tmp_path) as (steering, run):
        for _ in range(2):
            drain = Move("drain", pool="b")
            name = await run._drains.end_candidate(SHORT, "ben", drain, run._make)
            assert name == "b"
            assert run.revisions == {"drain": 2}
        assert steering.control.gateway.setup.table.draining == {"b"}


@pytest.mark.parametrize("value", [True, "5", [5]])
@pytest.mark.parametrize("key", ["weight", "hold_s", "drain_deadline_s", "limits"])
def test_what_is_no_number_is_none(key: str, value: Any) -> None:
    asked = {"route": SHORT, key: {"error_rate": value} if key == "limits" else value}
    with pytest.raises(HTTPException, match=f"{key}.*: input should be a valid number"):
        shaped(RehearsalBody, asked)
