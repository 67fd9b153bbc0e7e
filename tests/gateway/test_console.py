"""The console's files, headers and sessions over HTTP; the page itself is driven in e2e."""

import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin import build_admin
from gateway.console import SAFE_HEADERS
from gateway.domain import Outcome
from gateway.sessions import MAX_REFUSED
from tests.gateway.controlled import ADMIN, TOKENS, Held, controlled

FORBIDDEN = (
    *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("),
    *("localStorage", "sessionStorage", 'setAttribute("style"'),
)
ORIGIN = {"origin": "http://admin"}


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[Held]:
    async with controlled(tmp_path) as made:
        yield made


@pytest.fixture
async def browser(held: Held) -> AsyncIterator[httpx.AsyncClient]:
    """Keeps cookies, as a browser does."""
    transport = httpx.ASGITransport(build_admin(held.control))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as made:
        yield made


async def log_in(browser: httpx.AsyncClient, name: str) -> dict[str, str]:
    """Log in; returns the headers of a change."""
    body = {"token": TOKENS[name][0]}
    answer = await browser.post("/console/login", json=body, headers=ORIGIN)
    assert answer.status_code == 200
    told = answer.json()
    assert (told["name"], told["role"]) == (name, TOKENS[name][1])
    return {**ORIGIN, "x-csrf-token": told["csrf"]}


@pytest.mark.parametrize(
    "path", ["/console", "/console/console.js", "/console/session", "/admin/live", "/metrics", "/x"]
)
async def test_every_answer_carries_the_policy(browser: httpx.AsyncClient, path: str) -> None:
    answer = await browser.get(path)
    assert {name: answer.headers[name] for name in SAFE_HEADERS} == dict(SAFE_HEADERS)
    policy = dict(
        part.split(" ", 1) for part in SAFE_HEADERS["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in SAFE_HEADERS["content-security-policy"]


async def test_the_page_needs_nothing_from_elsewhere_and_nothing_inline(
    browser: httpx.AsyncClient,
) -> None:
    page = await browser.get("/console")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    linked = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    assert linked == ["data:,", "/console/console.css", "/console/console.js"]
    for path, kind in (("css", "text/css"), ("js", "text/javascript")):
        answer = await browser.get(f"/console/console.{path}")
        assert answer.headers["content-type"].startswith(kind)
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)\w", answer.text)
    assert not re.findall(r"<style|style=|\son\w+=|<script>", page.text)


def test_the_script_makes_no_elements_of_text_and_keeps_nothing() -> None:
    script = files("gateway").joinpath("console", "console.js").read_text()
    for word in FORBIDDEN:
        assert word not in script


def test_the_page_has_words_for_every_outcome_that_is_not_quiet() -> None:
    script = files("gateway").joinpath("console", "console.js").read_text()
    table = script[script.index("const OUTCOMES") :]
    named = set(re.findall(r"^  (\w+): \"", table[: table.index("};")], re.MULTILINE))
    assert named == set(Outcome) - {Outcome.COMPLETED, Outcome.CLIENT_CANCELLED}


async def test_a_login_opens_what_a_token_opens(held: Held, browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/console/session")).json() == {"name": None}
    assert (await browser.get("/admin/live")).status_code == 401
    change = await log_in(browser, "ben")
    session = (await browser.get("/console/session")).json()
    assert (session["name"], session["csrf"]) == ("ben", change["x-csrf-token"])
    assert set((await browser.get("/admin/live")).json()) == {
        "gateway", "window_s", "limits_revision", "flows", "engines", "classes", "outcomes",
        "routes",
    }  # fmt: skip
    body = {"revision": 1, "set": {"flow.short.batch.weight": 2}}
    assert (await browser.post("/admin/limits", json=body, headers=ORIGIN)).status_code == 403
    assert (await browser.post("/admin/limits", json=body, headers=change)).status_code == 200
    assert held.events("admin_change")[0]["who"] == "ben"
    assert (await browser.post("/console/logout", headers=ORIGIN)).status_code == 403
    assert (await browser.post("/console/logout", headers=change)).status_code == 200
    assert (await browser.get("/admin/live")).status_code == 401
    assert (await browser.post("/admin/limits", json=body, headers=change)).status_code == 401
    logged = held.events("console_login", "console_logout")
    assert [line["who"] for line in logged] == ["ben", "ben"]


async def test_a_cookie_can_neither_be_read_nor_sent_from_elsewhere(
    browser: httpx.AsyncClient,
) -> None:
    body = {"token": TOKENS["anna"][0]}
    answer = await browser.post("/console/login", json=body, headers=ORIGIN)
    (cookie,) = answer.headers.get_list("set-cookie")
    assert {part.strip().lower() for part in cookie.split(";")[1:]} == {
        "httponly", "path=/", "samesite=strict",
    }  # fmt: skip
    assert TOKENS["anna"][0] not in answer.text + cookie
    secure = {"origin": "https://admin"}
    answer = await browser.post("https://admin/console/login", json=body, headers=secure)
    (cookie,) = answer.headers.get_list("set-cookie")
    assert cookie.startswith("__Host-sluicegate-")
    assert "secure" in cookie.lower()


@pytest.mark.parametrize(
    "headers", [{}, {"origin": "http://evil"}, {"sec-fetch-site": "cross-site"}]
)
async def test_a_login_from_elsewhere_is_refused(
    browser: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    body = {"token": TOKENS["ben"][0]}
    assert (await browser.post("/console/login", json=body, headers=headers)).status_code == 403
    assert not browser.cookies


BODIES = [b"", b"{", b"{}", b'{"token": 1}', b'{"token": "a", "more": 1}', b'["a"]',
          b'{"token": "' + b"a" * 513 + b'"}']  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
async def test_a_login_that_is_none_is_refused(browser: httpx.AsyncClient, body: bytes) -> None:
    answer = await browser.post("/console/login", content=body, headers=ORIGIN)
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        'the body must be {"token": "..."}',
    )


async def test_wrong_tokens_are_counted_and_written_down(
    held: Held, browser: httpx.AsyncClient
) -> None:
    for _ in range(MAX_REFUSED):
        answer = await browser.post("/console/login", json={"token": "no"}, headers=ORIGIN)
        assert answer.status_code == 401
    right = {"token": TOKENS["ben"][0]}
    answer = await browser.post("/console/login", json=right, headers=ORIGIN)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    assert held.events("console_login_refused") == [{"address": "127.0.0.1"}] * MAX_REFUSED


async def test_a_session_ends_when_a_reload_takes_its_token_away(
    held: Held, browser: httpx.AsyncClient
) -> None:
    await log_in(browser, "anna")
    assert (await browser.get("/admin/live")).status_code == 200
    held.rewrite(ADMIN, ADMIN[ADMIN.index("[[", 1) :])
    await held.control.reload("test")
    assert (await browser.get("/admin/live")).status_code == 401
