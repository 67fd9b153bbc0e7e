"""An operator's changes: whole or not at all, in force at once, written down, gone when expired."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError
from gateway.control import Change, StaleError
from gateway.domain import FlowKey, Outcome
from gateway.limits import LimitError
from gateway.verdicts import Offer, Refusal
from tests.e2e.harness import eventually
from tests.gateway.controlled import Held, controlled
from tests.gateway.minimal import KEYS, write

ENGINE = "http://127.0.0.1:8001"
OTHER = "http://127.0.0.1:8002"
GROUP = ("m", "short", "batch")


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[Held]:
    async with controlled(tmp_path) as made:
        yield made


def change(held: Held, expires_s: float | None = None, **more: Any) -> dict[str, Any]:
    values = more.pop("values")
    revision = held.control.overlay.revision
    return held.control.change("ben", Change(revision, values, expires_s, **more))


def core_of(held: Held) -> Any:
    return held.gateway.parts.turnstile.core


# -- limits --------------------------------------------------------------------------------


async def test_a_limit_is_in_force_at_once_and_taken_back(held: Held) -> None:
    values = {"flow.short.batch.max_queued": 3, f"engine.{ENGINE}.slots": 64}
    change(held, values=values)
    assert core_of(held).groups[GROUP].spec.max_queued == 3
    assert core_of(held).engines[ENGINE].limits.slots == 64
    assert held.gateway.setup.specs[GROUP].max_queued == 3
    change(held, values=dict.fromkeys(values))
    assert core_of(held).groups[GROUP].spec.max_queued == 512
    assert core_of(held).engines[ENGINE].limits.slots == 128
    assert held.control.view()["set"] == {}


async def test_every_change_is_one_line_that_says_who_and_from_what_to_what(held: Held) -> None:
    change(held, values={"flow.short.batch.weight": 3})
    change(held, values={"flow.short.batch.weight": 4, "flow.long.batch.paused": True})
    first, second = held.events("admin_change")
    weight = "flow.short.batch.weight"
    assert first == {
        "who": "ben", "action": "limits", "revision": 2, "from": {weight: None}, "to": {weight: 3},
    }  # fmt: skip
    assert second["from"] == {weight: 3, "flow.long.batch.paused": None}
    assert second["to"] == {weight: 4, "flow.long.batch.paused": True}


async def test_a_paused_flow_refuses_until_it_is_resumed(held: Held) -> None:
    def arrives() -> Any:
        offer = Offer(FlowKey(*GROUP), "alice", 10, held.clock())
        return core_of(held).offer(offer, held.clock())[1][-1]

    change(held, values={"flow.short.batch.paused": True})
    verdict = arrives()
    assert isinstance(verdict, Refusal)
    assert verdict.outcome is Outcome.PAUSED
    paused = [f for f in held.control.view()["flows"] if f["paused"]]
    assert [(f["size_class"], f["service_class"]) for f in paused] == [("short", "batch")]
    change(held, values={"flow.short.batch.paused": None})
    verdict = arrives()
    assert not isinstance(verdict, Refusal) or verdict.outcome is not Outcome.PAUSED


async def test_a_paused_engine_is_given_nothing_until_it_is_resumed(held: Held) -> None:
    core_of(held).set_engine(ENGINE, held.clock(), up=True)
    assert core_of(held).engines[ENGINE].usable
    change(held, values={f"engine.{ENGINE}.paused": True})
    assert not core_of(held).engines[ENGINE].usable
    change(held, values={"flow.short.batch.weight": 2})
    assert not core_of(held).engines[ENGINE].usable
    change(held, values={f"engine.{ENGINE}.paused": False})
    assert core_of(held).engines[ENGINE].usable


async def test_a_change_based_on_an_old_look_is_refused_with_the_revision(held: Held) -> None:
    change(held, values={"flow.short.batch.weight": 2})
    with pytest.raises(StaleError) as error:
        held.control.change("eve", Change(1, {"flow.short.batch.weight": 9}))
    assert error.value.revision == 2
    assert core_of(held).groups[GROUP].spec.weight == 2


@pytest.mark.parametrize(
    "values",
    [
        {},
        {f"engine.{ENGINE}.slots": 2},
        {"flow.short.batch.weight": 2, f"engine.{ENGINE}.slots": 2},
        {"flow.short.nobody.weight": 2},
    ],
)
async def test_a_change_that_does_not_fit_changes_nothing(
    held: Held, values: dict[str, Any]
) -> None:
    before = held.control.view()
    with pytest.raises(LimitError):
        change(held, values=values)
    assert held.control.view() == before
    assert held.events("admin_change") == []


async def test_a_check_changes_nothing(held: Held) -> None:
    before = held.control.view()
    assert change(held, values={"flow.short.batch.weight": 2}, check_only=True) == before
    with pytest.raises(LimitError):
        change(held, values={f"engine.{ENGINE}.slots": 2}, check_only=True)
    assert held.control.view() == before
    assert held.events("admin_change") == []


async def test_what_expires_is_taken_back_by_itself_and_written_down(held: Held) -> None:
    change(held, 0.05, values={"flow.short.batch.weight": 2})
    change(held, values={"flow.long.batch.weight": 2})
    held.clock.now += 0.05
    await eventually(lambda: "flow.short.batch.weight" not in held.control.view()["set"])
    assert list(held.control.view()["set"]) == ["flow.long.batch.weight"]
    assert core_of(held).groups[GROUP].spec.weight == 4.0
    line = held.events("admin_change")[-1]
    assert (line["who"], line["from"]) == ("expiry", {"flow.short.batch.weight": 2})
    assert line["to"] == {"flow.short.batch.weight": None}


# -- reload --------------------------------------------------------------------------------


async def test_a_reload_puts_the_whole_configuration_in_force(held: Held) -> None:
    before = held.gateway.setup
    held.rewrite("slots = 128", "slots = 100")
    held.rewrite(f'engines = ["{ENGINE}"]', f'engines = ["{OTHER}"]')
    held.rewrite("[auth]", "[server]\nmax_requests = 7\n[auth]")
    told = await held.control.reload("ben")
    after = held.gateway.setup
    assert core_of(held).engines[OTHER].limits.slots == 100
    assert ENGINE not in core_of(held).engines
    assert set(held.gateway.parts.prober.health) == set(held.gateway.parts.clients) == {OTHER}
    assert held.gateway.parts.intake._max_requests == 7
    assert (after.table.revision, after.table.salt) == (1, before.table.salt)
    assert (told["from"], told["to"]) == (before.settings.digest(), after.settings.digest())
    assert {"limits.slots", "pool.a.engines[1]", "server.max_requests"} <= set(told["changed"])
    assert held.events("admin_change") == [{"who": "ben", "action": "reload", **told}]


async def test_what_has_not_changed_and_is_dear_is_taken_over(held: Held) -> None:
    before = held.gateway.setup
    await held.control.reload("ben")
    after = held.gateway.setup
    assert after is not before
    assert after.counting.pool is before.counting.pool
    assert after.counting.counters["m"] is before.counting.counters["m"]
    assert after.advice.flows[GROUP] is before.advice.flows[GROUP]


async def test_keys_are_added_and_revoked_by_a_reload(held: Held) -> None:
    write(held.path.parent, held.path.read_text(), KEYS.replace("alice", "bob"))
    told = await held.control.reload("ben")
    assert told["keys"] == 1
    assert told["changed"] == ["key.alice", "key.bob"]
    assert list(held.gateway.parts.identity.keyring.entries) == ["bob"]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("slots = 128", "slots = 0", "limits.slots"),
        ("slots = 128", "slots = 16", "pool.a"),
        ("[limits]", "[limits", ""),
        ('"keys.toml"', '"gone.toml"', "auth.keys_file"),
        ('"tiny.json"', '"gone"', "model.m.tokenizer"),
        ('"tiny.json"', '"template.jinja"', "model.m.tokenizer"),
        ('"template.jinja"', '"gone.jinja"', "model.m.chat_template"),
        ("[auth]", "[server]\nport = 9999\n[auth]", "server.port"),
        ("[auth]", "[scheduling]\nquantum = 5\n[auth]", "scheduling.quantum"),
    ],
)
async def test_a_bad_file_changes_nothing_and_is_named(
    held: Held, old: str, new: str, key: str
) -> None:
    before, view = held.gateway.setup, held.control.view()
    held.rewrite(old, new)
    with pytest.raises(ConfigError) as error:
        await held.control.reload("ben")
    assert (error.value.file, error.value.key) == (held.path, key) or key == "pool.a"
    assert held.gateway.setup is before
    assert held.control.view() == view
    assert list(core_of(held).engines) == [ENGINE]
    (line,) = held.events("reload_refused")
    assert (line["who"], line["file"]) == ("ben", str(held.path))
    assert line["key"].startswith(key)
    assert line["reason"]


async def test_all_faults_of_a_refused_file_stand_in_the_log(held: Held) -> None:
    held.rewrite("slots = 128", "slots = 0")
    held.rewrite("weight = 4.0", "weight = 0")
    with pytest.raises(ConfigError):
        await held.control.reload("ben")
    (line,) = held.events("reload_refused")
    assert [said.split(": ")[1] for said in line["faults"]] == ["size.short.weight", "limits.slots"]


async def test_a_refused_reload_is_shown_until_one_succeeds(held: Held) -> None:
    def shown() -> bool:
        return b"sluicegate_reload_refused 1.0" in held.gateway.parts.observer.page()

    assert not shown()
    held.rewrite("slots = 128", "slots = 0")
    with pytest.raises(ConfigError):
        await held.control.reload("ben")
    assert shown()
    held.rewrite("slots = 0", "slots = 128")
    await held.control.reload("ben")
    assert not shown()


async def test_a_keys_file_that_holds_no_key_is_refused(held: Held) -> None:
    write(held.path.parent, held.path.read_text(), "")
    with pytest.raises(ConfigError, match="holds no key"):
        await held.control.reload("ben")
    assert list(held.gateway.parts.identity.keyring.entries) == ["alice"]


async def test_limits_set_at_run_time_survive_a_reload_where_they_fit(held: Held) -> None:
    change(held, values={"flow.short.batch.weight": 5, f"engine.{ENGINE}.slots": 64})
    held.rewrite(f'engines = ["{ENGINE}"]', f'engines = ["{OTHER}"]')
    told = await held.control.reload("ben")
    assert list(told["limits_dropped"]) == [f"engine.{ENGINE}.slots"]
    assert "no such engine" in told["limits_dropped"][f"engine.{ENGINE}.slots"]
    assert list(held.control.view()["set"]) == ["flow.short.batch.weight"]
    assert core_of(held).groups[GROUP].spec.weight == 5


async def test_a_replaced_counting_pool_is_closed_when_nobody_uses_it(held: Held) -> None:
    pool = held.gateway.setup.counting.pool
    held.rewrite("[auth]", "[counting]\nthreads = 1\n[auth]")
    await held.control.reload("ben")
    assert held.gateway.setup.counting.pool is not pool
    await eventually(lambda: not held.control._retiring)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool._pool.submit(int)


async def test_two_reloads_at_once_follow_each_other(held: Held) -> None:
    held.rewrite("slots = 128", "slots = 100")
    first, second = await asyncio.gather(held.control.reload("a"), held.control.reload("b"))
    assert first["to"] == second["from"] == second["to"]
    assert held.gateway.setup.table.revision == 1
