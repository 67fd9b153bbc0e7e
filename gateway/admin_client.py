"""Changes the limits of several gateways as an operator: of all of them or of none.

First all are looked at and asked whether they would take the change; then it is made on one after
another; then all are looked at again. Where one fails after others have changed, those are put
back as they were, and what could not be put back is named.
"""

import os
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx

from gateway.command import CommandError
from gateway.origin import UNIX

__all__ = [
    "ADMIN_URL",
    "URL_VARIABLE",
    "Admin",
    "AdminError",
    "Operated",
    "PartialError",
    "change_limits",
    "client_of",
    "client_tls",
    "put_back",
    "unreached",
    "usual_url",
]

ADMIN_URL = "http://127.0.0.1:8081"  # where a gateway's [admin] listens unless it says otherwise
URL_VARIABLE = "SLUICEGATE_ADMIN_URL"
TIMEOUT_S = 30.0
_T = TypeVar("_T")


class AdminError(CommandError):
    """A gateway did not do as asked: ``URL: reason``. ``answered``: it said so itself."""

    def __init__(self, url: str, reason: str, *, answered: bool = True) -> None:
        super().__init__(f"{url}: {reason}")
        self.answered = answered


class PartialError(CommandError):
    """A change was made on some gateways only and could not be taken back on all of them."""


class Operated(Protocol):
    """A gateway that can be looked at and changed."""

    @property
    def url(self) -> str:
        """What it is called in messages."""

    def get(self, path: str) -> dict[str, Any]:
        """Look at something; raises ``AdminError``."""

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Change something; raises ``AdminError``."""


@dataclass(frozen=True, slots=True)
class Admin:
    """One gateway's operators' listener, as the holder of ``token`` sees it."""

    url: str
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None

    def get(self, path: str) -> dict[str, Any]:
        """Look at something.

        Raises:
            AdminError: it can't be reached, or says no.
        """
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Change something.

        Raises:
            AdminError: it can't be reached, or says no.
        """
        return self._ask("POST", path, body or {})

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.token}"}
        try:
            with client_of(self.url, self.tls, TIMEOUT_S) as client:
                answer = client.request(method, path, json=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise AdminError(self.url, unreached(error), answered=False) from error
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise AdminError(self.url, f"answered {answer.status_code} and no JSON object")
        if answer.status_code != 200:
            raise AdminError(self.url, str(found.get("error", answer.status_code)))
        return found


def unreached(error: Exception) -> str:
    """Why a gateway did not answer, and which flag says where it is."""
    said = str(error) or repr(error)
    return (
        f"no answer: {said} (--admin-url names a gateway's operators' listener, [admin] host "
        f"and port of its configuration; left out, it is ${URL_VARIABLE} or {ADMIN_URL})"
    )


def usual_url() -> str:
    """The gateway that is meant where none is named."""
    return os.environ.get(URL_VARIABLE, "").strip() or ADMIN_URL


def client_of(url: str, tls: ssl.SSLContext | None, timeout_s: float) -> httpx.Client:
    """A client for one gateway's operators' listener, at an address or a unix socket.

    Raises:
        ValueError: there is no socket at the path, or the address can't be one.
    """
    unix = url.removeprefix(UNIX) if url.startswith(UNIX) else None
    if unix and not Path(unix).is_socket():
        raise ValueError("there is no socket at this path")
    return httpx.Client(
        base_url="http://gateway" if unix else url,
        transport=httpx.HTTPTransport(uds=unix) if unix else None,
        timeout=timeout_s,
        trust_env=False,
        verify=tls if tls is not None else url.startswith("https:"),
    )


def client_tls(ca_file: Path | None, cert_file: Path | None, key_file: Path | None) -> Any:
    """How a gateway's certificate is verified, and which one is shown to it; None: as usual."""
    if ca_file is None and cert_file is None:
        return None
    context = ssl.create_default_context(cafile=ca_file)
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    return context


def change_limits(
    admins: Sequence[Operated], values: Mapping[str, Any], expires_s: float | None = None
) -> list[dict[str, Any]]:
    """Set ``values`` (None takes one back) on all gateways; returns their limits afterwards.

    Raises:
        AdminError: one could not, or would not; all are as they were.
        PartialError: some could not be put back.
    """
    before = [admin.get("/admin/limits") for admin in admins]
    for admin, seen in zip(admins, before, strict=True):
        admin.post("/admin/limits", _body(seen, values, expires_s, check=True))
    touched: list[tuple[Operated, dict[str, Any]]] = []
    try:
        for admin, seen in zip(admins, before, strict=True):
            touched.append((admin, seen))
            _apply(admin, _body(seen, values, expires_s), touched)
        after = [admin.get("/admin/limits") for admin in admins]
        for admin, seen in zip(admins, after, strict=True):
            _verify(admin, seen, values)
    except AdminError as error:
        put_back(touched, lambda one: _restore(one[0], one[1]["set"], values), error)
        raise
    return after


def _apply(admin: Operated, body: Mapping[str, Any], touched: list[Any]) -> None:
    try:
        admin.post("/admin/limits", body)
    except AdminError as error:
        if error.answered:
            touched.pop()  # it said no: nothing was changed there
        raise


def _verify(admin: Operated, seen: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for path, value in values.items():
        found = seen["set"].get(path, {}).get("value")
        if found != value:
            raise AdminError(admin.url, f"{path} is {found!r} afterwards, not {value!r}")


def put_back(touched: Iterable[_T], restore: Callable[[_T], object], cause: AdminError) -> None:
    """Restore what was changed before ``cause`` came, each one whatever becomes of the others.

    Raises:
        PartialError: naming those that could not be restored.
    """
    left = []
    for one in touched:
        try:
            restore(one)
        except AdminError as error:
            left.append(str(error))
    if left:
        raise PartialError(f"{cause}; changed and not put back: {'; '.join(left)}") from cause


def _restore(admin: Operated, before: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Each path as it was; those that expire at different times need a change each."""
    for path in values:
        now = admin.get("/admin/limits")
        was = before.get(path, {})
        if now["set"].get(path, {}).get("value") == was.get("value"):
            continue
        body = _body(now, {path: was.get("value")}, was.get("expires_in_s") or None)
        admin.post("/admin/limits", body)


def _body(
    seen: Mapping[str, Any],
    values: Mapping[str, Any],
    expires_s: float | None,
    *,
    check: bool = False,
) -> dict[str, Any]:
    return {
        "revision": seen["revision"], "set": dict(values), "expires_s": expires_s, "check": check,
    }  # fmt: skip
