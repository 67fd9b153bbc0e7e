"""Drains: where requests go while pools drain, what waits, what runs, and what is kept of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit import AuditEntry
from gateway.domain import AdmissionMode, FlowKey, Outcome
from gateway.drains import POLL_S, Drains
from gateway.lifetime import Ending, Timeline
from gateway.moves import RouteError
from gateway.routing import ModelName, Route, RouteTable, serving
from gateway.sent import by_name
from gateway.state import StateError
from gateway.status import readiness
from gateway.steering import Move, Steering
from gateway.verdicts import RouteView
from gateway.visit import Visit
from tests.gateway import admission_rules as rules
from tests.gateway.admission_story import LIMITS, LONG, SHORT_SEATS, Gate
from tests.gateway.controlled import WHOLE, Held, controlled

NAMES = ("blue", "green", "m/short")
ROUTE = Route("m", "short", "blue", "green", 0.25)


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


# -- where requests go ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draining", "stable", "candidate", "nowhere"),
    [
        ((), "blue", "green", False),
        (("blue",), "green", None, False),
        (("green",), "blue", None, False),
        (("blue", "green"), "blue", None, True),
        (("m/short",), "blue", "green", True),
        (("m/long", "other"), "blue", "green", False),
    ],
)
def test_what_would_go_to_a_draining_pool_goes_to_the_other_one(
    draining: tuple[str, ...], stable: str, candidate: str | None, nowhere: bool
) -> None:
    found = serving(ROUTE, frozenset(draining))
    assert (found.stable_pool, found.candidate_pool) == (stable, candidate)
    assert found.draining is nowhere


@given(st.frozensets(st.sampled_from(NAMES)), st.sampled_from(["blue", "red"]), st.booleans())
def test_no_request_is_sent_to_what_drains(
    draining: frozenset[str], stable: str, has_candidate: bool
) -> None:
    candidate = "green" if has_candidate else None
    route = Route("m", "short", stable, candidate, 0.5 if has_candidate else 0.0)
    models = {"m": ModelName("m", "m")}
    table = RouteTable(1, b"salt" * 8, {("m", "short"): route}, models, draining)
    served = table.route("m", "short")
    for who in ("a", "b", "c", "d", "e", "f"):
        pool = served.pool(table.arm(served, who))
        assert served.draining or pool not in draining
    view = table.views()[("m", "short")]
    assert (view.stable, view.candidate, view.draining) == (
        *(served.stable_pool, served.candidate_pool, served.draining),
    )
    lost = {"m/short"} & draining or {stable, candidate or stable} <= draining
    assert served.draining is bool(lost)


# -- what waits ----------------------------------------------------------------------------


def drain(gate: Gate, mode: AdmissionMode = AdmissionMode.ENFORCE) -> list[str]:
    view = RouteView("all", mode=mode, draining=True)
    return gate.reroute(dict.fromkeys(gate.routes, view))


def test_what_waits_on_a_drained_route_is_refused_at_once_and_what_runs_goes_on() -> None:
    gate = Gate(engines={"e0": replace(LIMITS, slots=1)})
    assert gate.offer("runs") == ["runs -> e0"]
    assert gate.offer("waits") == ["waits waits"]
    assert drain(gate) == ["waits: draining"]
    assert gate.offer("late") == ["late: draining"]
    assert gate.core.engine_views()[0].slots == 1
    assert gate.done("runs") == []
    assert gate.route("all") == []
    assert gate.offer("later") == ["later -> e0"]


def test_what_fails_on_its_engine_during_a_drain_is_not_sent_to_another() -> None:
    gate = Gate(engines={"e0": LIMITS, "e1": LIMITS})
    gate.offer("runs")
    drain(gate)
    assert gate.fails("runs") == ["runs: draining"]
    assert {view.slots for view in gate.core.engine_views()} == {0}


def test_a_drained_route_keeps_no_reservation_from_the_others() -> None:
    gate = Gate((SHORT_SEATS, LONG), {"e0": replace(LIMITS, slots=3, max_prefilling=())})
    assert gate.ask("first", "long") == "e0"
    assert gate.ask("long", "long") == "waits"
    short = {("m", "short"): RouteView("all", draining=True), ("m", "long"): RouteView("all")}
    assert gate.reroute(short) == ["long -> e0"]


@pytest.mark.parametrize("mode", list(AdmissionMode))
def test_no_mode_of_admission_gets_a_request_past_a_drain(mode: AdmissionMode) -> None:
    gate = Gate()
    drain(gate, mode)
    assert gate.offer("late") == ["late: draining"]
    assert gate.core.pick(FlowKey("m", "short", "chat")) is None


@pytest.mark.parametrize("seed", range(6))
def test_the_properties_of_admission_hold_while_routes_drain_and_come_back(seed: int) -> None:
    world = rules.seeded_world(seed, 1 + seed % 3, models=1 + seed % 2)
    machine = rules.run(world, seed, 2500, rules.ALL | {rules.drain: 6})
    assert machine.stats["answer draining"] > 0


# -- what runs -----------------------------------------------------------------------------

TWO_POOLS = (
    WHOLE
    + """
