"""The prober against small engines on real sockets."""

import asyncio
import os
import ssl
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gateway.breaker import BreakerRule
from gateway.endpoint import Endpoint
from gateway.engines import (
    METRICS_BYTES,
    PARSE_INLINE_BYTES,
    Prober,
    Probing,
    http_client,
)
from gateway.health import EngineHealth, HealthRules
from gateway.progress import Pace
from gateway.scrape import Scrape
from tests.gateway.fake_engine import FakeEngine, listening
from tests.gateway.test_scrape import PAGE

RULES = HealthRules(failures=2, stall_s=10.0, breaker=BreakerRule(2, 10.0, 0.01))


def prober(
    url: str, on_change: Callable[[EngineHealth, EngineHealth], None], timeout_s: float = 2.0
) -> Prober:
    clock = asyncio.get_running_loop().time
    return watching(url, Prober(Probing(0.01, timeout_s, RULES), clock, on_change))


def watching(url: str, prober: Prober) -> Prober:
    prober.watch(url, Endpoint(url))
    return prober


def client_of(port: int, timeout_s: float = 2.0) -> httpx.AsyncClient:
    return http_client(Endpoint(f"http://127.0.0.1:{port}"), timeout_s)


async def test_an_engine_that_comes_goes_and_returns_is_told_about_each_time() -> None:
    changes: asyncio.Queue[tuple[bool, int]] = asyncio.Queue()
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port:
        watcher = prober(
            f"http://127.0.0.1:{port}", lambda _, after: changes.put_nowait((after.up, after.epoch))
        )
        task = asyncio.ensure_future(watcher.run())
        assert await changes.get() == (True, 0)
        assert await changes.get() == (True, 1)
        engine.status = 503
        assert await changes.get() == (False, 1)
        engine.metrics = PAGE.replace("1.75e+09", "1.76e+09")
        engine.status = 200
        assert await changes.get() == (True, 1)
        assert await changes.get() == (True, 2)
    assert await changes.get() == (False, 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (health,) = watcher.health.values()
    assert health.last.process_start_s == 1.76e9
    assert "ConnectError" in health.reason


async def test_an_engine_that_hangs_is_down_after_its_allowed_silences() -> None:
    changes: list[bool] = []
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port, client_of(port, 0.05) as client:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _, after: changes.append(after.up), 0.05)
        await watcher.probe(client, url)
        engine.hangs = True
        await watcher.probe(client, url)
        assert watcher.health[url].up
        assert watcher.health[url].failures == 1
        await watcher.probe(client, url)
        assert not watcher.health[url].up
        assert changes[-1] is False


async def test_a_request_that_found_nobody_takes_the_engine_out_until_a_probe_succeeds() -> None:
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port, client_of(port) as client:
        url = f"http://127.0.0.1:{port}"
        seen: list[tuple[bool, bool]] = []
        watcher = prober(url, lambda before, after: seen.append((before.up, after.up)))
        await watcher.probe(client, url)
        watcher.refused(url, "connection refused")
        assert not watcher.health[url].up
        await watcher.probe(client, url)
        assert watcher.health[url].up
        assert (True, False) in seen
        assert seen[-1] == (False, True)


async def test_a_metrics_page_that_fails_does_not_take_a_healthy_engine_out() -> None:
    engine = FakeEngine(metrics=PAGE)
    engine.metrics = "\x00 nonsense"
    async with listening(engine) as port, client_of(port) as client:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _before, _after: None)
        await watcher.probe(client, url)
        assert watcher.health[url].up
        assert watcher.health[url].last == Scrape()


async def test_a_page_that_is_gone_makes_progress_unknown_and_not_stalled() -> None:
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port, client_of(port) as client:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _before, _after: None)
        watcher.use(Probing(1.0, 2.0, replace(RULES, stall_s=0.05)))
        await watcher.probe(client, url)
        await asyncio.sleep(0.06)
        await watcher.probe(client, url)
        assert watcher.health[url].progress.pace is Pace.STALLED
        assert not watcher.health[url].up
        engine.metrics = "nothing of interest"
        await watcher.probe(client, url)
        assert watcher.health[url].progress.pace is Pace.UNKNOWN
        assert watcher.health[url].up


async def test_requests_that_break_open_the_breaker_and_one_that_is_answered_closes_it() -> None:
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port, client_of(port) as client:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _before, _after: None)
        engine.metrics = ""
        await watcher.probe(client, url)
        watcher.failed(url, "disconnected")
        watcher.failed(url, "disconnected")
        assert not watcher.health[url].up
        await asyncio.sleep(0.02)
        await watcher.probe(client, url)
        assert watcher.health[url].up
        watcher.replied(url)
        watcher.failed(url, "disconnected")
        assert watcher.health[url].up


