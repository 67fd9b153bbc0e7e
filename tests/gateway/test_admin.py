"""The operators' listener: open health and metrics, guarded state, changes by operators alone."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin import MAX_BODY_BYTES, build_admin
from gateway.health import after_success
from tests.gateway.controlled import TOKENS, WHOLE, Held, controlled
from tests.gateway.minimal import KEYS, write

FLOW = "flow.short.batch.weight"


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[Held]:
    async with controlled(tmp_path) as made:
        yield made


@asynccontextmanager
async def client(held: Held) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build_admin(held.control))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as made:
        yield made


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name][0]}"}


async def ask(
    held: Held,
    path: str,
    who: str | None = None,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> httpx.Response:
    async with client(held) as made:
        found = bearer(who) if who else dict(headers or {})
        return await made.request(method, path, headers=found, **more)


def engine_up(held: Held) -> None:
    prober = held.gateway.parts.prober
    for engine, health in prober.health.items():
        prober._set(after_success(health, held.clock()))
        assert prober.health[engine].up
    held.gateway.probed = True


async def test_health_and_metrics_need_no_token(held: Held) -> None:
    engine_up(held)
    assert (await ask(held, "/health/live")).json() == {"status": "live"}
    ready = await ask(held, "/health/ready")
    assert ready.status_code == 200
    pools = {"a": {"engines": 1, "up": 1}}
    assert ready.json() == {"status": "ready", "reasons": [], "pools": pools}
    metrics = await ask(held, "/metrics")
    assert "sluicegate_draining 0.0" in metrics.text
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_an_unready_gateway_is_still_live_and_says_why(held: Held) -> None:
    ready = await ask(held, "/health/ready")
    assert ready.status_code == 503
    assert ready.json()["reasons"] == ["no healthy engine", "engines not yet probed"]
    engine_up(held)
    held.gateway.draining = True
    ready = await ask(held, "/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "draining")
    assert ready.json()["pools"] == {"a": {"engines": 1, "up": 1}}
    assert (await ask(held, "/health/live")).status_code == 200


@pytest.mark.parametrize("who", list(TOKENS))
@pytest.mark.parametrize("path", ["/admin/status", "/admin/limits", "/admin/usage"])
async def test_every_named_token_may_look(held: Held, who: str, path: str) -> None:
    answer = await ask(held, path, who)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"


CREDENTIALS = [
    None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic token-of-anna", "token-of-anna",
    "Bearer token-of-anna token-of-ben",
]  # fmt: skip


@pytest.mark.parametrize("value", CREDENTIALS)
async def test_anybody_else_may_not(held: Held, value: str | None) -> None:
    headers = {"authorization": value} if value is not None else {}
    for method, path in (
        ("GET", "/admin/status"), ("GET", "/admin/limits"), ("GET", "/admin/usage"),
        ("POST", "/admin/limits"), ("POST", "/admin/reload"),
    ):  # fmt: skip
        answer = await ask(held, path, method=method, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert set(answer.json()) == {"error"}


async def test_two_credentials_are_none(held: Held) -> None:
    twice = [("authorization", f"Bearer {TOKENS[name][0]}") for name in TOKENS]
    async with client(held) as made:
        assert (await made.get("/admin/status", headers=twice)).status_code == 401


async def test_the_digest_of_a_token_is_no_token(held: Held) -> None:
    digest = held.gateway.setup.settings.document.admin.tokens[0].sha256
    answer = await ask(held, "/admin/status", headers={"authorization": f"Bearer {digest}"})
    assert answer.status_code == 401


async def test_a_viewer_may_change_nothing(held: Held) -> None:
    body = {"revision": 1, "set": {FLOW: 9.0}}
    for path in ("/admin/limits", "/admin/reload"):
        answer = await ask(held, path, "anna", "POST", json=body)
        assert (answer.status_code, "may look" in answer.json()["error"]) == (403, True)
    assert held.control.overlay.revision == 1
    assert held.events("admin_change", "reload_refused") == []


@pytest.mark.parametrize("path", ["/", "/admin", "/v1/models", "/docs", "/admin/status/"])
async def test_there_is_nothing_else(held: Held, path: str) -> None:
    answer = await ask(held, path, "ben")
    assert (answer.status_code, set(answer.json())) == (404, {"error"})


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/admin/status", {"GET", "HEAD"}),
        ("DELETE", "/health/live", {"GET", "HEAD"}),
        ("GET", "/admin/reload", {"POST"}),
        ("PUT", "/admin/limits", {"GET", "HEAD", "POST"}),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    held: Held, method: str, path: str, allowed: set[str]
) -> None:
    answer = await ask(held, path, "ben", method)
    assert (answer.status_code, set(answer.json())) == (405, {"error"})
    assert set(answer.headers["allow"].split(", ")) == allowed


async def test_limits_are_changed_against_the_revision_that_was_seen(held: Held) -> None:
    seen = (await ask(held, "/admin/limits", "ben")).json()
    assert (seen["revision"], seen["set"]) == (1, {})
    body = {"revision": 1, "set": {FLOW: 9}, "expires_s": 60}
    changed = await ask(held, "/admin/limits", "ben", "POST", json=body)
    assert changed.status_code == 200
    assert changed.json()["revision"] == 2
    assert changed.json()["set"] == {FLOW: {"value": 9, "by": "ben", "expires_in_s": 60.0}}
    late = await ask(held, "/admin/limits", "ben", "POST", json=body)
    assert (late.status_code, late.json()["revision"]) == (409, 2)
    assert (await ask(held, "/admin/limits", "anna")).json() == changed.json()


async def test_a_check_says_what_it_would_change(held: Held) -> None:
    body = {"revision": 1, "set": {FLOW: 9}, "check": True}
    checked = (await ask(held, "/admin/limits", "ben", "POST", json=body)).json()
    row = {"limit": FLOW, "before": {"value": None}, "after": {"value": 9}}
    assert (checked["revision"], checked["set"], checked["changed"]) == (1, {}, [row])


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "revision"),
        (b'{"revision": "1", "set": {}}', "revision"),
        (b'{"revision": 1, "set": {}}', "nothing to change"),
        (b'{"revision": 1, "set": {}, "expire_s": 4}', "expire_s"),
        (b'{"revision": 1, "set": {"flow.short.batch.weight": 2}, "expires_s": 0}', "expires_s"),
        (b'{"revision": 1, "set": {"flow.short.batch.weight": 2}, "expires_s": "9"}', "expires_s"),
        (b'{"revision": 1, "set": {"flow.short.batch.weight": 2}, "expires_s": true}', "expires_s"),
        (b'{"revision": true, "set": {"flow.short.batch.weight": 2}}', "revision"),
        (b'{"revision": 1, "set": {"flow.short.batch.weight": true}}', "flow.short.batch.weight"),
        (b'{"revision": 1, "set": {"flow.short.batch.weight": "2"}}', "flow.short.batch.weight"),
        (b'{"revision": 1, "set": {"flow.short.batch.weight": 2}, "expires_s": 1e9}', "expires_s"),
        (b'{"revision": 1, "set": {"flow.short.batch.weight": -2}}', "above 0"),
        (b'{"revision": 1, "set": {"flow.short.batch.wait": 2}}', "'wait' can't be set"),
        (b'{"revision": 1, "set": {"engine.http://127.0.0.1:8001.slots": 2}}', "limits.slots is 2"),
    ],
)
async def test_a_change_that_can_not_be_is_refused_with_its_reason(
    held: Held, body: bytes, word: str
) -> None:
    answer = await ask(held, "/admin/limits", "ben", "POST", content=body)
    assert answer.status_code == 400
    assert word in answer.json()["error"]
    assert held.control.overlay.revision == 1


async def test_a_body_has_a_bound(held: Held) -> None:
    body = b" " * (MAX_BODY_BYTES + 1)
    for path in ("/admin/limits", "/admin/reload"):
        answer = await ask(held, path, "ben", "POST", content=body)
        assert (answer.status_code, set(answer.json())) == (413, {"error"})


async def test_a_reload_tells_what_changed_and_a_bad_file_changes_nothing(held: Held) -> None:
    held.rewrite("slots = 128", "slots = 100")
    answer = await ask(held, "/admin/reload", "ben", "POST")
    assert answer.status_code == 200
    assert "limits.slots" in answer.json()["changed"]
    held.rewrite("slots = 100", "slots = -1")
    answer = await ask(held, "/admin/reload", "ben", "POST")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"{held.path}: limits.slots: ")
    assert held.gateway.setup.settings.document.limits.slots == 100


async def test_a_token_is_good_or_not_from_the_next_reload_on(held: Held) -> None:
    held.rewrite('name = "anna"', 'name = "carla"')
    held.rewrite('role = "operator"', 'role = "viewer"')
    assert (await ask(held, "/admin/reload", "ben", "POST")).status_code == 200
    assert (await ask(held, "/admin/status", "anna")).status_code == 200
    assert (await ask(held, "/admin/reload", "ben", "POST")).status_code == 403


async def test_what_an_operator_sees_holds_no_digest_and_no_key(held: Held) -> None:
    write(held.path.parent, WHOLE)
    digest = KEYS.split('"')[1]
    for path in ("/admin/status", "/admin/limits", "/admin/usage", "/metrics"):
        text = (await ask(held, path, "ben")).text
        assert digest not in text
        assert not any(token in text for token, _ in TOKENS.values())
