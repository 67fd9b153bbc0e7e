"""Moving traffic: checked whole, committed first, in force at once, and never half."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.audit import Note
from gateway.config import ConfigError, load
from gateway.control import Change, Control
from gateway.domain import AdmissionMode, Arm, FlowKey, MisuseError
from gateway.lifetime import Ending
from gateway.moves import PoolFacts, RouteError, drain, flip
from gateway.orders import PoolMove
from gateway.routing import RouteTable
from gateway.state import State, StateError
from gateway.steering import Extra, Move, StaleTableError, Steering
from gateway.trail import Draft, Trail, begin, state_warnings
from gateway.verdicts import Offer
from tests.e2e.harness import eventually
from tests.gateway.controlled import WHOLE, Held, controlled, write_tokenizer
from tests.gateway.minimal import write

A, B, C = (f"http://127.0.0.1:{port}" for port in (8001, 8002, 8003))
CONFIG = WHOLE + "".join(
    f'[pool.{name}]\nengines = ["{engine}"]\n' for name, engine in (("b", B), ("c", C))
)
STATE = '[state]\ndirectory = "state"\n'
SHORT = ("m", "short")


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@asynccontextmanager
async def steered(folder: Path, config: str = CONFIG) -> AsyncIterator[tuple[Held, Steering]]:
    async with controlled(folder, config) as held:
        for engine in held.gateway.parts.turnstile.core.engines:
            up(held, engine)
        yield held, Steering(held.control)


def up(held: Held, engine: str, *, up: bool = True) -> None:
    held.gateway.parts.turnstile.tell(lambda core, now: core.set_engine(engine, now, up=up))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[Held, Steering]]:
    async with steered(tmp_path) as made:
        yield made


World = tuple[Held, Steering]


def pools(held: Held) -> dict[str, tuple[str, str | None]]:
    routes = held.gateway.setup.table.routes.values()
    return {route.name: (route.stable_pool, route.candidate_pool) for route in routes}


def offer(held: Held, arm: Arm = Arm.STABLE, tokens: int = 10) -> Offer:
    key = FlowKey("m", "short", "interactive", arm)
    return Offer(key, "alice", tokens, held.clock())


# -- in force ------------------------------------------------------------------------------


async def test_a_move_is_in_force_for_who_asks_and_in_the_core(world: World) -> None:
    held, steering = world
    told = await steering.change("ben", Move("canary", "m", to="b", weight=0.25, revision=1))
    assert told["revision"] == held.gateway.setup.table.revision == 2
    assert pools(held) == {"m/short": ("a", "b"), "m/long": ("a", "b")}
    core = held.gateway.parts.turnstile.core
    candidate = core.flows[FlowKey("m", "short", "batch", Arm.CANDIDATE)]
    assert [engine.name for engine in candidate.engines] == [B]
    assert told["changed"][0] == {
        "route": "m/short",
        "before": {"stable": "a", "candidate": None, "candidate_weight": 0.0},
        "after": {"stable": "a", "candidate": "b", "candidate_weight": 25.0},
    }
    (line,) = held.events("admin_change")
    assert (line["who"], line["action"], line["route"]) == ("ben", "canary", "m")
    assert (line["revision"], line["audit"]) == (2, told["audit"])


async def test_what_waits_follows_a_flip_and_what_runs_stays(world: World) -> None:
    held, steering = world
    turnstile = held.gateway.parts.turnstile
    running = await turnstile.enter(offer(held), AdmissionMode.ENFORCE, Ending())
    up(held, A, up=False)
    waiting = asyncio.ensure_future(turnstile.enter(offer(held), AdmissionMode.ENFORCE, Ending()))
    await asyncio.sleep(0)
    assert (running.engine, turnstile.waiting) == (A, 1)
    await steering.change("ben", Move("flip", "m/short", to="b"))
    assert (await waiting).engine == B
    assert turnstile.core.engines[A].slots_used == 1
    turnstile.give_back(running)
    turnstile.give_back(waiting.result())


async def test_a_check_says_what_would_change_and_changes_nothing(world: World) -> None:
    held, steering = world
    before = steering.view()
    told = await steering.change("ben", Move("flip", "m", to="b", check=True))
    assert (told["revision"], told["checked"], len(told["changed"])) == (1, True, 2)
    assert steering.view() == before
    assert held.events("admin_change") == []


async def test_two_operators_can_not_overwrite_each_other(world: World) -> None:
    held, steering = world
    moves = (Move("flip", "m", to=pool, revision=1) for pool in ("b", "c"))
    first, second = await asyncio.gather(
        *(steering.change(who, move) for who, move in zip(("ben", "eve"), moves, strict=True)),
        return_exceptions=True,
    )
    assert isinstance(first, dict)
    assert isinstance(second, StaleTableError)
    assert second.told == {"revision": 2, "by": "ben", "action": "flip"}
    assert pools(held)["m/short"] == ("b", None)


async def test_a_caller_who_leaves_does_not_stop_a_move_half_way(world: World) -> None:
    held, steering = world
    asked = asyncio.ensure_future(steering.change("ben", Move("flip", "m", to="b")))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await eventually(lambda: pools(held)["m/short"] == ("b", None))
    assert held.control.trail.history[0].revision == 2


async def test_a_rollback_goes_back_and_further_back(world: World) -> None:
    held, steering = world
    for move in (
        Move("flip", "m/short", to="b"),
        Move("canary", "m/short", to="c", weight=0.1),
        Move("canary", "m/short", weight=0.5),
        Move("promote", "m/short"),
        Move("drain", pool="b"),
    ):
        await steering.change("ben", move)
    told = await steering.change("ben", Move("rollback", why="gaps"))
    assert pools(held)["m/short"] == ("b", None)
    assert {"pool": "b", "before": {"draining": True}, "after": {"draining": False}} in told[
        "changed"
    ]
    await steering.change("ben", Move("rollback"))
    assert pools(held)["m/short"] == ("a", None)
    with pytest.raises(RouteError, match="no earlier state"):
        await steering.change("ben", Move("rollback"))
    await steering.change("ben", Move("rollback", "m/short", to_revision=3))
    assert pools(held)["m/short"] == ("b", "c")
    for revision in (0, 9, 99):
        with pytest.raises(RouteError, match=f"to_revision: there is no revision {revision}"):
            await steering.change("ben", Move("rollback", to_revision=revision))


async def test_the_view_says_who_did_what(world: World) -> None:
    _, steering = world
    await steering.change("ben", Move("flip", "m/short", to="b", why="new image"))
    await steering.change("eve", Move("drain", pool="a"))
    seen = steering.view()
    assert [(h["who"], h["action"], h["why"], h["from_revision"]) for h in seen["history"]] == [
        ("eve", "drain", "", 2),
        ("ben", "flip", "new image", 1),
        ("configuration", "configuration", "the routes of the configuration", None),
    ]
    assert [h["touched"] for h in seen["history"]] == [["a"], ["m/short"], []]
    assert (seen["revision"], seen["state"], seen["pools"]["a"]["draining"]) == (3, "none", True)
    assert [(r["route"], r["stable"], r["previous"]) for r in seen["routes"]] == [
        ("m/short", "b", "a"), ("m/long", "a", None),
    ]  # fmt: skip
    audit = await steering.audit(2)
    assert audit["chain"] == "whole"
    assert [(e.who, e.action, e.route, e.to_revision) for e in audit["entries"]] == [
        ("eve", "drain", "a", 3), ("ben", "flip", "m/short", 2),
    ]  # fmt: skip


# -- refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (Move("flip", "m", to="nowhere"), "m/short: pool 'nowhere': is not configured"),
        (Move("flip", to="b"), "route: flip needs one"),
        (Move("dance", "m"), "action: must be one of flip, canary"),
        (Move("canary", "m", to="b"), "weight: canary needs one"),
        (Move("drain"), "drain: needs exactly one of pool, route and all"),
        (Move("drain", pool="a", everything=True), "drain: needs exactly one"),
        (Move("drain", pool="m/short"), "m/short: is no pool"),
        (Move("undrain", "m/short"), "m/short: is not draining"),
    ],
)
async def test_a_move_that_can_not_be_made_changes_nothing(
    world: World, move: Move, words: str
) -> None:
    _, steering = world
    before = steering.view()
    with pytest.raises(RouteError) as refused:
        await steering.change("ben", move)
    assert str(refused.value).startswith(words)
    assert steering.view() == before


async def test_traffic_goes_to_no_pool_that_is_down_unless_forced(world: World) -> None:
    held, steering = world
    up(held, B, up=False)
    for move in (Move("flip", "m/short", to="b"), Move("canary", "m", to="b", weight=0.1)):
        with pytest.raises(RouteError, match="m/short: pool 'b': no engine of it is up"):
            await steering.change("ben", move)
    told = await steering.change("ben", Move("flip", "m/short", to="b", force=True))
    assert told["warnings"] == ["m/short: pool 'b': no engine of it is up"]
    (entry,) = (await steering.audit(1))["entries"]
    assert entry.detail["force"] is True
    assert entry.detail["warnings"] == told["warnings"]
    up(held, A, up=False)
    told = await steering.change("ben", Move("rollback"))
    assert told["warnings"] == ["m/short: pool 'a': no engine of it is up"]
    assert pools(held)["m/short"] == ("a", None)


async def test_traffic_goes_to_no_pool_that_is_full(tmp_path: Path) -> None:
    config = CONFIG.replace("slots = 128", "slots = 24")
    async with steered(tmp_path, config) as (held, steering):
        core = held.gateway.parts.turnstile.core
        while core.engines[A].slots_used < 24:
            core.offer(offer(held), held.clock())
        await steering.change("ben", Move("flip", "m/long", to="b"))
        with pytest.raises(RouteError, match="m/long: pool 'a': every engine of it is full"):
            await steering.change("ben", Move("flip", "m/long", to="a"))


async def test_a_move_keeps_the_floors_that_a_configuration_keeps(tmp_path: Path) -> None:
    config = CONFIG + "[pool.b.limits]\nprefill_tokens = 20480\n"
    async with steered(tmp_path, config) as (held, steering):
        with pytest.raises(RouteError) as refused:
            await steering.change("ben", Move("flip", "m/long", to="b"))
        assert str(refused.value).startswith("pool.b: limits.prefill_tokens")
        await steering.change("ben", Move("flip", "m/long", to="c"))
        assert pools(held)["m/long"] == ("c", None)


async def test_a_canary_goes_to_no_pool_that_shares_an_engine(tmp_path: Path) -> None:
    config = CONFIG + f'[pool.d]\nengines = ["{A}", "{B}"]\n'
    async with steered(tmp_path, config) as (_, steering):
        with pytest.raises(RouteError) as refused:
            await steering.change("ben", Move("canary", "m/long", to="d", weight=0.1))
        assert str(refused.value) == "m/long.candidate_pool: shares an engine with the stable pool"


async def test_a_canary_on_what_seems_to_be_the_same_engine_is_warned_of(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, steering = world
    fleet = held.gateway.parts.fleet
    monkeypatch.setattr(fleet, "same_as", lambda engine: [A] if engine == B else [])
    told = await steering.change("ben", Move("canary", "m/long", to="b", weight=0.1))
    assert told["warnings"] == [f"m/long: {B} seems to be {A} of pool 'a'"]
    assert (await steering.change("ben", Move("abort", "m/long")))["warnings"] == []
    await steering.change("ben", Move("canary", "m/long", to="c", weight=0.1))
    with pytest.raises(RouteError, match=f"m/long: pool 'c': {A} is an engine of pool 'a' too"):
        await steering.change_pool("ben", PoolMove("c", [A]))


async def test_an_engine_given_to_a_pool_may_not_be_the_canarys_too(tmp_path: Path) -> None:
    config = CONFIG.replace(f'["{A}"]', f'["{A}"]\nmax_engines = 2')
    async with steered(tmp_path, config) as (_, steering):
        await steering.change_pool("ben", PoolMove("a", [A, B]))
        with pytest.raises(RouteError, match=f"m/long: pool 'b': {B} is an engine of pool 'a' too"):
            await steering.change("ben", Move("canary", "m/long", to="b", weight=0.1))


async def test_nobody_waits_for_somebody_elses_move_to_be_looked_at(world: World) -> None:
    held, steering = world
    watcher = Slow()
    steering.followers.append(watcher)
    slow = asyncio.ensure_future(steering.change("eve", Move("flip", "m/long", to="c")))
    await watcher.asked.wait()
    watcher.patient = False
    await steering.change("ben", Move("flip", "m/short", to="b"))
    assert pools(held) == {"m/short": ("b", None), "m/long": ("a", None)}
    watcher.go.set()
    assert (await slow)["revision"] == 3
    assert pools(held) == {"m/short": ("b", None), "m/long": ("c", None)}
    assert watcher.revisions == [1, 1, 2]


async def test_a_pool_that_changes_while_a_move_is_looked_at_is_looked_at_too(world: World) -> None:
    held, steering = world
    watcher = Slow()
    steering.followers.append(watcher)
    slow = asyncio.ensure_future(steering.change("eve", canary_to("b")))
    await watcher.asked.wait()
    watcher.patient = False
    await steering.change_pool("ben", PoolMove("b", [A]))
    watcher.go.set()
    with pytest.raises(RouteError, match=f"{A} is an engine of pool 'a' too"):
        await slow
    assert pools(held)["m/short"] == ("a", None)


def canary_to(pool: str) -> Move:
    return Move("canary", "m/short", to=pool, weight=0.5)


async def test_a_drain_says_whose_requests_it_refuses_and_who_goes_to_a_candidate(
    world: World,
) -> None:
    _, steering = world
    await steering.change("ben", canary_to("b"))
    told = await steering.change("ben", Move("drain", pool="a", check=True))
    assert told["warnings"] == [
        "m/short: all of its callers go to its candidate, which is not watched then",
        "m/long: its requests are refused as draining",
    ]
    told = await steering.change("ben", Move("drain", pool="b"))
    assert told["warnings"] == []


class Slow:
    """A follower that takes its time over the first move."""

    def __init__(self) -> None:
        self.asked, self.go, self.patient = asyncio.Event(), asyncio.Event(), True
        self.revisions: list[int] = []

    async def prepare(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> Extra:
        self.revisions.append(before.revision)
        self.asked.set()
        if self.patient:
            await self.go.wait()
        return Extra()

    def took_effect(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> None:
        pass

    def rows(self) -> dict[str, Any]:
        return {}


async def test_run_time_limits_are_kept_under_the_new_routes(world: World) -> None:
    held, steering = world
    body = Move("flip", "m/long", to="b")
    held.control.change("ben", Change(1, {f"engine.{C}.slots": 30}))
    held.control.change("ben", Change(2, {f"engine.{B}.prefill_tokens": 20_000}))
    with pytest.raises(RouteError, match=rf"engine\.{B}: limits\.prefill_tokens"):
        await steering.change("ben", body)
    assert pools(held)["m/long"] == ("a", None)


# -- what can't be committed, and what does not take effect --------------------------------


async def test_what_can_not_be_committed_does_not_take_effect(world: World) -> None:
    held, steering = world
    connection = held.control.trail.state.connection
    connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StateError, match=r"read-?only"):
        await steering.change("ben", Move("flip", "m", to="b"))
    assert pools(held)["m/short"] == ("a", None)
    assert (steering.view()["revision"], len(steering.view()["history"])) == (1, 1)
    connection.execute("PRAGMA query_only = OFF")
    await steering.change("ben", Move("flip", "m", to="b"))
    assert pools(held)["m/short"] == ("b", None)


async def test_what_does_not_take_effect_is_taken_back_as_a_revision(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, steering = world

    def broken(_: Control, __: RouteTable) -> None:
        raise MisuseError("it does not hold together")

    with monkeypatch.context() as patched:
        patched.setattr(Control, "steer", broken)
        with pytest.raises(RouteError, match="was taken back: it does not hold together"):
            await steering.change("ben", Move("flip", "m", to="b"))
    assert held.gateway.setup.table.revision == 3
    history = steering.view()["history"]
    assert [(h["revision"], h["who"], h["action"]) for h in history[:2]] == [
        (3, "gateway", "take_back"), (2, "ben", "flip"),
    ]  # fmt: skip
    assert held.control.trail.present(held.gateway.setup.settings) == held.gateway.setup.table
    await steering.change("ben", Move("flip", "m", to="b", revision=3))
    assert pools(held)["m/short"] == ("b", None)


async def test_what_can_not_even_be_taken_back_is_in_the_log_and_later_moves_work(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, steering = world
    connection = held.control.trail.state.connection

    def broken(_: Control, __: RouteTable) -> None:
        connection.execute("PRAGMA query_only = ON")
        raise MisuseError("it does not hold together")

    with monkeypatch.context() as patched:
        patched.setattr(Control, "steer", broken)
        with pytest.raises(RouteError, match="it does not hold together"):
            await steering.change("ben", Move("flip", "m", to="b"))
    (line,) = held.events("not_taken_back")
    assert (line["revision"], line["reason"]) == (2, "it does not hold together")
    connection.execute("PRAGMA query_only = OFF")
    await steering.change("ben", Move("flip", "m", to="c", revision=3))
    assert held.control.trail.present(held.gateway.setup.settings) == held.gateway.setup.table


class Watcher:
    """A follower that refuses, or adds, as told; and says what it saw."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.seen: list[tuple[str, int, int]] = []

    async def prepare(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> Extra:
        if self.refusal is not None:
            raise RouteError(self.refusal)
        records = (("watch", "m/short", dict(move.options)),)
        return Extra({"watcher": who}, records, lambda: self.seen.append(("then", 0, 0)))

    def took_effect(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> None:
        self.seen.append((move.action, before.revision, after.revision))

    def rows(self) -> dict[str, Any]:
        return {"watches": self.seen}


async def test_who_follows_moves_may_refuse_and_has_its_records_committed_with_them(
    world: World,
) -> None:
    held, steering = world
    watcher = Watcher()
    steering.followers.append(watcher)
    watcher.refusal = "the record does not verify"
    with pytest.raises(RouteError, match="does not verify"):
        await steering.change("ben", Move("flip", "m", to="b"))
    assert (pools(held)["m/short"], watcher.seen) == (("a", None), [])
    watcher.refusal = None
    await steering.change("ben", Move("flip", "m", to="b", check=True))
    assert (held.control.trail.state.get_all("watch"), watcher.seen) == ({}, [])
    await steering.change("ben", Move("flip", "m", to="b", options={"window_s": 60}))
    assert held.control.trail.state.get_all("watch") == {"m/short": {"window_s": 60}}
    assert steering.view()["watches"] == [("then", 0, 0), ("flip", 1, 2)]
    assert (await steering.audit(1))["entries"][0].detail["watcher"] == "ben"


# -- pools ---------------------------------------------------------------------------------


async def test_a_pool_is_given_other_engines_and_it_is_written_down(tmp_path: Path) -> None:
    config = CONFIG.replace(f'["{B}"]', f'["{B}"]\nmax_engines = 2')
    async with steered(tmp_path, config) as (held, steering):
        more = "http://127.0.0.1:8009"
        checked = await steering.change_pool("ben", PoolMove("b", [B, more], check=True))
        assert held.gateway.parts.fleet.pools["b"] == (B,)
        told = await steering.change_pool("ben", PoolMove("b", [B, more], revision=1, why="load"))
        assert told["changed"] == checked["changed"]
        assert held.gateway.parts.fleet.pools["b"] == (B, more)
        (entry,) = (await steering.audit(1))["entries"]
        assert (entry.who, entry.action, entry.route, entry.why) == ("ben", "pool", "b", "load")
        with pytest.raises(StaleTableError):
            await steering.change_pool("ben", PoolMove("b", [B], revision=7))
        with pytest.raises(RouteError, match="may have 1 engines"):
            await steering.change_pool("ben", PoolMove("c", [B, more]))
        with pytest.raises(RouteError, match="no pool 'x'"):
            await steering.change_pool("ben", PoolMove("x", [B]))


async def test_every_revision_that_is_shown_says_what_it_touched(world: World) -> None:
    _, steering = world
    for turn in range(24):
        await steering.change("ben", Move("undrain" if turn % 2 else "drain", pool="c"))
    history = steering.view()["history"]
    assert [row["touched"] for row in history] == 20 * [["c"]]


# -- the configuration ---------------------------------------------------------------------


async def test_a_reload_keeps_the_routes_in_force_until_its_own_are_edited(world: World) -> None:
    held, steering = world
    await steering.change("ben", Move("flip", "m", to="b"))
    held.rewrite("slots = 128", "slots = 100")
    told = await held.control.reload("ben")
    assert (told["revision"], pools(held)["m/short"]) == (2, ("b", None))
    held.rewrite('size = "long"\npool = "a"', 'size = "long"\npool = "c"')
    told = await held.control.reload("ben")
    assert (told["revision"], pools(held)) == (3, {"m/short": ("a", None), "m/long": ("c", None)})
    row = steering.view()["history"][0]
    assert (row["who"], row["action"], row["from_revision"]) == ("ben", "configuration", 2)
    with pytest.raises(RouteError, match="no earlier state"):
        await steering.change("ben", Move("rollback"))
    await steering.change("ben", Move("rollback", to_revision=2))
    assert pools(held)["m/long"] == ("b", None)


async def test_a_reload_that_takes_a_pool_in_use_away_is_refused(world: World) -> None:
    held, steering = world
    await steering.change("ben", Move("flip", "m/long", to="b"))
    held.rewrite(f'[pool.b]\nengines = ["{B}"]\n', "")
    with pytest.raises(ConfigError) as refused:
        await held.control.reload("ben")
    assert refused.value.key == "pool.b"
    assert "route m/long goes there since revision 2 (by ben)" in refused.value.reason
    assert pools(held)["m/long"] == ("b", None)


async def test_a_reload_that_does_not_take_effect_leaves_the_routes_committed_as_they_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, steering = world
    before = held.gateway.setup.table

    def broken(*_: object) -> None:
        raise MisuseError("it does not hold together")

    held.rewrite('size = "long"\npool = "a"', 'size = "long"\npool = "c"')
    with monkeypatch.context() as patched:
        patched.setattr(Control, "_enforce", broken)
        with pytest.raises(ConfigError, match="it does not hold together"):
            await held.control.reload("ben")
    table = held.gateway.setup.table
    assert (table.revision, table.routes) == (3, before.routes)
    last = held.control.trail.last
    assert last is not None
    assert (last.revision, last.action) == (3, "take_back")
    assert last.configuration == held.control.trail.history[2].configuration
    assert held.control.trail.present(held.gateway.setup.settings) == table
    await held.control.reload("ben")
    assert (steering.view()["revision"], pools(held)["m/long"]) == (4, ("c", None))


async def test_a_reload_that_can_not_be_committed_is_refused(world: World) -> None:
    held, _ = world
    held.control.trail.state.connection.execute("PRAGMA query_only = ON")
    held.rewrite('size = "long"\npool = "a"', 'size = "long"\npool = "c"')
    with pytest.raises(ConfigError, match=r"state\.directory: the routes can't be kept"):
        await held.control.reload("ben")
    assert pools(held)["m/long"] == ("a", None)


# -- starting ------------------------------------------------------------------------------


def start(folder: Path, config: str = STATE + CONFIG) -> tuple[Trail, RouteTable]:
    write_tokenizer(folder)
    return begin(load(write(folder, config)), lambda: datetime.now(UTC))


def restarted(trail: Trail, folder: Path, config: str = STATE + CONFIG) -> tuple[Trail, RouteTable]:
    trail.state.close()
    return start(folder, config)


def flipped(folder: Path) -> tuple[Trail, RouteTable]:
    trail, table = start(folder)
    facts = dict.fromkeys("abc", PoolFacts())
    table = drain(flip(table, [SHORT], "b", facts), ["c"], facts)
    table = replace(table, revision=2)
    trail.commit_now(Draft(table, Note("ben", "flip", "m/short", 1, 2)))
    return trail, table


def test_a_restart_has_the_committed_table_and_every_caller_keeps_its_arm(tmp_path: Path) -> None:
    trail, table = flipped(tmp_path)
    again, found = restarted(trail, tmp_path)
    assert found == table
    assert found.salt == table.salt
    assert (again.standing, len(again.history)) == ("ok", 2)
    assert state_warnings(again) == []
    again.state.close()


def test_an_edited_configuration_makes_a_revision_of_its_own(tmp_path: Path) -> None:
    trail, table = flipped(tmp_path)
    edited = (STATE + CONFIG).replace('size = "long"\npool = "a"', 'size = "long"\npool = "c"')
    again, found = restarted(trail, tmp_path, edited)
    assert (found.revision, found.salt, found.draining) == (3, table.salt, {"c"})
    assert {r.name: r.stable_pool for r in found.routes.values()} == {
        "m/short": "a", "m/long": "c",
    }  # fmt: skip
    ((entry, *_), _) = again.state.audit(9)
    assert (entry.action, entry.from_revision, entry.to_revision) == ("configuration", 2, 3)
    third, same = restarted(again, tmp_path, edited)
    assert same == found
    third.state.close()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (f'[pool.b]\nengines = ["{B}"]\n', "", "pool.b: is not configured any more, but route"),
        (f'["{B}"]', f'["{B}"]\nlimits = {{ slots = 8 }}', "pool.b: revision 2 of the routes"),
    ],
)
def test_a_configuration_under_which_the_committed_table_can_not_stand_is_refused(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    trail, _ = flipped(tmp_path)
    assert old in CONFIG
    with pytest.raises(ConfigError, match=words) as refused:
        restarted(trail, tmp_path, (STATE + CONFIG).replace(old, new))
    assert refused.value.key == "pool.b"
    start(tmp_path)[0].state.close()


def test_a_state_in_use_or_damaged_is_named_at_start(tmp_path: Path) -> None:
    trail, _ = start(tmp_path)
    with pytest.raises(ConfigError, match=r"state\.directory: .*another gateway uses"):
        start(tmp_path)
    trail.state.close()
    (tmp_path / "state" / "state.sqlite").write_text("no database at all")
    with pytest.raises(ConfigError, match=r"state\.directory: .*is damaged"):
        start(tmp_path)


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        ("replace(body, 'stable_pool', 'pool')", "revision 2 is no route table"),
        ("'{'", "the file is damaged"),
        ("'{}'", "the file is damaged"),
    ],
)
def test_a_committed_table_that_can_not_be_read_is_named_at_start(
    tmp_path: Path, spoilt: str, words: str
) -> None:
    trail, _ = flipped(tmp_path)
    statement = f"UPDATE revisions SET body = {spoilt} WHERE revision = 2"  # noqa: S608
    trail.state.connection.execute(statement)
    with pytest.raises(ConfigError, match=rf"state\.directory: .*{words}"):
        restarted(trail, tmp_path)
    trail.state.close()


