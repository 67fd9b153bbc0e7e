"""A gateway with a second pool to move traffic to, and an operator's hand on its routes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.configs import ADMIN_TOKEN, Served, toml, write_config
from tests.e2e.harness import Front, caller

STABLE, OTHER, ROUTE = "pool-0", "green", "simulated/short"
CALLERS = tuple(f"caller-{number}" for number in range(24))


def two_pools(
    folder: Path, stable: Sequence[str], other: Sequence[str], **changes: Any
) -> tuple[Path, dict[str, str]]:
    """Write a configuration whose state is kept; returns its path and the callers' keys."""
    grants = {name: {"service_class": "interactive"} for name in CALLERS}
    state = {"state": {"directory": "state"}}
    path, keys = write_config(folder, {"simulated": Served(stable)}, grants, **{**state, **changes})
    with path.open("a") as file:
        file.write(toml({OTHER: {"engines": list(other)}}, "pool."))
    return path, keys


async def routes(gateway: Front) -> dict[str, Any]:
    """What operators see of the routes."""
    return await _admin(gateway, "GET", "/admin/routes", None, 200)


async def route(gateway: Front) -> dict[str, Any]:
    """The route of short prompts."""
    rows = (await routes(gateway))["routes"]
    found: dict[str, Any] = next(row for row in rows if row["route"] == ROUTE)
    return found


async def move(gateway: Front, action: str, status: int = 200, **body: Any) -> dict[str, Any]:
    """Make a move on the present revision."""
    revision = (await routes(gateway))["revision"]
    asked = {"revision": revision, "action": action, "why": "a test", **body}
    return await _admin(gateway, "POST", "/admin/routes", asked, status)


async def audit(gateway: Front, action: str) -> list[dict[str, Any]]:
    """The entries of one action, newest first."""
    told = await _admin(gateway, "GET", "/admin/audit?limit=100", None, 200)
    assert told["chain"] == "whole"
    return [entry for entry in told["entries"] if entry["action"] == action]


async def watch_row(gateway: Front) -> dict[str, Any]:
    """The watch of the route of short prompts."""
    rows = (await routes(gateway))["watches"]
    found: dict[str, Any] = next(row for row in rows if row["route"] == ROUTE)
    return found


async def _admin(
    gateway: Front, method: str, path: str, body: Mapping[str, Any] | None, status: int
) -> dict[str, Any]:
    async with caller() as client:
        answer = await client.request(
            method,
            gateway.admin_url + path,
            json=body,
            headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
        )
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told
