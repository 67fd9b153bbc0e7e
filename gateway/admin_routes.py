"""Answers operators about routes: what there is, moves, the audit trail, the engines of pools.

Part of ``admin``. Weights are percent here. 400 for what can't be done, 409 where somebody else was
first (it says who), 503 where the state can't be written: nothing was changed then.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.access import Access
from gateway.moves import RouteError
from gateway.state import StateError
from gateway.steering import Move, StaleTableError, Steering
from gateway.values import FROZEN

__all__ = ["route_endpoints"]

MOST_ENTRIES = 1000
Body = Callable[[Request], Awaitable[bytes]]
_M = TypeVar("_M", bound=BaseModel)
_Number = Annotated[float, Field(strict=False)]


class RouteBody(BaseModel):
    """The body of ``POST /admin/routes``; other keys are for those who watch and drain."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    action: str
    revision: int | None = None
    route: str | None = None
    pool: str | None = None
    to: str | None = None
    weight: _Number | None = None
    to_revision: int | None = None
    deadline_s: Annotated[float, Field(ge=0, strict=False)] | None = None
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
        return _json(self._steering.view())

    async def move(self, request: Request) -> Response:
        who = self._access.operator(request)
        asked = _parsed(RouteBody, await self._body(request))
        return await _answered(self._steering.change(who, _move(asked)))

    async def pools(self, request: Request) -> Response:
        self._access.viewer(request)
        seen = self._steering.view()
        return _json({key: seen[key] for key in ("revision", "pools")})

    async def change_pool(self, request: Request) -> Response:
        who = self._access.operator(request)
        asked = _parsed(PoolBody, await self._body(request))
        return await _answered(
            self._steering.change_pool(
                who, asked.pool, asked.engines, revision=asked.revision, why=asked.why,
                check=asked.check,
            )
        )  # fmt: skip

    async def audit(self, request: Request) -> Response:
        self._access.viewer(request)
        text = request.query_params.get("limit", "100")
        if not text.isdecimal() or not 1 <= int(text) <= MOST_ENTRIES:
            raise HTTPException(400, f"limit: must be from 1 to {MOST_ENTRIES}")
        return await _answered(self._audit(int(text)))

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


async def _answered(work: Awaitable[dict[str, Any]]) -> Response:
    try:
        return _json(await work)
    except RouteError as error:
        raise HTTPException(400, str(error)) from error
    except StateError as error:
        raise HTTPException(503, f"state: {error}; nothing was changed") from error
    except StaleTableError as error:
        return _json({"error": str(error), **error.told}, 409)


def _parsed(shape: type[_M], body: bytes) -> _M:
    try:
        return shape.model_validate(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        reason = f"{first['msg'][0].lower()}{first['msg'][1:]}"
        raise HTTPException(400, f"{where}: {reason}") from error


def _json(content: object, status: int = 200) -> Response:
    body = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    return Response(body, status, media_type="application/json")
