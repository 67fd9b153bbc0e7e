"""Serves the console: its page, its sessions, and what the page shows; for people with a browser.

The page is three files that need nothing from elsewhere. Its policy lets it load and ask this
listener alone, forbids scripts and styles in the page, frames, and making elements from text. Who
logs in with a token gets a session (``access``); every login, taken or refused, is in the log.
"""

from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access import Access, is_same_origin
from gateway.admin_pages import Body, json_answer
from gateway.journal import Journal
from gateway.panel import Panel
from gateway.schema import AdminToken
from gateway.sessions import Session

__all__ = ["SAFE_HEADERS", "SafeHeaders", "console_routes"]

MAX_TOKEN_CHARACTERS = 512
# On every answer of the listener: a browser may be led to any of its paths.
SAFE_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
            "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }
)
_FILES = MappingProxyType(
    {
        "/console": ("console.html", "text/html"),
        "/console/console.css": ("console.css", "text/css"),
        "/console/console.js": ("console.js", "text/javascript"),
    }
)
_OPTIONAL = ("/admin/manifests", "/admin/rehearsals")


class SafeHeaders:
    """Puts ``SAFE_HEADERS`` on every answer of an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._added = [(name.encode(), value.encode()) for name, value in SAFE_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI has it."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._added]
            await send(message)

        await self._app(scope, receive, send_safely)


class LoginBody(BaseModel):
    """The body of ``POST /console/login``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    token: Annotated[str, Field(max_length=MAX_TOKEN_CHARACTERS)]


def console_routes(access: Access, panel: Panel, journal: Journal, body: Body) -> list[Route]:
    """The console's part of the operators' application.

    Args:
        access: who may look.
        panel: what there is to see.
        journal: where logins are written.
        body: reads a request's body, bounded in size and time.
    """
    console = _Console(access, panel, journal, body)
    return [
        *(Route(path, _file(name, kind)) for path, (name, kind) in _FILES.items()),
        Route("/console/session", console.session),
        Route("/console/login", console.log_in, methods=["POST"]),
        Route("/console/logout", console.log_out, methods=["POST"]),
        Route("/admin/live", console.live),
    ]


class _Console:
    """The endpoints that the page asks."""

    def __init__(self, access: Access, panel: Panel, journal: Journal, body: Body) -> None:
        self._access = access
        self._panel = panel
        self._journal = journal
        self._body = body

    async def live(self, request: Request) -> Response:
        self._access.viewer(request)
        return Response(self._panel.document(), media_type="application/json")

    async def session(self, request: Request) -> Response:
        if not is_same_origin(request):
            raise HTTPException(403, "the request comes from a page of another origin")
        try:
            session, token = self._access.session(request)
        except HTTPException:
            return json_answer({"name": None})  # what a page asks first: no error of anybody's
        return _told(request, session, token)

    async def log_in(self, request: Request) -> Response:
        if not is_same_origin(request):
            raise HTTPException(403, "a login must come from the console's own page")
        token = _token(await self._body(request))
        address = request.client.host if request.client else ""
        opened = self._access.log_in(address, token)
        if opened is None:
            self._journal.event("console_login_refused", address=address)
            raise HTTPException(401, "this is not one of the gateway's admin tokens")
        secret, session, known = opened
        self._journal.event("console_login", who=known.name, role=known.role, address=address)
        answer = _told(request, session, known)
        answer.set_cookie(
            self._access.cookie_name(request),
            secret,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def log_out(self, request: Request) -> Response:
        session, _ = self._access.session(request)
        self._access.log_out(request)
        self._journal.event("console_logout", who=session.name)
        answer = json_answer({"status": "logged out"})
        answer.delete_cookie(
            self._access.cookie_name(request),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that answers with a file of the package, read once."""
    content = files("gateway").joinpath("console", name).read_bytes()

    async def send(_: Request) -> Response:
        return Response(content, media_type=kind)

    return send


def _token(body: bytes) -> str:
    try:
        return LoginBody.model_validate(orjson.loads(body)).token
    except (orjson.JSONDecodeError, ValidationError):
        raise HTTPException(400, 'the body must be {"token": "..."}') from None


def _told(request: Request, session: Session, token: AdminToken) -> Response:
    """Who somebody is, what changes must carry, and which optional parts this gateway has."""
    paths = {getattr(route, "path", "") for route in request.app.routes}
    return json_answer(
        {
            "name": token.name,
            "role": token.role,
            "csrf": session.csrf,
            "has": [path for path in _OPTIONAL if path in paths],
        }
    )
