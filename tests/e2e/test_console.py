"""The operators' console in a real browser: a real ``up``, simulated engines, headless Chromium."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.harness import LIMIT_S, ROOT

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to look with")

VIEWER = "a-viewer-of-these-tests"
ROUTE = "simulated/short"
LIMIT_MS = 1000 * LIMIT_S


# -- a gateway, a browser, callers ---------------------------------------------------------


class Up:
    """A running ``up``: two pools of one engine each, which takes four requests at once."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.admin_url: str = told["admin_url"]
        self.token: str = told["admin_token"]
        self.url: str = told["gateway_url"]
        self._key: str = told["keys"]["interactive"]
        self.config = Path(told["config"])

    def get(self, path: str) -> dict[str, Any]:
        return self._asked("GET", path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._asked("POST", path, body)

    def _asked(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.token}"}
        answer = httpx.request(
            method, self.admin_url + path, headers=headers, json=body, timeout=LIMIT_S
        )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def routes(self) -> dict[str, str]:
        return {row["route"]: row["stable"] for row in self.get("/admin/routes")["routes"]}

    def rewrite(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))
        self.post("/admin/reload")

    @contextmanager
    def callers(self, count: int) -> Iterator[None]:
        """So many streams that don't end by themselves; all hang up at the end."""
        over = threading.Event()
        threads = [threading.Thread(target=self._call, args=(over,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _call(self, over: threading.Event) -> None:
        body = {
            "model": "simulated", "messages": [{"role": "user", "content": "Hello."}],
            "max_tokens": 3000, "ignore_eos": True, "stream": True,
        }  # fmt: skip
        headers = {"authorization": f"Bearer {self._key}"}
        url = f"{self.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=LIMIT_S) as stream:
            for _ in stream.iter_raw():
                if over.is_set():
                    return


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("console")
    flags = (
        *("--json", "--topology", "isolated", "--run-dir", str(folder / "run")),
        *("--engine-args", "--max-num-seqs 2 --max-model-len 8000"),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "up", *flags],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
    )
    try:
        assert process.stdout is not None
        made = Up(json.loads(process.stdout.readline()))
        made.rewrite("[auth]", f"{viewer_token()}\n[auth]")
        made.rewrite("[flow.short.interactive]", "[flow.short.interactive]\npredict = false")
        yield made
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        process.communicate()


def viewer_token() -> str:
    digest = sha256(VIEWER.encode()).hexdigest()
    return f'[[admin.tokens]]\nname = "vera"\nrole = "viewer"\nsha256 = "{digest}"'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # The sandbox needs rights that a container's root has not.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(up: Up, browser: Any) -> Iterator[Callable[..., Any]]:
    """Open the console in a browser of its own; nothing may be complained of there at the end."""
    complaints: list[str] = []
    with ExitStack() as stack:

        def opened(token: str | None = up.token, **options: Any) -> Any:
            context = browser.new_context(**options)
            stack.callback(context.close)
            context.set_default_timeout(LIMIT_MS)
            page = context.new_page()
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(f"{up.admin_url}/console")
            if token is not None:
                log_in(page, token)
                expect(page.locator("#routes tbody tr")).to_have_count(2)
            return page

        yield opened
    assert complaints == []


def log_in(page: Any, token: str) -> None:
    page.get_by_label("Admin token").fill(token)
    page.keyboard.press("Enter")


def cell(page: Any, table: str, key: str, label: str) -> Any:
    return page.locator(f'#{table} tr[data-key="{key}"] td[data-label="{label}"]')


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


# -- logging in ----------------------------------------------------------------------------


def test_a_wrong_token_opens_nothing_and_a_right_one_does_until_logged_out(
    up: Up, browser: Any
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{up.admin_url}/console")
    log_in(page, "no-such-token")
    expect(page.get_by_role("alert").first).to_have_text(
        "This is not one of the gateway's admin tokens."
    )
    expect(page.locator("#app")).to_be_hidden()
    log_in(page, up.token)
    expect(page.locator("#who")).to_have_text("up, operator")
    (cookie,) = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert page.evaluate("document.cookie") == ""
    page.reload()
    expect(page.locator("#who")).to_have_text("up, operator")
    button(page, "Log out").click()
    expect(page.get_by_label("Admin token")).to_be_focused()
    assert context.cookies() == []
    kept = {"cookie": f"{cookie['name']}={cookie['value']}"}
    assert httpx.get(f"{up.admin_url}/admin/live", headers=kept).status_code == 401
    context.close()


def test_a_session_ends_when_its_token_is_taken_away(up: Up, browser: Any) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{up.admin_url}/console")
    log_in(page, VIEWER)
    expect(page.locator("#who")).to_have_text("vera, viewer")
    up.rewrite(viewer_token(), "")
    expect(page.get_by_role("alert").first).to_have_text("The session is over: log in again.")
    up.rewrite("\n[auth]", f"{viewer_token()}\n[auth]")
    context.close()


# -- watching and moving -------------------------------------------------------------------


def test_a_rollback_that_can_not_be_is_not_offered_and_a_drains_warning_comes_first(
    up: Up, browser: Any
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{up.admin_url}/console")
    log_in(page, up.token)
    back, error = button(page, "Roll back…"), page.locator("#dialog-error")
    expect(back).to_be_disabled()
    expect(back).to_have_attribute("title", re.compile("nothing to go back to"))
    button(page, "Drain… short").click()
    notes = page.locator("#dialog-change .note")
    expect(notes.first).to_have_text(f"{ROUTE}: its requests are refused as draining")
    button(page, "Drain").click()
    up.post("/admin/routes", {"action": "undrain", "pool": "short"})
    expect(page.locator("#history tbody tr").first).to_contain_text("undrain short")
    back.click()
    expect(error).to_contain_text("no route has moved yet")
    expect(button(page, "Roll back")).to_be_disabled()
    options = page.get_by_label("To", exact=True).locator("option")
    expect(options.nth(1)).to_have_text("revision 2 (drain short, up)")
    page.get_by_label("To", exact=True).select_option("2")
    expect(error).to_contain_text("nothing would change")
    context.close()


def test_an_operator_sees_a_queue_fill_flips_drains_and_rolls_back(
    up: Up, visit: Callable[..., Any]
) -> None:
    page = visit()
    flow = f"{ROUTE} interactive"
    with up.callers(7):
        expect(cell(page, "flows", flow, "waiting")).to_have_text("3 of 512")
        expect(cell(page, "flows", flow, "running")).to_have_text("4")
        expect(page).to_have_title("3 waiting · Sluicegate")
        button(page, f"Flip… {ROUTE}").click()
        change = page.locator("#dialog-change tbody tr")
        expect(change).to_have_text("simulated/shortstable poolshortlong")
        page.get_by_label("Reason").fill("the console's test")
        button(page, "Flip").click()
        expect(cell(page, "routes", ROUTE, "stable pool")).to_have_text("long")
        # What waited follows, what ran stays.
        expect(cell(page, "flows", flow, "waiting")).to_have_text("0 of 512")
        expect(cell(page, "pools", "short", "running")).to_have_text("4")
        expect(cell(page, "pools", "long", "running")).to_have_text("3")
        button(page, "Drain… short").click()
        page.get_by_label("Deadline, s").fill("1.5")
        expect(change).to_have_text("shortdrainingnoyes")
        button(page, "Drain").click()
        drain = page.locator("#drains tbody tr")
        expect(drain.locator('td[data-label="still running"]')).to_have_text("4")
        expect(drain.locator('td[data-label="ended"]')).to_have_text("4")
        expect(cell(page, "pools", "short", "running")).to_have_text("0")
        expect(cell(page, "outcomes", "drain_terminated", "requests")).to_have_text("2")
        # An engine of two sequences had not begun with the other two: an answer was still possible.
        expect(cell(page, "outcomes", "draining", "requests")).to_have_text("2")
    button(page, "Roll back…").click()
    expect(change.first).to_contain_text("stable pool")
    button(page, "Roll back").click()
    expect(cell(page, "routes", ROUTE, "stable pool")).to_have_text("short")
    expect(cell(page, "pools", "short", "state")).to_have_text("open")
    last = page.locator("#history tbody tr").first
    expect(last).to_contain_text("rollback")
    done = [(e["who"], e["action"], e["why"]) for e in up.get("/admin/audit")["entries"]]
    assert ("up", "flip", "the console's test") in done
    assert ("up", "rollback", "") in done


def test_a_flip_needs_no_mouse(up: Up, visit: Callable[..., Any]) -> None:
    page = visit()
    flip = button(page, f"Flip… {ROUTE}")

    def tab_to(target: Any) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if target.evaluate("node => node === document.activeElement"):
                return
        pytest.fail("Tab never comes there")

    tab_to(flip)
    page.keyboard.press("Enter")
    expect(page.get_by_label("To pool")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(flip).to_be_focused()
    assert up.routes()[ROUTE] == "short"
    page.keyboard.press("Enter")
    confirm = button(page, "Flip")
    expect(confirm).to_be_enabled()
    tab_to(confirm)
    page.keyboard.press("Enter")
    expect(cell(page, "routes", ROUTE, "stable pool")).to_have_text("long")
    up.post("/admin/routes", {"action": "rollback", "why": "as before"})


def test_a_canary_needs_a_reason_is_watched_and_is_taken_back(
    up: Up, visit: Callable[..., Any]
) -> None:
    page = visit()
    button(page, f"Canary… {ROUTE}").click()
    expect(page.locator("#dialog-error")).to_contain_text("reason why there is no rollback record")
    page.get_by_label("Callers, %").fill("")
    page.get_by_label("Reason").fill("to see it")
    expect(page.locator("#dialog-error")).to_contain_text("Callers, %")
    expect(button(page, "Set")).to_be_disabled()
    page.get_by_label("Callers, %").fill("12.5")
    change = page.locator("#dialog-change tbody tr")
    expect(change).to_have_text(
        [f"{ROUTE}candidate poolnonelong", f"{ROUTE}candidate's callers0 %12.5 %"]
    )
    button(page, "Set").click()
    expect(cell(page, "routes", ROUTE, "candidate pool")).to_have_text("long12.5 % of callers")
    expect(page.locator("#watches tbody tr").first).to_contain_text("long against short")
    button(page, f"Take back… {ROUTE}").click()
    button(page, "Take back").click()
    expect(cell(page, "routes", ROUTE, "candidate pool")).to_contain_text("none")
    expect(button(page, f"Canary… {ROUTE}")).to_be_visible()
    # What is over asks for nobody's eye.
    expect(page.locator("#watches tbody tr").first).to_contain_text("endedbegan")
    expect(page.locator("#watches tbody .warn")).to_have_count(0)


def test_a_flow_is_paused_and_resumed(up: Up, visit: Callable[..., Any]) -> None:
    page = visit()
    flow = f"{ROUTE} batch"
    button(page, f"Pause… {flow}").click()
    button(page, "Pause").click()
    name = page.locator(f'#flows tr[data-key="{flow}"] td.name')
    expect(name).to_contain_text("paused by up")
    button(page, f"Resume… {flow}").click()
    expect(page.locator("#dialog-change")).to_contain_text("as configured")
    button(page, "Resume").click()
    expect(name).not_to_contain_text("paused")
    assert up.get("/admin/limits")["set"] == {}


def test_who_was_second_is_told_who_was_first(up: Up, browser: Any) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{up.admin_url}/console")
    log_in(page, up.token)
    button(page, f"Flip… {ROUTE}").click()
    confirm = button(page, "Flip")
    expect(confirm).to_be_enabled()
    moved = up.post("/admin/routes", {"action": "flip", "route": "simulated/long", "to": "short"})
    confirm.click()
    expect(page.locator("#dialog-error")).to_contain_text("up changed it meanwhile (flip)")
    expect(page.locator("#dialog-error")).to_contain_text(f"revision {moved['revision']} now")
    expect(page.locator("#dialog-change caption")).to_contain_text(f"{moved['revision']} becomes")
    assert up.routes() == {ROUTE: "short", "simulated/long": "short"}
    up.post("/admin/routes", {"action": "rollback"})
    context.close()


def test_a_page_that_hears_nothing_says_so(up: Up, browser: Any) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{up.admin_url}/console")
    log_in(page, up.token)
    expect(page.locator("#connection")).to_have_text("live")
    context.set_offline(True)
    expect(page.locator("#connection")).to_contain_text("no answer for", timeout=LIMIT_MS)
    expect(page.locator("body")).to_have_class("stale")
    context.set_offline(False)
    expect(page.locator("#connection")).to_have_text("live")
    context.close()


def test_it_fits_a_phone_in_the_dark(visit: Callable[..., Any]) -> None:
    page = visit(viewport={"width": 390, "height": 844}, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in shade.strip("rgb()").split(",")) < 64


# -- who may not ---------------------------------------------------------------------------


def test_a_viewer_sees_everything_and_can_change_nothing(up: Up, visit: Callable[..., Any]) -> None:
    page = visit(VIEWER)
    expect(page.locator("#flows tbody tr")).to_have_count(4)
    expect(page.locator("#content button")).to_have_count(0)
    session = {c["name"]: c["value"] for c in page.context.cookies()}
    csrf = page.evaluate("fetch('/console/session').then(r => r.json()).then(me => me.csrf)")
    answer = httpx.post(
        f"{up.admin_url}/admin/routes",
        json={"action": "flip", "route": ROUTE, "to": "long"},
        headers={"x-csrf-token": csrf, "origin": up.admin_url},
        cookies=session,
    )
    assert answer.status_code == 403
    assert answer.json()["error"] == "the token 'vera' may look, not change"
    assert up.routes()[ROUTE] == "short"


# A form whose text is JSON; the browser puts "=" between the two.
EVIL = """<!doctype html><title>evil</title>
<form method="post" enctype="text/plain" action="{url}/admin/routes">
<input name='{{"action":"flip","route":"simulated/short","to":"long","why":"' value='"}}'></form>"""
FRAME = """url => {
  const frame = document.createElement("iframe");
  frame.src = url;
  document.body.append(frame);
}"""


@contextmanager
def another_origin(admin_url: str) -> Iterator[str]:
    """A page on another port of the same host: to cookies it is the same site."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(EVIL.format(url=admin_url).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_page_of_another_origin_can_change_nothing(up: Up, browser: Any) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{up.admin_url}/console")
    log_in(page, up.token)
    expect(page.locator("#who")).to_have_text("up, operator")
    revision = up.get("/admin/routes")["revision"]
    with another_origin(up.admin_url) as url:
        evil = context.new_page()
        evil.goto(url)
        for asked in (
            '{method: \'POST\', body: \'{"action":"flip","route":"simulated/short"}\'}',
            "{method: 'POST', headers: {'x-csrf-token': 'x'}}",
            "{}",
        ):
            for mode in ("cors", "no-cors"):
                fetched = f"fetch(url, {{...{asked}, mode: '{mode}', credentials: 'include'}})"
                script = f"url => {fetched}.then(() => 'answered', () => 'refused')"
                assert evil.evaluate(script, f"{up.admin_url}/admin/routes") == "refused"
        with evil.expect_response("**/admin/routes") as sent:
            evil.evaluate("document.forms[0].submit()")
        assert "cookie" in sent.value.request.all_headers()
        assert sent.value.status == 403
        assert "another origin" in sent.value.text()
        evil.goto(url)
        with evil.expect_event("requestfailed") as framed:
            evil.evaluate(FRAME, f"{up.admin_url}/console")
        assert framed.value.failure == "net::ERR_BLOCKED_BY_RESPONSE"
    assert up.get("/admin/routes")["revision"] == revision
    context.close()
