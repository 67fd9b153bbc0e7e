"""Who an operator's request is from: tokens, sessions, and pages of other origins."""

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.access import CSRF_HEADER, Access, is_same_origin
from gateway.schema import AdminToken
from gateway.sessions import IDLE_S, MAX_REFUSED
from tests.gateway.controlled import TOKENS, Clock

HOST = "gateway:8081"


def tokens() -> list[AdminToken]:
    return [
        AdminToken.model_validate(
            {"name": name, "role": role, "sha256": sha256(text.encode()).hexdigest()}
        )
        for name, (text, role) in TOKENS.items()
    ]


def request(method: str = "GET", scheme: str = "http", **headers: str) -> Request:
    named = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Request(
        {
            "type": "http", "method": method, "path": "/admin/limits", "query_string": b"",
            "scheme": scheme, "server": ("127.0.0.1", 8081), "client": ("127.0.0.1", 5),
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        }
    )  # fmt: skip


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known() -> list[AdminToken]:
    return tokens()


@pytest.fixture
def access(known: list[AdminToken], clock: Clock) -> Access:
    return Access(lambda: known, clock)


def opened(access: Access, name: str) -> tuple[dict[str, str], str]:
    """The cookie of a new session, and what changes must carry."""
    made = access.log_in("127.0.0.1", TOKENS[name][0])
    assert made is not None
    secret, session, token = made
    assert token.name == session.name == name
    return {"cookie": f"{access.cookie_name(request())}={secret}"}, session.csrf


def refusal(of: Any, *arguments: Any) -> tuple[int, str]:
    with pytest.raises(HTTPException) as refused:
        of(*arguments)
    return refused.value.status_code, refused.value.detail


def change(csrf: str | None, **headers: str) -> Request:
    carried = {} if csrf is None else {CSRF_HEADER.replace("-", "_"): csrf}
    return request("POST", **carried, **headers)


def test_a_session_looks_and_changes_as_its_token_may(access: Access) -> None:
    viewer, viewers_csrf = opened(access, "anna")
    operator, csrf = opened(access, "ben")
    assert access.viewer(request(**viewer)).name == "anna"
    assert access.viewer(request(**operator)).name == "ben"
    own = {"origin": f"http://{HOST}", "sec_fetch_site": "same-origin"}
    assert access.operator(change(csrf, **operator, **own)) == "ben"
    status, reason = refusal(access.operator, change(viewers_csrf, **viewer, **own))
    assert (status, reason) == (403, "the token 'anna' may look, not change")


@pytest.mark.parametrize("csrf", [None, "", "x", "theirs"])
def test_a_change_without_the_sessions_own_header_is_refused(
    access: Access, csrf: str | None
) -> None:
    cookie, _ = opened(access, "ben")
    _, theirs = opened(access, "ben")
    sent = theirs if csrf == "theirs" else csrf
    own = {"origin": f"http://{HOST}"}
    assert refusal(access.operator, change(sent, **cookie, **own))[0] == 403


FOREIGN = [
    {"origin": "http://evil:8081"},
    {"origin": "http://gateway:9999"},
    {"origin": "null"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"origin": f"http://{HOST}", "sec_fetch_site": "same-site"},
    {"origin": f"http://{HOST}.evil", "sec_fetch_site": "same-origin"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_another_origin_is_refused_whatever_it_carries(
    access: Access, headers: dict[str, str]
) -> None:
    cookie, csrf = opened(access, "ben")
    assert refusal(access.operator, change(csrf, **cookie, **headers))[0] == 403
    assert refusal(access.viewer, request(**cookie, **headers))[0] == 403
    assert refusal(access.log_out, change(csrf, **cookie, **headers))[0] == 403
    assert access.viewer(request(**cookie)).name == "ben"


def test_a_change_that_does_not_say_where_it_comes_from_is_refused(access: Access) -> None:
    cookie, csrf = opened(access, "ben")
    assert refusal(access.operator, change(csrf, **cookie))[0] == 403
    typed = {"sec_fetch_site": "none"}
    assert access.viewer(request(**cookie, **typed)).name == "ben"
    assert refusal(access.operator, change(csrf, **cookie, **typed))[0] == 403


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_text_is_a_session(secret: str, csrf: str) -> None:
    access = Access(tokens, Clock())
    headers = [(b"host", HOST.encode()), (b"cookie", b"sluicegate-8081=" + secret.encode())]
    sent = request("POST")
    sent.scope["headers"] = [*headers, (CSRF_HEADER.encode(), csrf.encode())]
    assert refusal(access.operator, Request(sent.scope))[0] == 401


def test_a_bearer_token_needs_neither_and_rules_over_a_cookie(access: Access) -> None:
    cookie, _ = opened(access, "ben")
    bearer = {"authorization": f"Bearer {TOKENS['ben'][0]}"}
    assert access.operator(change(None, **bearer)) == "ben"
    assert refusal(access.viewer, request(**cookie, authorization="Bearer no"))[0] == 401


def test_a_session_ends_with_its_token_and_takes_its_new_role(
    access: Access, known: list[AdminToken]
) -> None:
    cookie, csrf = opened(access, "ben")
    own = {"origin": f"http://{HOST}"}
    known[1] = known[1].model_copy(update={"role": "viewer"})
    assert refusal(access.operator, change(csrf, **cookie, **own))[0] == 403
    known[1] = known[1].model_copy(update={"role": "operator"})
    assert access.operator(change(csrf, **cookie, **own)) == "ben"
    del known[1]
    assert refusal(access.viewer, request(**cookie))[0] == 401


def test_a_session_ends_by_idleness_and_by_logging_out(access: Access, clock: Clock) -> None:
    cookie, csrf = opened(access, "ben")
    access.log_out(change(csrf, **cookie, origin=f"http://{HOST}"))
    assert refusal(access.viewer, request(**cookie))[0] == 401
    cookie, _ = opened(access, "ben")
    clock.now += IDLE_S + 1
    assert refusal(access.viewer, request(**cookie))[0] == 401


def test_after_wrong_tokens_even_the_right_one_waits(access: Access, clock: Clock) -> None:
    for _ in range(MAX_REFUSED):
        assert access.log_in("10.0.0.1", "wrong") is None
    right = TOKENS["ben"][0]
    status, reason = refusal(access.log_in, "10.0.0.1", right)
    assert (status, reason) == (429, "too many wrong tokens: try again in 61 s")
    assert access.log_in("10.0.0.2", right) is not None
    clock.now += 60.0
    assert access.log_in("10.0.0.1", right) is not None


def test_over_tls_the_cookie_is_bound_to_the_host(access: Access) -> None:
    assert access.cookie_name(request()) == "sluicegate-8081"
    assert access.cookie_name(request(scheme="https")) == "__Host-sluicegate-8081"


def test_a_request_of_no_browser_may_look_and_not_log_in() -> None:
    assert is_same_origin(request())
    assert not is_same_origin(request("POST"))


@pytest.mark.parametrize("origin", ["http://[", "null", "http://", "https://x\udc80", HOST])
def test_an_origin_that_is_none_is_another_one(origin: str) -> None:
    made = Request({**request("POST").scope, "headers": [
        (b"host", HOST.encode()), (b"origin", origin.encode("latin-1", "replace")),
    ]})  # fmt: skip
    assert not is_same_origin(made)
