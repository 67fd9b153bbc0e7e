"""Decides who an operator's request is from, and whether that one may look or change.

A token in the ``Authorization`` header, or the session of a console page. Browsers send a session's
cookie by themselves, so it counts only from a page of this origin, and for a change only together
with the session's own header, which another origin can't know or send.
"""

import hmac
import secrets
from collections.abc import Callable, Sequence
from hashlib import sha256

from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.schema import AdminToken
from gateway.sessions import Attempts, Session, Sessions

__all__ = ["CSRF_HEADER", "Access", "is_same_origin"]

CSRF_HEADER = "x-csrf-token"
_LOOKING = frozenset({"GET", "HEAD"})


class Access:
    """Who may do what on the operators' listener.

    Args:
        tokens: those of the configuration now in force.
        clock: monotonic seconds.
    """

    def __init__(
        self, tokens: Callable[[], Sequence[AdminToken]], clock: Callable[[], float]
    ) -> None:
        self._tokens = tokens
        self._clock = clock
        self._sessions = Sessions()
        self._attempts = Attempts()

    def viewer(self, request: Request) -> AdminToken:
        """The token that the request counts for.

        Raises:
            HTTPException: 401, or 403 where it comes from another origin's page.
        """
        if "authorization" in request.headers or self._secret(request) is None:
            return self._bearer(request)
        session, token = self.session(request)
        _require_same_origin(request, session)
        return token

    def operator(self, request: Request) -> str:
        """The name of the operator's token that the request counts for.

        Raises:
            HTTPException: as of ``viewer``, and 403 for a viewer.
        """
        token = self.viewer(request)
        if token.role != "operator":
            raise HTTPException(403, f"the token {token.name!r} may look, not change")
        return token.name

    def session(self, request: Request) -> tuple[Session, AdminToken]:
        """The session whose cookie was sent, and its token as configured now.

        Raises:
            HTTPException: 401.
        """
        secret = self._secret(request)
        found = None if secret is None else self._sessions.find(secret, self._clock())
        tokens = [t for t in self._tokens() if found and t.sha256 == found.token_sha256]
        if found is None or not tokens:
            raise HTTPException(401, "the session is over: log in again")
        return found, tokens[0]

    def log_in(self, address: str, text: str) -> tuple[str, Session, AdminToken] | None:
        """Open a session for a token; returns its secret too, or None if it is no token.

        Raises:
            HTTPException: 429 after too many that were none.
        """
        now = self._clock()
        wait_s = self._attempts.wait_s(address, now)
        if wait_s > 0:
            raise HTTPException(
                429,
                f"too many wrong tokens: try again in {int(wait_s) + 1} s",
                {"retry-after": str(int(wait_s) + 1)},
            )
        token = self._named(text)
        if token is None:
            self._attempts.refused(address, now)
            return None
        secret = secrets.token_urlsafe(32)
        session = Session(token.name, token.sha256, secrets.token_urlsafe(32), now)
        self._sessions.open(secret, session)
        return secret, session, token

    def log_out(self, request: Request) -> None:
        """End the session whose cookie was sent; the page of another origin can't.

        Raises:
            HTTPException: 401 or 403.
        """
        session, _ = self.session(request)
        _require_same_origin(request, session)
        self._sessions.close(self._secret(request) or "")

    def cookie_name(self, request: Request) -> str:
        """The cookie's name: cookies don't tell ports apart, gateways of one host must."""
        server = request.scope.get("server") or ("", None)
        name = f"sluicegate-{server[1] or 0}"
        return f"__Host-{name}" if request.url.scheme == "https" else name

    def _secret(self, request: Request) -> str | None:
        return request.cookies.get(self.cookie_name(request))

    def _bearer(self, request: Request) -> AdminToken:
        sent = request.headers.getlist("authorization")
        scheme, _, text = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
        token = self._named(text.strip())
        if token is None or scheme.lower() != "bearer":
            wanted = (
                "the token is not one of admin.tokens"
                if sent
                else "a token is needed: 'Authorization: Bearer <token>'"
            )
            raise HTTPException(401, wanted, {"www-authenticate": "Bearer"})
        return token

    def _named(self, text: str) -> AdminToken | None:
        """The token that ``text`` is; every digest is compared, whichever matches."""
        digest = sha256(text.encode()).hexdigest()
        found = [t for t in self._tokens() if hmac.compare_digest(digest, t.sha256)]
        return found[0] if found else None


def is_same_origin(request: Request) -> bool:
    """Whether a browser says that a page of this listener, or its user, asks.

    A request that would change something must say so.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    looks = request.method in _LOOKING
    if site is None and origin is None:
        return looks
    if site not in ({None, "same-origin", "none"} if looks else {None, "same-origin"}):
        return False
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def _require_same_origin(request: Request, session: Session) -> None:
    if not is_same_origin(request):
        raise HTTPException(403, "the request comes from a page of another origin")
    sent = request.headers.get(CSRF_HEADER, "")
    if request.method not in _LOOKING and not hmac.compare_digest(
        sent.encode(), session.csrf.encode()
    ):
        raise HTTPException(403, f"the header {CSRF_HEADER} is not the session's")