async def test_engines_come_and_go_while_it_runs() -> None:
    first, second = FakeEngine(metrics=PAGE), FakeEngine(metrics=PAGE)
    async with listening(first) as one, listening(second) as two:
        urls = [f"http://127.0.0.1:{port}" for port in (one, two)]
        told: asyncio.Queue[str] = asyncio.Queue()
        watcher = prober(urls[0], lambda _, after: told.put_nowait(after.engine))
        task = asyncio.ensure_future(watcher.run())
        assert await told.get() == urls[0]
        watching(urls[1], watcher)
        while await told.get() != urls[1]:
            pass
        assert await watcher.first_round(5.0)
        watcher.forget(urls[0])
        asked = len(first.requests)
        watcher.failed(urls[0], "a request that still ran there")
        await told.get()
        await asyncio.sleep(0.05)
        assert set(watcher.health) == {urls[1]}
        assert len(first.requests) <= asked + 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_first_round_that_hangs_is_not_waited_for() -> None:
    engine = FakeEngine(metrics=PAGE)
    engine.hangs = True
    async with listening(engine) as port:
        watcher = prober(f"http://127.0.0.1:{port}", lambda _before, _after: None)
        assert not await watcher.first_round(0.05)


async def test_every_probe_opens_a_connection_of_its_own() -> None:
    """Else one of several engines behind a name would be seen for ever."""
    engine = FakeEngine(metrics=PAGE)
    connections = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await engine.serve(reader, writer)

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    async with server, client_of(port := server.sockets[0].getsockname()[1]) as client:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _before, _after: None)
        await watcher.probe(client, url)
        await watcher.probe(client, url)
        assert (connections, len(engine.requests)) == (4, 4)


async def test_a_unix_socket_is_probed(tmp_path: Path) -> None:
    engine = FakeEngine(metrics=PAGE)
    path = tmp_path / "engine.sock"
    server = await asyncio.start_unix_server(engine.serve, path)
    async with server:
        url = f"unix:{path}"
        watcher = prober(url, lambda _before, _after: None)
        async with http_client(Endpoint(url), 2.0) as client:
            await watcher.probe(client, url)
        assert watcher.health[url].up


async def test_a_looked_up_address_is_asked_by_the_services_name() -> None:
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port:
        endpoint = Endpoint(f"http://127.0.0.1:{port}", service="vllm.svc")
        clock = asyncio.get_running_loop().time
        watcher = Prober(Probing(1.0, 2.0, RULES), clock, lambda _before, _after: None)
        watcher.watch("p#0", endpoint)
        async with http_client(endpoint, 2.0) as client:
            await watcher.probe(client, "p#0")
        assert watcher.health["p#0"].up
        assert f"host: vllm.svc:{port}\r\n".encode() in engine.requests[0].lower()


async def test_a_client_for_plain_http_trusts_no_certificate() -> None:
    async with http_client(Endpoint("http://127.0.0.1:1"), 1.0) as client:
        pool = client._transport._pool  # type: ignore[attr-defined]
        context = pool._ssl_context
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.get_ca_certs() == []


CHILD = """
import asyncio, os, resource, socket
from gateway.engines import (
    METRICS_BYTES,
    PARSE_INLINE_BYTES,
    Prober,
    Probing,
    http_client,
)
from gateway.endpoint import Endpoint
from gateway.wire import EngineClient, NoSocket

async def main(port):
    url = f"http://127.0.0.1:{port}"
    told = []
    clock = asyncio.get_running_loop().time
    prober = Prober(Probing(), clock, lambda b, a: told.append(a.up))
    prober.watch(url, Endpoint(url))
    client = EngineClient(url)
    async with http_client(Endpoint(url), 2.0) as http:
        await prober.probe(http, url)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True:
                held.append(socket.socket())
        except OSError:
            pass
        await prober.probe(http, url)
        try:
            await client.exchange(b"GET", b"/health").start()
        except NoSocket:
            print("ours", prober.health[url].up, told)

asyncio.run(main(int(os.environ["PORT"])))
"""


async def test_want_of_our_own_sockets_is_no_fault_of_the_engines() -> None:
    async with listening(FakeEngine()) as port:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            CHILD,
            env={**os.environ, "PORT": str(port), "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await child.communicate()
    assert output.split(b"\n")[0] == b"ours True [True, True]"


async def test_a_metrics_page_too_long_to_be_read_whole_leaves_the_figures_as_they_are() -> None:
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port, client_of(port) as client:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _before, _after: None)
        await watcher.probe(client, url)
        before = watcher.health[url].last
        engine.metrics = PAGE + "vllm:num_requests_running 1.0\n" * (METRICS_BYTES // 30 + 1)
        await watcher.probe(client, url)
        assert watcher.health[url].last is before
        assert watcher.health[url].up
        engine.metrics = PAGE + "# padding\n" * (PARSE_INLINE_BYTES // 10) + PAGE
        await watcher.probe(client, url)
        assert watcher.health[url].last.running == 10.0


async def test_nothing_compressed_is_asked_for_and_none_is_unpacked() -> None:
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port, client_of(port) as client:
        url = f"http://127.0.0.1:{port}"
        await prober(url, lambda _before, _after: None).probe(client, url)
    assert all(b"accept-encoding: identity\r\n" in asked.lower() for asked in engine.requests)
