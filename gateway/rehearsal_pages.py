"""Answers operators about rehearsals: begin one, look at it, stop it, keep its record."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.access import Access
from gateway.admin_pages import Body, answered, as_object, shaped
from gateway.rehearsal_desk import Rehearsals

__all__ = ["rehearsal_routes"]


class RehearsalBody(BaseModel):
    """The body of ``POST /admin/rehearsals`` that begins or checks one. Weights are percent."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    route: str
    to: str | None = None
    weight: Annotated[float, Field(gt=0, le=100)] = 50.0
    hold_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    drain_deadline_s: Annotated[float, Field(ge=0, le=86400)] | None = None
    why: Annotated[str, Field(max_length=1000)] = ""
    check: bool = False
    verify: bool = True
    manifest: str | dict[str, Any] | None = None
    launch_record: list[dict[str, Any]] = []
    accept_unverified: list[str] = []
    load: dict[str, Any] | None = None
    limits: dict[str, float] = {}
    revision: int | None = None


def rehearsal_routes(access: Access, rehearsals: Rehearsals, body: Body) -> list[Route]:
    """The endpoints; ``body`` reads a request's, in bounds."""
    pages = _Pages(access, rehearsals, body)
    return [Route("/admin/rehearsals", pages.rehearsals, methods=["GET", "POST"])]


class _Pages:
    def __init__(self, access: Access, rehearsals: Rehearsals, body: Body) -> None:
        self._access, self._rehearsals, self._body = access, rehearsals, body

    async def rehearsals(self, request: Request) -> Response:
        """All in brief, or with ``id`` one; POST an order, ``{"stop": id}`` or ``{"record"}``."""
        if request.method == "POST":
            who = self._access.operator(request)
            return await answered(request, self._post(who, as_object(await self._body(request))))
        self._access.viewer(request)
        name = request.query_params.get("id")
        found = self._rehearsals.view() if name is None else self._rehearsals.one(name)
        return await answered(request, found)

    async def _post(self, who: str, asked: dict[str, Any]) -> dict[str, Any]:
        if "stop" in asked:
            return self._rehearsals.stop(who, str(asked["stop"]))
        if "record" in asked:
            return await self._rehearsals.keep(who, asked["record"])
        return await self._rehearsals.begin(who, shaped(RehearsalBody, asked).model_dump())
