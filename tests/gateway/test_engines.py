import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.engines import (
    EngineHealth,
    Prober,
    Scrape,
    after_refused,
    after_scrape,
    after_silence,
    after_success,
    parse_metrics,
)

NEW = EngineHealth("http://e")
UP = after_success(NEW, 1.0)


def test_an_engine_is_down_until_its_first_good_probe() -> None:
    assert not NEW.up
    assert (UP.up, UP.since_s, UP.reason) == (True, 1.0, "")
    assert after_success(UP, 5.0).since_s == 1.0


def test_silence_counts_and_a_good_probe_forgives_it() -> None:
    once = after_silence(UP, 2.0, "slow", 3)
    twice = after_silence(once, 3.0, "slow", 3)
    down = after_silence(twice, 4.0, "slow", 3)
    assert [health.up for health in (once, twice, down)] == [True, True, False]
    assert down.since_s == 4.0
    assert after_silence(after_success(twice, 3.5), 4.0, "slow", 3).up


def test_an_engine_never_seen_up_is_not_up_for_being_silent() -> None:
    assert not after_silence(NEW, 1.0, "slow", 3).up


def test_a_refused_connection_is_down_at_once() -> None:
    down = after_refused(UP, 2.0, "refused")
    assert (down.up, down.since_s, down.reason) == (False, 2.0, "refused")
    assert after_refused(down, 9.0, "refused").since_s == 2.0


def test_another_process_start_is_a_new_epoch() -> None:
    first = after_scrape(UP, Scrape(process_start_s=10.0))
    same = after_scrape(first, Scrape(running=1.0, process_start_s=10.0))
    silent = after_scrape(same, Scrape(running=2.0))
    second = after_scrape(silent, Scrape(process_start_s=11.0))
    assert [health.epoch for health in (first, same, silent, second)] == [1, 1, 1, 2]
    assert silent.last == Scrape(running=2.0, process_start_s=10.0)


PAGE = """# HELP vllm:num_requests_running x
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0 1700000000000
vllm:num_requests_waiting{engine="0"} 1.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 9.0
process_start_time_seconds 1.75e+09
vllm:num_requests_running{engine="2"
vllm:num_requests_waiting{engine="3"} many
"""


def test_the_wanted_gauges_are_summed_and_nonsense_is_skipped() -> None:
    assert parse_metrics(PAGE) == Scrape(running=5.0, waiting=1.0, process_start_s=1.75e9)
    assert parse_metrics("") == Scrape()


class FakeEngine:
    """A tiny HTTP server whose health status and metrics page a test sets."""

    def __init__(self) -> None:
        self.status = 200
        self.metrics = PAGE
        self.hangs = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                if self.hangs:
                    await asyncio.sleep(60)
                metrics = b" /metrics " in request
                status, body = (200, self.metrics) if metrics else (self.status, "")
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(engine: FakeEngine, port: int = 0) -> AsyncIterator[int]:
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(engine.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def prober(
    url: str, on_change: Callable[[EngineHealth, EngineHealth], None], timeout_s: float = 2.0
) -> Prober:
    return Prober(
        [url],
        interval_s=0.01,
        timeout_s=timeout_s,
        failures=2,
        clock=asyncio.get_running_loop().time,
        on_change=on_change,
    )


async def test_an_engine_that_comes_goes_and_returns_is_told_about_each_time() -> None:
    changes: asyncio.Queue[tuple[bool, int]] = asyncio.Queue()
    engine = FakeEngine()
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
    assert health.last == Scrape(5.0, 1.0, 1.76e9)
    assert "ConnectError" in health.reason


async def test_an_engine_that_hangs_is_down_after_its_allowed_silences() -> None:
    changes: list[bool] = []
    engine = FakeEngine()
    async with listening(engine) as port, httpx.AsyncClient(timeout=0.05) as client:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _, after: changes.append(after.up))
        await watcher.probe(client, url)
        engine.hangs = True
        await watcher.probe(client, url)
        assert watcher.health[url].up
        assert watcher.health[url].failures == 1
        await watcher.probe(client, url)
        assert not watcher.health[url].up
        assert changes[-1] is False


async def test_a_request_that_found_nobody_takes_the_engine_out_until_a_probe_succeeds() -> None:
    engine = FakeEngine()
    async with listening(engine) as port, httpx.AsyncClient() as client:
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
    engine = FakeEngine()
    engine.metrics = "\x00 nonsense"
    async with listening(engine) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}"
        watcher = prober(url, lambda _before, _after: None)
        await watcher.probe(client, url)
        assert watcher.health[url].up
        assert watcher.health[url].last == Scrape()
