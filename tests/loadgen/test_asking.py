import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from loadgen.asking import (
    ADMIN_TOKEN,
    configuration,
    healthy,
    refuse_live,
    served_model,
    settled,
    version,
)
from loadgen.record import BenchError


@asynccontextmanager
async def serving(pages):
    """Serve pages by path; a page is text, or a list of texts given one after another."""
    seen = []

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head.decode())
        path = head.split()[1].decode()
        page = pages.get(path)
        text = page.pop(0) if isinstance(page, list) else page
        status = 404 if text is None else 200
        body = (text or "").encode()
        head = b"HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (status, len(body)) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


GAUGES = 'vllm:num_requests_running{{engine="0"}} {}\nvllm:num_requests_waiting{{engine="0"}} {}\n'


async def test_what_an_engine_tells_is_read_and_what_it_does_not_is_none():
    info = json.dumps({"vllm_config": {"model_config": {}}})
    pages = {
        "/health": "ok",
        "/version": '{"version": "0.32.0"}',
        "/v1/models": '{"data": [{"id": "m"}]}',
        "/server_info?config_format=json": info,
    }
    async with serving(pages) as (url, _):
        assert await healthy(url)
        assert await version(url) == "0.32.0"
        assert await served_model(url) == "m"
        assert await configuration(url) == {"model_config": {}}
    async with serving({"/health": None}) as (url, _):
        assert not await healthy(url)
        assert await version(url) is None
        assert await configuration(url) is None
        with pytest.raises(BenchError, match="names no model"):
            await served_model(url)
    assert not await healthy(url), "nobody listens any more"


async def test_an_engine_is_settled_once_it_has_no_request():
    pages = {"/metrics": [GAUGES.format("2.0", "1.0"), GAUGES.format("0.0", "0.0")]}
    async with serving(pages) as (url, seen):
        assert await settled([url], 5.0)
        assert len(seen) == 2


async def test_an_engine_that_stays_busy_is_said_to_be():
    async with serving({"/metrics": GAUGES.format("1.0", "0.0")}) as (url, _):
        assert not await settled([url], 0.0)


async def test_the_reasons_of_waiting_are_no_requests_of_their_own():
    text = GAUGES.format("0.0", "0.0") + 'vllm:num_requests_waiting_by_reason{reason="x"} 3.0\n'
    async with serving({"/metrics": text}) as (url, _):
        assert await settled([url], 0.0)


STATUS = json.dumps(
    {
        "engines": [{"engine": "http://gpu-1:8000"}, {"engine": "http://127.0.0.1:8100"}],
        "health": [{"engine": "http://gpu-1:8000", "address": "http://10.0.0.7:8000"}],
    }
)


@pytest.mark.parametrize(
    "url", ["http://gpu-1:8000", "http://localhost:8100", "http://10.0.0.7:8000"]
)
async def test_an_engine_that_a_live_route_names_is_refused(url, monkeypatch):
    monkeypatch.setenv(ADMIN_TOKEN, "secret")
    async with serving({"/admin/status": STATUS}) as (admin, seen):
        with pytest.raises(BenchError, match=f"{url}: a route of the gateway at"):
            await refuse_live(admin, ["http://free:8000", url])
    assert "Bearer secret" in seen[0]


async def test_an_engine_that_no_route_names_is_free():
    async with serving({"/admin/status": STATUS}) as (admin, _):
        await refuse_live(admin, ["http://gpu-1:8001", "http://gpu-2:8000"])


async def test_a_gateway_that_does_not_tell_is_no_permission():
    async with serving({}) as (admin, _):
        with pytest.raises(BenchError, match="is its token in SLUICEGATE_ADMIN_TOKEN"):
            await refuse_live(admin, ["http://gpu-2:8000"])
