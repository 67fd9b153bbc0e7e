"""Operating a running gateway: reload, limits, traces, usage, TLS, as its own process."""

import asyncio
import contextlib
import json
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.cli import main
from loadgen.engine.launch import start_engine
from tests.e2e.configs import ADMIN_TOKEN, Served
from tests.e2e.harness import LIMIT_S, ROOT, Front, chat, endless, eventually, refused
from tests.gateway.certificates import Authority

Start = Callable[..., Front]
OPERATOR = {"authorization": f"Bearer {ADMIN_TOKEN}"}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def rewrite(gateway: Front, old: str, new: str) -> None:
    path = gateway.log.with_name("gateway.toml")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


async def post(gateway: Front, path: str, body: Any = None, url: str = "") -> httpx.Response:
    async with httpx.AsyncClient(timeout=LIMIT_S, trust_env=False) as client:
        return await client.post((url or gateway.admin_url) + path, json=body, headers=OPERATOR)


def tell(gateway: Front, number: signal.Signals) -> None:
    assert gateway.process is not None
    gateway.process.send_signal(number)


async def test_sighup_puts_another_configuration_in_force_and_cuts_nothing(
    slow: str, fast: str, started: Start
) -> None:
    gateway = started({"simulated": Served([slow])}, (slow,), limits={"slots": 8})
    async with gateway.stream(chat(ignore_eos=True, max_tokens=40)) as stream:
        assert await stream.next() is not None
        rewrite(gateway, json.dumps(slow), json.dumps(fast))
        tell(gateway, signal.SIGHUP)
        await eventually(lambda: bool(gateway.events("admin_change")))
        await eventually(lambda: any(e["engine"] == fast for e in gateway.events("engine_up")))
        answer = await gateway.ask(chat())
        assert answer.status_code == 200
        assert (await stream.rest())[-1] == "[DONE]"
    (line,) = gateway.events("admin_change")
    assert (line["who"], line["action"]) == ("SIGHUP", "reload")
    assert line["from"] != line["to"]
    assert "pool.pool-0.engines[1]" in line["changed"]
    await eventually(lambda: len(gateway.requests()) == 2)
    by_engine = {row["engine"]: row["outcome"] for row in gateway.requests()}
    assert by_engine == {slow: "completed", fast: "completed"}
    status = await gateway.status()
    assert (status["route_revision"], status["config_digest"]) == (1, line["to"])
    await eventually(lambda: engines_are(gateway, [fast]))


async def engines_are(gateway: Front, engines: list[str]) -> bool:
    return [view["engine"] for view in (await gateway.status())["engines"]] == engines


async def test_a_bad_file_changes_nothing_and_is_named_in_the_log(
    fast: str, started: Start
) -> None:
    gateway = started({"simulated": Served([fast])}, (fast,))
    before = await gateway.status()
    rewrite(gateway, '"token_budget" = 8192', '"token_budget" = 0')
    tell(gateway, signal.SIGHUP)
    await eventually(lambda: bool(gateway.events("reload_refused")))
    (line,) = gateway.events("reload_refused")
    assert (line["who"], line["key"]) == ("SIGHUP", "limits.token_budget")
    assert line["file"].endswith("gateway.toml")
    assert "greater than or equal to 1" in line["reason"]
    rewrite(gateway, '"token_budget" = 0', '"token_budget" = 8192')
    rewrite(gateway, '"port" = 0', '"port" = 1')
    answer = await post(gateway, "/admin/reload")
    assert answer.status_code == 400
    assert "server.port: needs a restart" in answer.json()["error"]
    after = await gateway.status()
    assert (after["config_digest"], after["route_revision"]) == (before["config_digest"], 1)
    assert (await gateway.ask(chat())).status_code == 200


async def test_a_revoked_key_is_refused_from_the_reload_on(fast: str, started: Start) -> None:
    grants = {name: {"service_class": "interactive"} for name in ("anna", "ben")}
    gateway = started({"simulated": Served([fast])}, (fast,), grants)
    assert (await gateway.ask(chat(), key="ben")).status_code == 200
    keys = gateway.log.with_name("keys.toml")
    keys.write_text(keys.read_text().replace('["key"."ben"]', "[key.ben]"))
    await asyncio.to_thread(command, "keys", "revoke", "ben", "--keys-file", str(keys))
    assert (await gateway.ask(chat(), key="ben")).status_code == 200
    assert (await post(gateway, "/admin/reload")).json()["keys"] == 1
    refused(await gateway.ask(chat(), key="ben"), "unauthenticated")
    assert (await gateway.ask(chat(), key="anna")).status_code == 200


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        check=True, capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S,
    )  # fmt: skip