def test_a_tampered_audit_trail_is_said_at_start(tmp_path: Path) -> None:
    trail, _ = flipped(tmp_path)
    trail.state.connection.execute("DELETE FROM audit WHERE n = 1")
    assert state_warnings(trail) == [
        f"state.directory: {tmp_path / 'state' / 'state.sqlite'}: the audit trail is broken at 1"
    ]
    trail.state.close()


async def test_a_state_that_can_not_be_written_shows_as_read_only(tmp_path: Path) -> None:
    trail, _ = start(tmp_path)
    async with controlled(tmp_path, STATE + CONFIG) as held:
        steering = Steering(Control(held.gateway, {}, trail))
        up(held, B)
        trail.state.connection.execute("PRAGMA query_only = ON")
        with pytest.raises(StateError):
            await steering.change("ben", Move("flip", "m", to="b"))
        assert steering.view()["state"] == "read_only"
        assert "read" in str(steering.view()["state_fault"])
        trail.state.connection.execute("PRAGMA query_only = OFF")
        await steering.change("ben", Move("flip", "m", to="b"))
        assert steering.view()["state"] == "ok"
    trail.state.close()


def test_a_state_without_a_directory_is_in_memory() -> None:
    state = State(None)
    assert state.name == ":memory:"
    state.close()