[pool.b]
engines = ["http://127.0.0.1:8002"]
[pool.c]
engines = ["http://127.0.0.1:8002", "http://127.0.0.1:8003"]
max_engines = 2
"""
)
A, B, C = (f"http://127.0.0.1:{port}" for port in (8001, 8002, 8003))


@asynccontextmanager
async def steered(folder: Path) -> AsyncIterator[tuple[Held, Steering, Drains]]:
    async with controlled(folder, TWO_POOLS) as held:
        steering = Steering(held.control)
        drains = Drains(held.gateway, held.control.trail)
        steering.followers.append(drains)
        try:
            yield held, steering, drains
        finally:
            await drains.close()


def running(held: Held, engine: str, pool: str, size: str = "short") -> Visit:
    marks = Timeline(held.clock)
    visit = Visit("id", "id", held.clock(), marks, Ending(), by_name([]))
    visit.model, visit.size_class, visit.engine, visit.pool = "m", size, engine, pool
    held.gateway.running.add(visit)
    return visit


async def told(held: Held) -> AuditEntry:
    """The entry that says how a drain ended."""
    async with asyncio.timeout(10.0):
        while True:
            entry: AuditEntry = (await held.control.trail.audit(1))["entries"][0]
            if entry.action == "drained":
                return entry
            await asyncio.sleep(0.01)


async def ended(drains: Drains, name: str) -> dict[str, Any]:
    async with asyncio.timeout(10.0):
        while True:
            row = next(row for row in drains.rows()["drains"] if row["drain"] == name)
            if row["state"] == "done":
                return dict(row)
            await asyncio.sleep(0.01)


async def test_a_pool_drains_at_its_own_pace_until_the_deadline_then_what_is_left_is_ended(
    tmp_path: Path,
) -> None:
    async with steered(tmp_path) as (held, steering, drains):
        quick, slow = running(held, A, "a"), running(held, A, "a", "long")
        beside = running(held, C, "c")
        await steering.change("ben", Move("drain", pool="a", deadline_s=30.0, why="upgrade"))
        (row,) = drains.rows()["drains"]
        assert (row["pool"], row["remaining"], row["deadline_s_left"]) == ("a", 2, 30.0)
        assert held.gateway.waited_for() == 2
        held.gateway.running.discard(quick)
        held.clock.now += 31.0
        async with asyncio.timeout(10.0):
            await slow.ending.wait()
        assert slow.ending.outcome is Outcome.DRAIN_TERMINATED
        held.gateway.running.discard(slow)
        row = await ended(drains, "a")
        assert (row["drained"], row["ended"], row["remaining"]) == (1, 1, 0)
        assert (quick.ending.outcome, beside.ending.outcome) == (None, None)
        (line,) = held.events("drain_ended")
        assert line == {"drain": "a", "by": "ben", "drained": 1, "ended": 1}
        entry = await told(held)
        assert (entry.route, entry.detail) == ("a", {"drained": 1, "ended": 1})


async def test_an_engine_of_two_pools_goes_on_for_the_one_that_does_not_drain(
    tmp_path: Path,
) -> None:
    async with steered(tmp_path) as (held, steering, drains):
        mine, others = running(held, B, "b"), running(held, B, "c")
        await steering.change("ben", Move("drain", pool="b", deadline_s=0.0))
        async with asyncio.timeout(10.0):
            await mine.ending.wait()
        held.gateway.running.discard(mine)
        assert (await ended(drains, "b"))["ended"] == 1
        assert others.ending.outcome is None


async def test_a_pool_that_a_reload_takes_away_drains_on_until_its_deadline(
    tmp_path: Path,
) -> None:
    async with steered(tmp_path) as (held, steering, drains):
        quick, slow = running(held, B, "b"), running(held, B, "b")
        others = running(held, B, "c")
        await steering.change("ben", Move("drain", pool="b", deadline_s=30.0))
        held.rewrite('[pool.b]\nengines = ["http://127.0.0.1:8002"]\n', "")
        await held.control.reload("ben")
        assert "b" not in held.gateway.parts.fleet.pools
        held.gateway.running.discard(quick)
        await asyncio.sleep(3 * POLL_S)
        (row,) = drains.rows()["drains"]
        assert (row["state"], row["remaining"], row["drained"]) == ("draining", 1, 1)
        assert (held.gateway.waited_for(), slow.ending.outcome) == (1, None)
        held.clock.now += 31.0
        async with asyncio.timeout(10.0):
            await slow.ending.wait()
        held.gateway.running.discard(slow)
        row = await ended(drains, "b")
        assert (row["drained"], row["ended"]) == (1, 1)
        assert others.ending.outcome is None


async def test_what_comes_after_a_drain_began_is_not_ended_by_it(tmp_path: Path) -> None:
    """The pool may have been configured again, or have become a candidate again."""
    async with steered(tmp_path) as (held, steering, drains):
        old = running(held, A, "a")
        await steering.change("ben", Move("drain", pool="a", deadline_s=30.0))
        held.clock.now += 10.0
        new = running(held, A, "a")
        held.clock.now += 21.0
        async with asyncio.timeout(10.0):
            await old.ending.wait()
        held.gateway.running.discard(old)
        assert (await ended(drains, "a"))["ended"] == 1
        assert new.ending.outcome is None


async def test_a_route_drains_without_its_pool_and_everything_drains_at_once(
    tmp_path: Path,
) -> None:
    async with steered(tmp_path) as (held, steering, drains):
        short, long = running(held, A, "a"), running(held, A, "a", "long")
        await steering.change("ben", Move("drain", route="m/short", deadline_s=0.0))
        async with asyncio.timeout(10.0):
            await short.ending.wait()
        held.gateway.running.discard(short)
        assert (await ended(drains, "m/short"))["route"] == "m/short"
        assert long.ending.outcome is None
        assert readiness(held.gateway)["reasons"][0] != "draining"
        await steering.change("ben", Move("drain", everything=True, deadline_s=0.0))
        held.gateway.running.discard(long)
        await ended(drains, "m/long")
        assert readiness(held.gateway)["reasons"][0] == "draining"


async def test_an_undrained_pool_ends_nothing_any_more(tmp_path: Path) -> None:
    async with steered(tmp_path) as (held, steering, drains):
        visit = running(held, A, "a")
        await steering.change("ben", Move("drain", pool="a", deadline_s=5.0))
        await steering.change("ben", Move("undrain", pool="a"))
        held.clock.now += 10.0
        await asyncio.sleep(0.2)
        assert visit.ending.outcome is None
        assert [row["state"] for row in drains.rows()["drains"]] == ["cancelled"]
        assert await held.control.trail.get_all("drain") == {}


async def test_a_restart_during_a_drain_keeps_the_pool_out_of_use(tmp_path: Path) -> None:
    async with steered(tmp_path) as (held, steering, drains):
        running(held, A, "a")
        await steering.change("ben", Move("drain", pool="a", deadline_s=60.0, why="upgrade"))
        await drains.close()
        # A new process: the table and the records are as they were, and nothing runs.
        held.gateway.running.clear()
        again = Drains(held.gateway, held.control.trail)
        await again.resume()
        (row,) = again.rows()["drains"]
        assert (row["drain"], row["state"], row["why"]) == ("a", "done", "upgrade")
        assert held.gateway.setup.table.route("m", "short").draining
        assert (await told(held)).why == "the gateway was restarted meanwhile"
        assert (await held.control.trail.get_all("drain"))["a"]["state"] == "done"


@pytest.mark.parametrize("deadline_s", [-1.0, 1e9, float("nan")])
async def test_a_deadline_that_can_not_be_is_refused_and_changes_nothing(
    tmp_path: Path, deadline_s: float
) -> None:
    async with steered(tmp_path) as (held, steering, drains):
        with pytest.raises(RouteError, match="deadline_s: must be from 0"):
            await steering.change("ben", Move("drain", pool="a", deadline_s=deadline_s))
        assert drains.rows() == {"drains": []}
        assert not held.gateway.setup.table.draining


async def test_a_drain_whose_record_is_damaged_is_named_at_start(tmp_path: Path) -> None:
    async with steered(tmp_path) as (held, steering, _):
        await steering.change("ben", Move("drain", pool="a"))
        await held.control.trail.put("drain", "a", {})
        with pytest.raises(StateError, match="drain a: the record is damaged: KeyError"):
            await Drains(held.gateway, held.control.trail).resume()