async def test_a_flow_paused_by_an_operator_refuses_and_serves_again_by_itself(
    fast: str, started: Start
) -> None:
    gateway = started({"simulated": Served([fast])}, (fast,))
    body = {"revision": 1, "set": {"flow.short.interactive.paused": True}, "expires_s": 1.5}
    assert (await post(gateway, "/admin/limits", body)).status_code == 200
    refused(await gateway.ask(chat()), "paused")
    assert (await post(gateway, "/admin/limits", body)).status_code == 409

    async def served() -> bool:
        return (await gateway.ask(chat())).status_code == 200

    await eventually(served)
    await eventually(lambda: len(gateway.events("admin_change")) == 2)
    assert [line["who"] for line in gateway.events("admin_change")] == ["tests", "expiry"]


async def test_a_smaller_limit_cancels_nothing_and_holds_for_what_comes(
    slow: str, started: Start
) -> None:
    gateway = started({"simulated": Served([slow])}, (slow,), limits={"slots": 8})
    async with gateway.stream(endless(n=4)) as first:
        assert await first.next() is not None
        body = {"revision": 1, "set": {f"engine.{slow}.slots": 4}}
        assert (await post(gateway, "/admin/limits", body)).status_code == 200
        assert await gateway.total("sluicegate_engine_slots_limit") == 4
        waiting = asyncio.ensure_future(gateway.ask(chat(), X_Sluicegate_Max_Wait="0.3"))
        assert (await waiting).headers["x-sluicegate-outcome"] == "queue_expired"
        assert await first.next() is not None
    await gateway.at_rest()


async def test_usage_is_what_the_engine_and_the_count_said(fast: str, started: Start) -> None:
    grants = {name: {"service_class": "interactive"} for name in ("anna", "ben")}
    gateway = started({"simulated": Served([fast])}, (fast,), grants)
    first = (await gateway.ask(chat(), key="anna")).json()["usage"]
    second = (await gateway.ask(chat("Some more words."), key="anna")).json()["usage"]
    await gateway.ask(chat(max_tokens=-1), key="ben")
    await gateway.at_rest()
    async with httpx.AsyncClient() as client:
        told = (await client.get(f"{gateway.admin_url}/admin/usage", headers=OPERATOR)).json()
    assert told["usage"] == [
        {
            "key_id": "anna", "requests": 2, "refusals": 0,
            "prompt_tokens": first["prompt_tokens"] + second["prompt_tokens"],
            "completion_tokens": first["completion_tokens"] + second["completion_tokens"],
        },
        {"key_id": "ben", "requests": 1, "refusals": 1, "prompt_tokens": 0},
    ]  # fmt: skip


# -- traces --------------------------------------------------------------------------------


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = ExportTraceServiceRequest()
            sent.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
            for resource in sent.resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
        finally:
            server.shutdown()
            thread.join()


async def test_a_callers_trace_goes_on_to_the_collector_and_the_log(
    fast: str, started: Start
) -> None:
    marker = "a prompt nobody may find in a span"
    with collector() as (url, spans):
        gateway = started(
            {"simulated": Served([fast])},
            (fast,),
            tracing={"enabled": True, "otlp_endpoint": url},
        )
        parent = f"00-{TRACE}-{PARENT}-01"
        await gateway.ask(chat(marker), traceparent=parent, tracestate="a=1")
        await gateway.ask(chat(marker))
        await eventually(lambda: len(spans) >= 6)
        tell(gateway, signal.SIGTERM)
        assert gateway.process is not None
        assert await asyncio.to_thread(gateway.process.wait, LIMIT_S) == 0
    servers = [span for span in spans if span.kind == 2]
    assert [span.name for span in servers] == ["chat", "chat"]
    own, begun = sorted(servers, key=lambda span: span.trace_id.hex() != TRACE)
    assert (own.trace_id.hex(), own.parent_span_id.hex()) == (TRACE, PARENT)
    assert begun.trace_id.hex() != TRACE
    assert begun.parent_span_id == b""
    children = [span for span in spans if span.parent_span_id == own.span_id]
    assert [span.name for span in children] == ["classify", "queue", "first_byte"]
    said = {a.key: a.value.string_value for a in own.attributes}
    assert said["sluicegate.outcome"] == "completed"
    assert marker not in str(spans)
    logged = [line["trace_id"] for line in gateway.requests()]
    assert logged == [TRACE, begun.trace_id.hex()]


