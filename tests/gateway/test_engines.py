"""The prober against small engines on real sockets."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.breaker import BreakerRule
from gateway.endpoint import Endpoint
from gateway.engines import (
    METRICS_BYTES,
    PARSE_INLINE_BYTES,
    Prober,
    Probing,
)
from gateway.health import EngineHealth, HealthRules
from gateway.progress import Pace
from gateway.scrape import Scrape
from gateway.wire import TimedOut
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
    assert "ConnectFailed" in health.reason


async def test_an_engine_that_hangs_is_down_after_its_allowed_silences() -> None:
    changes: list[bool] = []
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _, after: changes.append(after.up), 0.05)
        await watcher.probe(url)
        engine.hangs = True
        await watcher.probe(url)
        assert watcher.health[url].up
        assert watcher.health[url].failures == 1
        await watcher.probe(url)
        assert not watcher.health[url].up
        assert changes[-1] is False


async def test_a_request_that_found_nobody_takes_the_engine_out_until_a_probe_succeeds() -> None:
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port:
        url = f"http://127.0.0.1:{port}"
        seen: list[tuple[bool, bool]] = []
        watcher = prober(url, lambda before, after: seen.append((before.up, after.up)))
        await watcher.probe(url)
        watcher.refused(url, "connection refused")
        assert not watcher.health[url].up
        await watcher.probe(url)
        assert watcher.health[url].up
        assert (True, False) in seen
        assert seen[-1] == (False, True)


async def test_a_metrics_page_that_fails_does_not_take_a_healthy_engine_out() -> None:
    engine = FakeEngine(metrics=PAGE)
    engine.metrics = "\x00 nonsense"
    async with listening(engine) as port:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _before, _after: None)
        await watcher.probe(url)
        assert watcher.health[url].up
        assert watcher.health[url].last == Scrape()


async def test_a_page_that_is_gone_makes_progress_unknown_and_not_stalled() -> None:
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _before, _after: None)
        watcher.use(Probing(1.0, 2.0, replace(RULES, stall_s=0.05)))
        await watcher.probe(url)
        await asyncio.sleep(0.06)
        await watcher.probe(url)
        assert watcher.health[url].progress.pace is Pace.STALLED
        assert not watcher.health[url].up
        engine.metrics = "nothing of interest"
        await watcher.probe(url)
        assert watcher.health[url].progress.pace is Pace.UNKNOWN
        assert watcher.health[url].up


async def test_requests_that_break_open_the_breaker_and_one_that_is_answered_closes_it() -> None:
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _before, _after: None)
        engine.metrics = ""
        await watcher.probe(url)
        watcher.failed(url, "disconnected")
        watcher.failed(url, "disconnected")
        assert not watcher.health[url].up
        await asyncio.sleep(0.02)
        await watcher.probe(url)
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
    async with listening(engine) as port:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _before, _after: None)
        await watcher.probe(url)
        await watcher.probe(url)
        assert (engine.connections, len(engine.requests)) == (4, 4)


@asynccontextmanager
async def sending(
    begin: bytes, onwards: bytes = b""
) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """Answers so, and goes on until the asker has gone; events: was asked, was left."""
    asked, left = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        asked.set()
        try:
            while onwards:
                writer.write(onwards)
                await writer.drain()
            await reader.read()
        except ConnectionError:
            pass
        left.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked, left


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "begin", [b"", HEAD, HEAD + b"content-length: 9\r\n\r\nhalf"], ids=["no", "head", "body"]
)
async def test_what_is_not_whole_in_time_is_left_and_counts_as_silence(begin: bytes) -> None:
    async with sending(begin) as (url, _, left):
        watcher = prober(url, lambda _before, _after: None, 0.05)
        await watcher.probe(url)
        await asyncio.wait_for(left.wait(), 5)
        assert watcher.health[url].failures == 1
        assert watcher.health[url].reason == "TimedOut: /health: no whole answer in 0.05 s"


async def test_a_probe_that_is_cancelled_leaves_no_connection() -> None:
    async with sending(HEAD) as (url, asked, left):
        task = asyncio.ensure_future(prober(url, lambda _before, _after: None).probe(url))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(left.wait(), 5)


async def test_of_an_answer_without_end_no_more_is_read_than_asked_for() -> None:
    async with sending(HEAD + b"\r\n", b"x" * 1000) as (url, _, left):
        watcher = prober(url, lambda _before, _after: None)
        assert await watcher.get(url, "/health", 2500) == (200, b"x" * 2500)
        await asyncio.wait_for(left.wait(), 5)


async def test_a_connection_that_does_not_come_about_is_silence_and_one_refused_is_not() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        watcher = prober(url, lambda _before, _after: None, 0.05)
        await watcher.probe(url)
        assert watcher.health[url].reason.startswith("ConnectFailed")
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        watcher = prober(url, lambda _before, _after: None, 0.05)
        await watcher.probe(url)
        assert watcher.health[url].failures == 1
        assert "no whole answer in 0.05 s" in watcher.health[url].reason
        for filler in fillers:
            filler.close()


async def test_another_time_out_holds_from_the_next_probe_on() -> None:
    async with sending(b"") as (url, _, left):
        watcher = prober(url, lambda _before, _after: None, 60.0)
        watcher.use(Probing(1.0, 0.05, RULES))
        with pytest.raises(TimedOut, match=r"0\.05 s"):
            await watcher.get(url, "/health", 10)
        await asyncio.wait_for(left.wait(), 5)


async def test_a_unix_socket_is_probed(tmp_path: Path) -> None:
    engine = FakeEngine(metrics=PAGE)
    path = tmp_path / "engine.sock"
    async with listening(engine, path):
        url = f"unix:{path}"
        watcher = prober(url, lambda _before, _after: None)
        await watcher.probe(url)
        assert watcher.health[url].up


async def test_a_looked_up_address_is_asked_by_the_services_name() -> None:
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port:
        endpoint = Endpoint(f"http://127.0.0.1:{port}", service="vllm.svc")
        clock = asyncio.get_running_loop().time
        watcher = Prober(Probing(1.0, 2.0, RULES), clock, lambda _before, _after: None)
        watcher.watch("p#0", endpoint)
        await watcher.probe("p#0")
        assert watcher.health["p#0"].up
        assert f"host: vllm.svc:{port}\r\n".encode() in engine.requests[0].lower()


CHILD = """
import asyncio, os, resource, socket
from gateway.endpoint import Endpoint
from gateway.engines import Prober, Probing
from gateway.wire import EngineClient, NoSocket

