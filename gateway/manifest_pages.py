"""Answers operators about rollback records: which are kept, keep one, hold one against a pool."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.access import Access
from gateway.admin_pages import Body, answered, as_object
from gateway.manifest import document
from gateway.manifest_desk import Desk
from gateway.manifest_fields import RecordError

__all__ = ["manifest_routes"]


def manifest_routes(access: Access, desk: Desk, body: Body) -> list[Route]:
    """The endpoints; ``body`` reads a request's, in bounds."""
    pages = _Pages(access, desk, body)
    return [
        Route("/admin/manifests", pages.manifests, methods=["GET", "POST"]),
        Route("/admin/manifests/verifications", pages.verifications, methods=["POST"]),
    ]


class _Pages:
    def __init__(self, access: Access, desk: Desk, body: Body) -> None:
        self._access = access
        self._desk = desk
        self._body = body

    async def manifests(self, request: Request) -> Response:
        """All in brief; with ``digest`` one whole, with ``pool`` what it is held against here."""
        if request.method == "POST":
            return await answered(request, self._keep(request))
        self._access.viewer(request)
        return await answered(request, self._look(request.query_params))

    async def verifications(self, request: Request) -> Response:
        """Hold a record against a pool here, or write down what was found elsewhere."""
        return await answered(request, self._verify(request))

    async def _look(self, asked: Any) -> dict[str, Any]:
        told: dict[str, Any] = {"manifests": await self._desk.rows()}
        if "digest" in asked:
            told = {"manifest": document(await self._desk.find(asked["digest"]))}
        if "pool" in asked:
            told["gateway"] = self._desk.facts(asked["pool"])
        return told

    async def _keep(self, request: Request) -> dict[str, Any]:
        who = self._access.operator(request)
        asked = as_object(await self._body(request))
        record, new = await self._desk.keep(who, asked.get("manifest"), str(asked.get("why", "")))
        return {"digest": record.digest, "parent": record.parent, "new": new}

    async def _verify(self, request: Request) -> dict[str, Any]:
        who = self._access.operator(request)
        asked = as_object(await self._body(request))
        found, seen_from = asked.get("found"), "operator"
        if found is None:
            seen_from = "gateway"
            _, told = await self._desk.verified(asked, str(asked.get("pool", "")))
            found = [one.told() for one in told]
        if not _are_objects(found) or not all(_are_objects(one.get("fields", [])) for one in found):
            raise RecordError("found: must be a list of objects, and their fields too")
        await self._desk.note(who, seen_from, found, str(asked.get("why", "")))
        return {"engines": found}


def _are_objects(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, dict) for one in found)
