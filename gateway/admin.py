"""Answers operators: health and metrics for machines, state and changes for people.

Its own listener. ``/health/*`` and ``/metrics`` need no token, ``/admin/*`` needs a named one
(``access``): a viewer's to look, an operator's to change. Liveness stays 200 while the process can
answer; readiness is 503 while it drains or while no engine is healthy. Errors are
``{"error": REASON}``. ``/console`` is the page for people.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.access import Access
from gateway.admin_pages import json_answer, shaped
from gateway.admin_routes import route_endpoints
from gateway.config import ConfigError
from gateway.console import SafeHeaders, console_routes
from gateway.control import Change, Control, StaleError
from gateway.limits import LimitError
from gateway.manifest_desk import Desk
from gateway.manifest_pages import manifest_routes
from gateway.panel import Panel
from gateway.rehearsal_desk import Rehearsals
from gateway.rehearsal_pages import rehearsal_routes
from gateway.status import readiness, status, usage
from gateway.steering import Steering

__all__ = ["build_admin"]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_BODY_BYTES = 64 << 10
BODY_TIMEOUT_S = 10.0


class LimitsBody(BaseModel):
    """The body of ``POST /admin/limits``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    revision: int
    set: dict[str, Any]
    expires_s: float | None = None
    check: bool = False


def build_admin(
    control: Control,
    steering: Steering | None = None,
    *,
    panel: Panel | None = None,
    rehearsals: Rehearsals | None = None,
    desk: Desk | None = None,
) -> Starlette:
    """The operators' application; ``panel`` is what its console shows, ``steering`` moves traffic.

    ``desk`` has the rollback records. Without ``rehearsals`` there are none.

    All endpoints run on the loop: in a thread they would see the core while it changes.
    """
    gateway = control.gateway
    access = Access(lambda: gateway.setup.settings.document.admin.tokens, gateway.parts.clock)
    pages = _Pages(control, access)
    steering = steering or Steering(control)
    panel = panel or Panel(control, steering.view)
    desk = desk or Desk(gateway, control.trail)
    application = Starlette(
        routes=[
            Route("/health/live", pages.live),
            Route("/health/ready", pages.ready),
            Route("/metrics", pages.metrics),
            Route("/admin/status", pages.status),
            Route("/admin/usage", pages.usage),
            Route("/admin/limits", pages.limits, methods=["GET", "POST"]),
            Route("/admin/reload", pages.reload, methods=["POST"]),
            *route_endpoints(access, steering, _body),
            *manifest_routes(access, desk, _body),
            *(rehearsal_routes(access, rehearsals, _body) if rehearsals is not None else ()),
            *console_routes(access, panel, gateway.parts.journal, _body),
        ],
        middleware=[Middleware(SafeHeaders)],
        exception_handlers={HTTPException: _refused, StaleError: _stale},
    )
    application.router.redirect_slashes = False
    return application


class _Pages:
    """The endpoints. Those of ``/admin`` ask for a token first."""

    def __init__(self, control: Control, access: Access) -> None:
        self._control = control
        self._access = access
        self._gateway = control.gateway

    async def live(self, _: Request) -> Response:
        return json_answer({"status": "live"})

    async def ready(self, _: Request) -> Response:
        found = readiness(self._gateway)
        return json_answer(found, 503 if found["reasons"] else 200)

    async def metrics(self, _: Request) -> Response:
        return Response(self._gateway.parts.observer.page(), media_type=METRICS_TYPE)

    async def status(self, request: Request) -> Response:
        self._access.viewer(request)
        return json_answer(status(self._gateway))

    async def usage(self, request: Request) -> Response:
        self._access.viewer(request)
        return json_answer(usage(self._gateway))

    async def limits(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._change_limits(request)
        self._access.viewer(request)
        return json_answer(self._control.view())

    async def _change_limits(self, request: Request) -> Response:
        who = self._access.operator(request)
        wanted = _change(shaped(LimitsBody, await _body(request)))
        try:
            now = self._control.change(who, wanted)
        except LimitError as error:
            raise HTTPException(400, str(error)) from error
        more = {"changed": _changes(now["set"], wanted)} if wanted.check_only else {}
        return json_answer({**now, **more})

    async def reload(self, request: Request) -> Response:
        who = self._access.operator(request)
        await _body(request)
        try:
            return json_answer(await self._control.reload(who))
        except ConfigError as error:
            raise HTTPException(400, str(error)) from error


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(400, f"the body did not come within {BODY_TIMEOUT_S:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the body is not whole") from None
    return b"".join(parts)


def _change(asked: LimitsBody) -> Change:
    return Change(asked.revision, asked.set, asked.expires_s, asked.check)


def _changes(present: Mapping[str, Any], wanted: Change) -> list[dict[str, Any]]:
    """What a change that was only checked would set; null is the configuration's."""
    none = {"value": None}
    return [
        {"limit": path, "before": present.get(path, none), "after": {"value": value}}
        for path, value in wanted.values.items()
    ]


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise TypeError(f"no answer for {error!r}")
    return json_answer({"error": _sentence(error)}, error.status_code, error.headers)


def _sentence(error: HTTPException) -> str:
    usual = {404: "there is nothing at this path", 405: "the method is not allowed here"}
    return usual.get(error.status_code, error.detail)


async def _stale(_: Request, error: Exception) -> Response:
    revision = error.revision if isinstance(error, StaleError) else 0
    return json_answer({"error": str(error), "revision": revision}, 409)
