"""Answers operators about routes: what there is, moves, the audit trail, the engines of pools.

Part of ``admin``. Weights are percent here. 400 for what can't be done, 409 where somebody else was
first (it says who), 503 where the state can't be read or written.
"""

import re
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.access import Access
from gateway.admin_pages import Body, answered, json_answer, shaped
from gateway.orders import Move, PoolMove
from gateway.steering import StaleTableError, Steering
from gateway.values import FROZEN

__all__ = ["route_endpoints"]

MOST_ENTRIES = 1000


class RouteBody(BaseModel):
    """The body of ``POST /admin/routes``; other keys are for those who watch and drain."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    action: str
    revision: int | None = None
    route: str | None = None
    pool: str | None = None
    to: str | None = None
    weight: float | None = None
    to_revision: Annotated[int, Field(ge=1, lt=1 << 63)] | None = None  # as the state has them
    deadline_s: Annotated[float, Field(ge=0)] | None = None
    why: Annotated[str, Field(max_length=1000)] = ""
    all: bool = False
    force: bool = False
    check: bool = False


class PoolBody(BaseModel):
    """The body of ``POST /admin/pools``."""

    model_config = FROZEN
    pool: str
    engines: Annotated[tuple[str, ...], Field(strict=False)]
    revision: int | None = None
    why: Annotated[str, Field(max_length=1000)] = ""
    check: bool = False


def route_endpoints(access: Access, steering: Steering, body: Body) -> list[Route]:
    """The endpoints; ``body`` reads what was sent, in bounds."""
    pages = _RoutePages(access, steering, body)
    return [
        Route("/admin/routes", pages.routes),
        Route("/admin/routes", pages.move, methods=["POST"]),
        Route("/admin/pools", pages.pools),
        Route("/admin/pools", pages.change_pool, methods=["POST"]),
        Route("/admin/audit", pages.audit),
    ]


class _RoutePages:
    def __init__(self, access: Access, steering: Steering, body: Body) -> None:
        self._access, self._steering, self._body = access, steering, body

    async def routes(self, request: Request) -> Response:
        self._access.viewer(request)
        return json_answer(self._steering.view())

    async def move(self, request: Request) -> Response:
        who = self._access.operator(request)
        asked = shaped(RouteBody, await self._body(request))
        return await _answered(request, self._steering.change(who, _move(asked)))

    async def pools(self, request: Request) -> Response:
        self._access.viewer(request)
        seen = self._steering.view()
        return json_answer({key: seen[key] for key in ("revision", "pools")})

    async def change_pool(self, request: Request) -> Response:
        who = self._access.operator(request)
        asked = shaped(PoolBody, await self._body(request))
        move = PoolMove(asked.pool, asked.engines, asked.why, asked.check, asked.revision)
        return await _answered(request, self._steering.change_pool(who, move))

    async def audit(self, request: Request) -> Response:
        self._access.viewer(request)
        text = request.query_params.get("limit", "100")
        if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= MOST_ENTRIES:
            raise HTTPException(400, f"limit: must be from 1 to {MOST_ENTRIES}")
        return await answered(request, self._audit(int(text)))

    async def _audit(self, limit: int) -> dict[str, Any]:
        told = await self._steering.audit(limit)
        return {**told, "entries": [asdict(entry) for entry in told["entries"]]}


def _move(asked: RouteBody) -> Move:
    return Move(
        action=asked.action,
        route=asked.route,
        pool=asked.pool,
        to=asked.to,
        weight=None if asked.weight is None else asked.weight / 100.0,
        to_revision=asked.to_revision,
        deadline_s=asked.deadline_s,
        why=asked.why,
        everything=asked.all,
        force=asked.force,
        check=asked.check,
        revision=asked.revision,
        options=asked.model_extra or {},
    )


async def _answered(request: Request, work: Awaitable[dict[str, Any]]) -> Response:
    try:
        return await answered(request, work)
    except StaleTableError as error:
        return json_answer({"error": str(error), **error.told}, 409)
