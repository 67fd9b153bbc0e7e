"""The operators' pages: open health and metrics, guarded state, and what readiness says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import httpx
import pytest

from gateway.admin import build_admin
from gateway.schema import AdminToken

TOKENS = [
    AdminToken(name=name, role="viewer", sha256=sha256(token.encode()).hexdigest())
    for name, token in (("anna", "token-of-anna"), ("ben", "token-of-ben"))
]


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@dataclass
class Observer:
    def page(self) -> bytes:
        return b"sluicegate_draining 0.0\n"


@dataclass
class Gateway:
    """As much of a gateway as an operator can see."""

    reason: str | None = None
    observer: Observer = field(default_factory=Observer)

    def unready_reason(self) -> str | None:
        return self.reason

    def status(self) -> dict[str, Any]:
        return {"running": 0}


async def get(
    path: str, gateway: Gateway | None = None, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    app = build_admin(gateway or Gateway(), TOKENS)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        return await client.get(path, headers=headers)


async def test_health_and_metrics_need_no_token() -> None:
    assert (await get("/health/live")).json() == {"status": "live"}
    assert (await get("/health/ready")).json() == {"status": "ready"}
    metrics = await get("/metrics")
    assert metrics.text == "sluicegate_draining 0.0\n"
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize("reason", ["draining", "no healthy engine"])
async def test_an_unready_gateway_is_still_live_and_says_why(reason: str) -> None:
    ready = await get("/health/ready", Gateway(reason))
    assert (ready.status_code, ready.json()) == (503, {"status": reason})
    assert (await get("/health/live", Gateway(reason))).status_code == 200


@pytest.mark.parametrize("token", ["token-of-anna", "token-of-ben"])
async def test_every_named_token_opens_the_state(token: str) -> None:
    answer = await get("/admin/status", headers={"authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()) == (200, {"running": 0})


@pytest.mark.parametrize(
    "value", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic token-of-anna", "token-of-anna"]
)
async def test_anything_else_does_not(value: str | None) -> None:
    answer = await get("/admin/status", headers={"authorization": value} if value else None)
    assert answer.status_code == 401
    assert "running" not in answer.text


async def test_the_digest_of_a_token_is_no_token() -> None:
    headers = {"authorization": f"Bearer {TOKENS[0].sha256}"}
    assert (await get("/admin/status", headers=headers)).status_code == 401


@pytest.mark.parametrize("path", ["/", "/admin", "/v1/models", "/docs", "/admin/status/"])
async def test_there_is_nothing_else(path: str) -> None:
    assert (await get(path)).status_code in (307, 404)