# -- TLS -----------------------------------------------------------------------------------


async def test_callers_speak_tls_and_a_renewed_certificate_is_shown_after_a_reload(
    fast: str, started: Start, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    signed, renewed = authority.sign("before"), authority.sign("after")
    files = {"cert_file": str(signed.cert), "key_file": str(signed.key)}
    gateway = started(
        {"simulated": Served([fast])}, (fast,), server={"tls": files}, admin={"tls": files}
    )
    assert gateway.url.startswith("https://")
    context = ssl.create_default_context(cafile=authority.file)

    async def shown(url: str) -> str:
        host, port = url.removeprefix("https://").rsplit(":", 1)
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        name: str = writer.get_extra_info("peercert")["subject"][0][0][1]
        writer.close()
        with contextlib.suppress(OSError):  # how the gateway ends it is its own affair
            await writer.wait_closed()
        return name

    async with httpx.AsyncClient(verify=context, timeout=LIMIT_S) as client:
        chat_url = f"{gateway.url}/v1/chat/completions"
        sent = {"json": chat(), "headers": gateway.headers()}
        assert (await client.post(chat_url, **sent)).status_code == 200
        async with client.stream("POST", chat_url, json={**chat(), "stream": True},
                                 headers=gateway.headers()) as answer:  # fmt: skip
            assert (await answer.aread()).endswith(b"data: [DONE]\n\n")
        assert (await shown(gateway.url), await shown(gateway.admin_url)) == ("before", "before")
        signed.cert.write_bytes(renewed.cert.read_bytes())
        signed.key.write_bytes(renewed.key.read_bytes())
        reload = await client.post(f"{gateway.admin_url}/admin/reload", headers=OPERATOR)
        assert reload.status_code == 200
        assert (await shown(gateway.url), await shown(gateway.admin_url)) == ("after", "after")
        assert (await client.post(chat_url, **sent)).status_code == 200
        signed.key.write_text("nothing")
        reload = await client.post(f"{gateway.admin_url}/admin/reload", headers=OPERATOR)
        assert (reload.status_code, "server.tls" in reload.json()["error"]) == (400, True)
        assert await shown(gateway.url) == "after"


async def test_callers_reach_a_unix_socket(fast: str, started: Start, tmp_path: Path) -> None:
    path = tmp_path / "callers.sock"
    gateway = started({"simulated": Served([fast])}, (fast,), server={"host": f"unix:{path}"})
    assert gateway.url == f"unix:{path}"
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport, timeout=LIMIT_S) as client:
        url = "http://gateway/v1/chat/completions"
        answer = await client.post(url, json=chat(), headers=gateway.headers())
    assert answer.status_code == 200


# -- starting ------------------------------------------------------------------------------


async def test_it_is_ready_once_every_engine_was_asked(fast: str, started: Start) -> None:
    gateway = started({"simulated": Served([fast])}, (fast,))

    async def ready() -> bool:
        async with httpx.AsyncClient() as client:
            found = await client.get(f"{gateway.admin_url}/health/ready")
        return found.status_code == 200 and found.json()["pools"] == {
            "pool-0": {"engines": 1, "up": 1}
        }

    await eventually(ready)


def test_an_address_that_is_taken_ends_it_with_a_line_that_names_it(
    fast: str, started: Start
) -> None:
    gateway = started({"simulated": Served([fast])}, (fast,))
    port = int(gateway.url.rsplit(":", 1)[1])
    path = gateway.log.with_name("gateway.toml")
    again = path.with_name("again.toml")
    again.write_text(path.read_text().replace('"port" = 0', f'"port" = {port}', 1))
    ended = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--config", str(again)],
        capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert f"error: cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr


def test_an_engine_is_asked_whether_it_honours_priorities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--max-num-seqs", "12", "--time-scale", "0.5", "--scheduling-policy", "priority")
    with start_engine(flags, tmp_path / "engine.log") as engine:
        assert main(["engines", "probe", engine.url, "--model", "simulated", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["ok"]) == ("priority honoured", True)
    assert main(["engines", "probe", engine.url, "--model", "simulated"]) == 1
    assert capsys.readouterr().out.startswith("could not tell\n  ")
