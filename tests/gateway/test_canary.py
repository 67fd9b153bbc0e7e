"""A watch in a gateway: what it hears, how it takes a canary back, and what stops it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.canary import Canaries
from gateway.domain import Arm, Outcome
from gateway.drains import Drains
from gateway.finished import Finished
from gateway.lifetime import Ending, Timeline
from gateway.manifest_desk import Desk
from gateway.moves import RouteError
from gateway.sent import by_name
from gateway.state import StateError
from gateway.steering import Move, Steering
from gateway.visit import Visit
from tests.e2e.harness import eventually
from tests.gateway.controlled import WHOLE, Held, controlled

A, B = "http://127.0.0.1:8001", "http://127.0.0.1:8002"
CONFIG = f'{WHOLE}\n[pool.b]\nengines = ["{B}"]\n'
ROUTE = "m/short"
ABORT = [{"metric": "error_rate", "max": 0.02, "above_stable": 0.01, "min_count": 10}]
CANARY = Move(
    *("canary", ROUTE),
    to="b",
    weight=0.5,
    options={"without_record": "a test", "watch": {"abort": ABORT}},
)


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@dataclass
class World:
    """A steered gateway whose canaries are watched, and its requests."""

    held: Held
    steering: Steering
    canaries: Canaries
    drains: Drains

    @property
    def row(self) -> dict[str, Any]:
        found: dict[str, Any] = self.canaries.rows()["watches"][0]
        return found

    def candidate(self) -> str | None:
        return self.held.gateway.setup.table.routes["m", "short"].candidate_pool

    def ends(self, arm: Arm, outcome: Outcome, count: int = 1, **more: Any) -> None:
        """So many requests of an arm end, if anybody listens."""
        now, pool = self.held.clock(), "b" if arm is Arm.CANDIDATE else "a"
        plain = Finished(
            outcome, "id", None, now, now, model="m", size_class="short", arm=arm, pool=pool
        )
        for _ in range(count):
            for hear in self.held.gateway.heard:
                hear(replace(plain, **more))

    async def breach(self) -> None:
        self.ends(Arm.STABLE, Outcome.COMPLETED, 40)
        self.ends(Arm.CANDIDATE, Outcome.UPSTREAM_UNREACHABLE, 20)


@asynccontextmanager
async def watching(folder: Path, config: str = CONFIG) -> AsyncIterator[World]:
    async with controlled(folder, config) as held:
        gateway, trail = held.gateway, held.control.trail
        for engine in gateway.parts.turnstile.core.engines:
            gateway.parts.turnstile.tell(
                lambda core, now, name=engine: core.set_engine(name, now, up=True)
            )
        steering, drains = Steering(held.control), Drains(gateway, trail)
        canaries = Canaries(gateway, trail, steering, drains, Desk(gateway, trail))
        steering.followers += [drains, canaries]
        running = asyncio.ensure_future(canaries.run())
        try:
            yield World(held, steering, canaries, drains)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await drains.close()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.canary.LOOK_S", 0.02)


async def test_requests_are_heard_only_of_this_canary_and_only_while_it_is_watched(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as world:
        assert world.held.gateway.heard == []
        await world.steering.change("ben", CANARY)
        world.ends(Arm.CANDIDATE, Outcome.COMPLETED, 3)
        failed = Outcome.UPSTREAM_UNREACHABLE
        world.ends(Arm.CANDIDATE, failed, arrived_s=world.held.clock() - 1)  # before the canary
        world.ends(Arm.CANDIDATE, failed, pool="a")  # of a canary before this one
        world.ends(Arm.CANDIDATE, failed, size_class="long")
        world.ends(Arm.CANDIDATE, failed, model="other")
        await eventually(lambda: world.row["figures"])
        figure = world.row["figures"][0]
        assert figure["candidate"] == {"count": 3, "bad": 0, "value": 0.0}
        assert figure["stable"]["count"] == 0
        await world.steering.change("ben", Move("abort", ROUTE))
        assert (world.row["state"], world.row["why"]) == ("ended", "abort by ben")
        assert world.held.gateway.heard == []


async def test_going_back_to_a_candidate_with_no_callers_ends_its_watch(tmp_path: Path) -> None:
    none = 'size = "short"\npool = "a"\ncandidate_pool = "b"\ncandidate_weight = 0.0'
    async with watching(tmp_path, CONFIG.replace('size = "short"\npool = "a"', none)) as world:
        await world.steering.change("ben", CANARY)
        await world.steering.change("ben", replace(CANARY, weight=0.0, options={}))
        assert world.row["state"] == "watching"  # a pause is none
        await world.steering.change("ben", replace(CANARY, weight=0.2, options={}))
        await world.steering.change("ben", Move("rollback", ROUTE, to_revision=1))
        assert (world.row["state"], world.row["why"]) == ("ended", "rollback by ben")
        assert world.candidate() == "b"


async def test_a_breach_takes_back_and_drains_and_is_kept_as_such(tmp_path: Path) -> None:
    async with watching(tmp_path) as world:
        await world.steering.change("ben", CANARY)
        await world.breach()
        await eventually(lambda: "b" in world.held.gateway.setup.table.draining)
        assert (world.row["state"], world.candidate()) == ("reverted", None)
        kept = (await world.held.control.trail.get_all("watch"))[ROUTE]
        assert kept["why"] == world.row["why"]
        assert kept["why"].startswith("error_rate: 20 of 20 bad on candidate, 0 of 40 bad")
        (row,) = world.drains.rows()["drains"]
        assert (row["pool"], row["by"]) == ("b", "watch")
        assert row["why"].startswith("canary aborted: error_rate: ")


async def test_a_breach_that_can_not_be_written_is_tried_again_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(tmp_path) as world:
        await world.steering.change("ben", CANARY)
        refusals = []

        def full(*_: Any) -> None:
            refusals.append(1)
            raise StateError("state.sqlite: the disk is full")

        with monkeypatch.context() as broken:
            broken.setattr(world.held.control.trail.state, "put", full)
            await world.breach()
            await eventually(lambda: len(refusals) > 2)
            assert (world.row["state"], world.candidate()) == ("breached", "b")
            assert world.held.events("state_not_written")[0]["what"] == f"watch of {ROUTE}"
        await eventually(lambda: world.candidate() is None)
        assert world.row["state"] == "reverted"


async def test_a_candidate_that_other_routes_use_is_drained_of_this_route_alone(
    tmp_path: Path,
) -> None:
    config = CONFIG.replace('size = "long"\npool = "a"', 'size = "long"\npool = "b"')
    async with watching(tmp_path, config) as world:
        await world.steering.change("ben", CANARY)
        marks = Timeline(world.held.clock)
        visits = []
        for size in ("short", "long"):
            visit = Visit("id", "id", world.held.clock(), marks, Ending(), by_name([]))
            visit.model, visit.size_class, visit.engine, visit.pool = "m", size, B, "b"
            world.held.gateway.running.add(visit)
            visits.append(visit)
        await world.breach()
        await eventually(lambda: world.drains.rows()["drains"])
        assert world.held.gateway.setup.table.draining == frozenset()
        (row,) = world.drains.rows()["drains"]
        assert (row["drain"], row["remaining"]) == (f"{ROUTE}@b", 1)
        world.held.clock.now += row["deadline_s"] + 1
        await eventually(lambda: visits[0].ending.outcome is Outcome.DRAIN_TERMINATED)
        assert visits[1].ending.outcome is None


async def test_a_candidate_that_the_configuration_takes_away_ends_its_watch(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as world:
        before = world.held.gateway.setup.table
        await world.steering.change("ben", CANARY)
        world.held.control.steer(replace(before, revision=before.revision + 2))
        await eventually(lambda: world.row["state"] == "ended")
        assert world.row["why"] == "the configuration took the candidate away"


async def test_what_a_canary_needs_is_named_and_only_its_beginning_needs_it(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as world:
        bare = Move("canary", ROUTE, to="b", weight=0.5)
        with pytest.raises(RouteError, match="needs the rollback record of its baseline"):
            await world.steering.change("ben", bare)
        with pytest.raises(RouteError, match=r'watch: must be \{"abort"'):
            await world.steering.change("ben", replace(CANARY, options={
                "without_record": "x", "watch": [],
            }))  # fmt: skip
        world.held.gateway.parts.turnstile.tell(lambda core, now: core.set_engine(A, now, up=False))
        with pytest.raises(RouteError, match="pool 'a': no engine of it is up, so it could not"):
            await world.steering.change("ben", CANARY)
        assert world.canaries.rows() == {"watches": []}
        world.held.gateway.parts.turnstile.tell(lambda core, now: core.set_engine(A, now, up=True))
        await world.steering.change("ben", CANARY)
        await world.steering.change("ben", replace(bare, weight=0.8))
        assert world.row["weight"] == 80
        assert len(world.held.gateway.heard) == 1


async def test_a_breach_takes_back_no_canary_that_another_move_began_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = f'{CONFIG}\n[pool.c]\nengines = ["http://127.0.0.1:8003"]\n'
    async with watching(tmp_path, config) as world:
        keep, moved = Canaries._keep, asyncio.Event()

        async def slow_keep(self: Canaries, canary: Any) -> bool:
            if canary.state == "breached" and not moved.is_set():
                moved.set()
                await world.steering.change("ben", replace(CANARY, to="c"))
            return await keep(self, canary)

        monkeypatch.setattr(Canaries, "_keep", slow_keep)
        await world.steering.change("ben", CANARY)
        await world.breach()
        await moved.wait()
        await asyncio.sleep(0.2)
        assert (world.candidate(), world.row["candidate"], world.row["state"]) == (
            "c", "c", "watching",
        )  # fmt: skip


async def test_a_watch_that_can_not_be_read_again_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(tmp_path) as world:
        await world.steering.change("ben", CANARY)
        trail, gateway = world.held.control.trail, world.held.gateway

        async def damaged(kind: str) -> dict[str, dict[str, Any]]:
            return {ROUTE: {}}

        monkeypatch.setattr(trail, "get_all", damaged)
        again = Canaries(gateway, trail, world.steering, world.drains, Desk(gateway, trail))
        running = asyncio.ensure_future(again.run())
        await eventually(lambda: again.rows()["watches"])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        (row,) = again.rows()["watches"]
        assert (row["state"], row["candidate"], row["by"]) == ("watching", "b", "watch")
        assert len(row["figures"]) == 5


async def test_a_state_that_can_not_be_read_at_start_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(tmp_path) as world:
        await world.steering.change("ben", CANARY)
        trail, gateway = world.held.control.trail, world.held.gateway
        get_all, tries = trail.get_all, 0

        async def locked_at_first(kind: str) -> dict[str, dict[str, Any]]:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise StateError("state.sqlite: database is locked")
            return await get_all(kind)

        monkeypatch.setattr(trail, "get_all", locked_at_first)
        again = Canaries(gateway, trail, world.steering, world.drains, Desk(gateway, trail))
        running = asyncio.ensure_future(again.run())
        await eventually(lambda: again.rows()["watches"])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(world.held.events("state_not_read")) == 2