async def main(port):
    url = f"http://127.0.0.1:{port}"
    told = []
    clock = asyncio.get_running_loop().time
    prober = Prober(Probing(), clock, lambda b, a: told.append(a.up))
    prober.watch(url, Endpoint(url))
    client = EngineClient(url)
    await prober.probe(url)
    await asyncio.sleep(0.05)  # until the probe's own connections are closed
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(socket.socket())
    except OSError:
        pass
    await prober.probe(url)
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
    async with listening(engine) as port:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _before, _after: None)
        await watcher.probe(url)
        before = watcher.health[url].last
        engine.metrics = PAGE + "vllm:num_requests_running 1.0\n" * (METRICS_BYTES // 30 + 1)
        await watcher.probe(url)
        assert watcher.health[url].last is before
        assert watcher.health[url].up
        engine.metrics = PAGE + "# padding\n" * (PARSE_INLINE_BYTES // 10) + PAGE
        await watcher.probe(url)
        assert watcher.health[url].last.running == 10.0


async def test_nothing_compressed_is_asked_for_and_none_is_unpacked() -> None:
    engine = FakeEngine(metrics=PAGE)
    async with listening(engine) as port:
        url = f"http://127.0.0.1:{port}"
        await prober(url, lambda _before, _after: None).probe(url)
    assert all(b"accept-encoding: identity\r\n" in asked.lower() for asked in engine.requests)
