"""What others do to the routes while a rehearsal runs: what is about it, and what is not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from gateway.admin_pages import shaped
from gateway.canary import Canaries
from gateway.domain import Outcome
from gateway.drains import Drains
from gateway.finished import Finished
from gateway.manifest import document, seal
from gateway.manifest_desk import Desk
from gateway.moves import RouteError
from gateway.rehearsal_desk import Rehearsals
from gateway.rehearsal_facts import Limits, Phase
from gateway.rehearsal_pages import RehearsalBody
from gateway.rehearsal_run import Order, Run
from gateway.steering import Move, Steering
from tests.gateway import records
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


async def test_a_canary_lasts_longer_until_its_candidate_has_served_enough(
    tmp_path: Path,
) -> None:
    async with rehearsing(tmp_path) as (_, run):
        watch, clock = run._watch, run._clock
        for phase in (Phase.CANARY, Phase.FLIP):
            watch.began_s = {phase: clock() - 1.5}  # of a second
            assert run._goes_on(phase) == (phase is Phase.CANARY)
        watch.began_s = {Phase.CANARY: clock() - 4.0}
        assert not run._goes_on(Phase.CANARY)
        watch.began_s = {Phase.CANARY: clock() - 1.5}
        for pool in ("a", *["b"] * 10):
            assert run._goes_on(Phase.CANARY)
            watch.hear(ended(pool, clock()))
        assert not run._goes_on(Phase.CANARY)
        assert watch.seen[-1].caller == "somebody"


def ended(pool: str, now: float) -> Finished:
    """A request of the route that was served well."""
    its = {"model": "m", "size_class": "short", "pool": pool, "key_id": "somebody"}
    return Finished(Outcome.COMPLETED, "id", None, now, now, dispatched_s=now, **its)  # type: ignore[arg-type]


# -- may it begin --------------------------------------------------------------------------


@asynccontextmanager
async def desk(folder: Path, weight: float) -> AsyncIterator[Rehearsals]:
    """The rehearsals of a gateway whose route has a candidate with that part of its callers."""
    stable = 'size = "short"\npool = "a"'
    candidate = f'{stable}\ncandidate_pool = "b"\ncandidate_weight = {weight}'
    async with controlled(folder, (WHOLE + POOLS).replace(stable, candidate)) as held:
        turnstile, trail = held.gateway.parts.turnstile, held.control.trail
        for name in turnstile.core.engines:
            turnstile.tell(lambda core, now, name=name: core.set_engine(name, now, up=True))
        steering, drains = Steering(held.control), Drains(held.gateway, trail)
        kept = Desk(held.gateway, trail)
        canaries = Canaries(held.gateway, trail, steering, drains, kept)
        made = Rehearsals(steering, drains, kept)
        steering.followers += [drains, canaries, made]
        yield made


ASKED = RehearsalBody(route=SHORT, check=True)


async def test_a_candidate_that_nobody_goes_to_is_no_canary_and_the_one_rehearsed_with(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, 0.0) as rehearsals:
        told = await rehearsals.begin("ben", ASKED.model_dump())
    (row,) = told["changed"]
    assert (row["before"]["candidate"], row["before"]["candidate_weight"]) == ("b", 0)
    assert (row["after"]["stable"], row["after"]["candidate"]) == ("b", None)


async def test_a_canary_in_force_is_told_with_the_way_to_end_it(tmp_path: Path) -> None:
    async with desk(tmp_path, 0.1) as rehearsals:
        words = r"in force \(10 % to b\): end it first \(sluicegate routes abort m/short\)"
        with pytest.raises(RouteError, match=words):
            await rehearsals.begin("ben", ASKED.model_dump())


@pytest.mark.parametrize("check", [True, False])
async def test_a_record_that_does_not_verify_is_refused_before_anything_begins(
    tmp_path: Path, check: bool
) -> None:
    async with desk(tmp_path, 0.0) as rehearsals:
        asked = {**ASKED.model_dump(), "check": check, "manifest": document(seal(records.WHOLE))}
        with pytest.raises(RouteError, match=r"m/short: manifest: record .*: has no route to pool"):
            await rehearsals.begin("ben", asked)
        assert (await rehearsals.view())["rehearsals"] == []


@pytest.mark.parametrize("value", [True, "5", [5]])
@pytest.mark.parametrize("key", ["weight", "hold_s", "drain_deadline_s", "limits"])
def test_what_is_no_number_is_none(key: str, value: Any) -> None:
    asked = {"route": SHORT, key: {"error_rate": value} if key == "limits" else value}
    with pytest.raises(HTTPException, match=f"{key}.*: input should be a valid number"):
        shaped(RehearsalBody, asked)
