"""The operators' endpoints of routes: who may, what they answer, how errors are told."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin import build_admin
from gateway.steering import Steering
from tests.gateway.controlled import TOKENS, Held
from tests.gateway.test_steering import B, steered


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[Held, Steering]]:
    async with steered(tmp_path) as made:
        yield made


World = tuple[Held, Steering]
SEALED = {
    "kind": "rollback-record", "format": 1, "parent": None, "decision": None, "record": {},
    "digest": "",
}  # fmt: skip
DEEP: Any = {}
for _ in range(900):
    DEEP = {"x": DEEP}


async def ask(world: World, method: str, path: str, who: str = "ben", **more: Any) -> Any:
    transport = httpx.ASGITransport(build_admin(world[0].control, world[1]))
    headers = {"authorization": f"Bearer {TOKENS[who][0]}"} if who else {}
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        return await client.request(method, path, headers=headers, **more)


async def move(world: World, who: str = "ben", **body: Any) -> Any:
    return await ask(world, "POST", "/admin/routes", who, json=body)


async def test_weights_are_percent_and_every_other_key_goes_to_who_follows(world: World) -> None:
    told = await move(world, revision=1, action="canary", route="m/short", to="b", weight=12.5)
    assert told.status_code == 200
    assert told.json()["changed"][0]["after"]["candidate_weight"] == 12.5
    assert world[0].gateway.setup.table.routes["m", "short"].candidate_weight == 0.125
    seen = (await ask(world, "GET", "/admin/routes", "anna")).json()
    assert seen["revision"] == 2
    assert seen["table_digest"] == told.json()["table_digest"]
    assert seen["routes"][0] == {
        "route": "m/short", "model": "m", "size_class": "short", "stable": "a", "candidate": "b",
        "candidate_weight": 12.5, "admission": "enforce", "previous": None, "draining": False,
    }  # fmt: skip
    engine = {"engine": B, "usable": True, "running": 0, "prefill_tokens": 0, "draining": False}
    assert seen["pools"]["b"] == {"draining": False, "engines": [{**engine, "slots": 128}]}


async def test_who_was_first_is_told_to_who_was_second(world: World) -> None:
    await move(world, revision=1, action="flip", route="m", to="b")
    late = await move(world, revision=1, action="flip", route="m", to="c")
    assert late.status_code == 409
    told = late.json()
    assert (told["revision"], told["by"], told["action"]) == (2, "ben", "flip")
    assert told["error"].startswith("the routes are at revision 2 now (flip by ben)")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"action": "flip", "route": "x", "to": "b"}, "x: there is no such route"),
        ({"action": "flip", "route": 7}, "route: input should be a valid string"),
        ({"route": "m"}, "action: field required"),
        ({"action": "canary", "route": "m", "to": "b", "weight": 101}, "weight: must be from 0"),
        ({"action": "drain", "pool": "a", "deadline_s": -1}, "deadline_s: "),
        *(
            ({"action": "canary", "route": "m", "to": "b", "deadline_s": 1, **wrong}, words)
            for value in (True, "50", [50])
            for wrong, words in (
                ({"weight": value}, "weight: input should be a valid number"),
                ({"weight": 5, "deadline_s": value}, "deadline_s: input should be a valid number"),
                ({"weight": 5, "revision": value}, "revision: input should be a valid integer"),
                ({"weight": 5, "to_revision": value}, "to_revision: input should be a valid "),
            )
        ),
        ({"action": "flip", "route": "m", "to": "b", "why": "x" * 1001}, "why: "),
        (b"{", "the body is not JSON"),
        (b"[]", "the body is no JSON object"),
    ],
)
async def test_what_can_not_be_done_is_a_400_that_names_it(
    world: World, body: Any, words: str
) -> None:
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = await ask(world, "POST", "/admin/routes", **sent)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(words)
    assert world[0].gateway.setup.table.revision == 1


async def test_a_state_that_can_not_be_written_is_a_503_and_nothing_changes(world: World) -> None:
    world[0].control.trail.state.connection.execute("PRAGMA query_only = ON")
    answers = [
        await move(world, action="flip", route="m", to="b"),
        await ask(world, "POST", "/admin/pools", json={"pool": "b", "engines": [B]}),
    ]
    for answer in answers:
        assert answer.status_code == 503
        assert answer.json()["error"].startswith("state: :memory:: ")
        assert answer.json()["error"].endswith("; nothing was changed")
    assert world[0].gateway.setup.table.revision == 1


async def test_who_only_looked_at_a_state_that_can_not_be_read_is_told_of_no_change(
    world: World,
) -> None:
    world[0].control.trail.state.connection.execute("DROP TABLE audit")
    answer = await ask(world, "GET", "/admin/audit")
    assert answer.status_code == 503
    assert answer.json() == {"error": "state: :memory:: no such table: audit"}


async def test_a_viewer_looks_and_nobody_else_does(world: World) -> None:
    for path in ("/admin/routes", "/admin/pools", "/admin/audit"):
        assert (await ask(world, "GET", path, "anna")).status_code == 200
        assert (await ask(world, "GET", path, "")).status_code == 401
    for path in ("/admin/routes", "/admin/pools"):
        assert (await ask(world, "POST", path, "anna", json={})).status_code == 403
        assert (await ask(world, "POST", path, "", json={})).status_code == 401


async def test_the_audit_trail_is_shown_newest_first(world: World) -> None:
    await move(world, action="flip", route="m", to="b", why="new image")
    told = (await ask(world, "GET", "/admin/audit?limit=1")).json()
    assert told["chain"] == "whole"
    (entry,) = told["entries"]
    assert (entry["n"], entry["who"], entry["action"], entry["why"]) == (
        2, "ben", "flip", "new image",
    )  # fmt: skip
    assert set(entry) >= {"at", "route", "from_revision", "to_revision", "detail", "digest"}
    for limit in ("0", "1001", "many", "-1"):
        answer = await ask(world, "GET", f"/admin/audit?limit={limit}")
        assert (answer.status_code, answer.json()["error"][:6]) == (400, "limit:")


async def test_a_pool_is_changed_and_shown(world: World) -> None:
    engine = "http://127.0.0.1:8009"
    body = {"pool": "b", "engines": [engine], "revision": 1}
    told = await ask(world, "POST", "/admin/pools", json=body)
    assert told.json()["changed"] == [
        {"pool": "b", "before": {"engines": [B]}, "after": {"engines": [engine]}}
    ]
    seen = (await ask(world, "GET", "/admin/pools", "anna")).json()
    assert [row["engine"] for row in seen["pools"]["b"]["engines"]] == [engine]
    bad = await ask(world, "POST", "/admin/pools", json={**body, "engines": ["nonsense"]})
    assert bad.status_code == 400
    assert "pool 'b': 'nonsense'" in bad.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/admin/audit?limit={'9' * 5000}", None),
        ("GET", "/admin/audit?limit=%D9%A1", None),
        ("POST", "/admin/routes", {"action": "rollback", "to_revision": (1 << 64) - 1}),
        ("POST", "/admin/manifests", {"manifest": {**SEALED, "parent": 5}}),
        ("POST", "/admin/manifests", {"manifest": {**SEALED, "decision": ["sha256", "verdict"]}}),
        ("POST", "/admin/manifests", {"manifest": {**SEALED, "record": DEEP}}),
        ("POST", "/admin/manifests/verifications", {"found": [{"fields": 5}]}),
        ("POST", "/admin/manifests/verifications", {"found": [{"fields": [5]}]}),
        ("POST", "/admin/manifests/verifications", {"found": [5]}),
    ],
)
async def test_what_is_out_of_all_bounds_is_refused_and_breaks_nothing(
    world: World, method: str, path: str, body: Any
) -> None:
    told = await ask(world, method, path, json=body)
    assert (told.status_code, list(told.json())) == (400, ["error"])
