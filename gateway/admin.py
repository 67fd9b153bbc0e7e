"""Answers operators: health and metrics for machines, the state of the gateway for people.

Its own listener. ``/health/*`` and ``/metrics`` need no token, ``/admin/*`` needs a named one,
compared in constant time. Liveness stays 200 while the process can answer; readiness is 503
while it drains or while no pool has a healthy engine.
"""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.app import Gateway
from gateway.schema import AdminToken
from gateway.status import status, unready_reason

__all__ = ["build_admin"]

Endpoint = Callable[[Request], Awaitable[Response]]
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_admin(gateway: Gateway, tokens: Sequence[AdminToken]) -> Starlette:
    """The operators' application; ``tokens`` are the digests that open ``/admin``.

    All endpoints run on the loop: in a thread they would see the core while it changes.
    """

    async def live(_: Request) -> Response:
        return _json({"status": "live"})

    async def ready(_: Request) -> Response:
        reason = unready_reason(gateway)
        return _json({"status": "ready"}) if reason is None else _json({"status": reason}, 503)

    async def metrics(_: Request) -> Response:
        return Response(gateway.parts.observer.page(), media_type=METRICS_TYPE)

    async def show(_: Request) -> Response:
        return _json(status(gateway))

    application = Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/metrics", metrics),
            Route("/admin/status", _guarded(show, tokens)),
        ]
    )
    application.router.redirect_slashes = False
    return application


def _guarded(endpoint: Endpoint, tokens: Sequence[AdminToken]) -> Endpoint:
    async def guard(request: Request) -> Response:
        sent = request.headers.getlist("authorization")
        if len(sent) != 1 or _who(sent[0], tokens) is None:
            return _json({"error": "a token is needed: 'Authorization: Bearer <token>'"}, 401)
        return await endpoint(request)

    return guard


def _who(authorization: str, tokens: Sequence[AdminToken]) -> str | None:
    """The name of the token that was sent; every digest is compared, whichever matches."""
    scheme, _, token = authorization.partition(" ")
    digest = sha256(token.strip().encode()).hexdigest()
    names = [t.name for t in tokens if hmac.compare_digest(digest, t.sha256)]
    return names[0] if names and scheme.lower() == "bearer" else None


def _json(content: object, status: int = 200) -> Response:
    body = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    return Response(body, status, media_type="application/json")
