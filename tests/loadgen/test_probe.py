import asyncio

import pytest

from loadgen.probe import engine_row, gateway_row, hardware_id, parse_metrics, probe_until
from tests.loadgen.standin import METRICS, metrics, url

TEXT = METRICS.decode()


def test_ages_take_the_oldest_flow_of_a_class_and_depths_add_up():
    assert gateway_row(TEXT) == {
        "oldest_age_s": {"short": 0.25, "long": 1.5},
        "queue_depth": {"short": 3.0},
    }


def test_a_gauge_that_is_not_exported_is_absent():
    assert engine_row(TEXT) == {"running": 3.0, "waiting": 1.0, "preemptions_total": 0.0}


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ("a_total 3", ("a_total", {}, 3.0)),
        ('a{x="1",y="q\\"{}"} 1e3 1700', ("a", {"x": "1", "y": 'q\\"{}'}, 1000.0)),
    ],
)
def test_a_sample_line_is_read(line, sample):
    assert list(parse_metrics(f"# HELP a\n{line}\nb 1", ("a",))) == [sample]


async def rows_of(admin_url, engines):
    rows, stop = [], asyncio.Event()
    stop.set()
    await probe_until(stop, admin_url, engines, rows.append)
    return rows


async def test_gateway_and_engines_are_scraped_with_their_instant():
    async with await asyncio.start_server(metrics, "127.0.0.1", 0) as server:
        rows = await rows_of(url(server), [url(server)])
    assert [(r["source"], r["up"]) for r in rows] == [("engine", True), ("gateway", True)]
    assert rows[0]["at_ns"] <= rows[1]["at_ns"]
    assert rows[1]["oldest_age_s"]["long"] == 1.5


async def test_a_server_that_is_gone_is_a_row_that_says_so():
    server = await asyncio.start_server(metrics, "127.0.0.1", 0)
    gone = url(server)
    server.close()
    await server.wait_closed()
    rows = await rows_of(None, [gone])
    assert rows[0]["up"] is False
    assert rows[0]["reason"] == "ConnectError"
    assert "running" not in rows[0]


async def test_probing_goes_on_until_it_is_stopped():
    rows, stop = [], asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, stop.set)
    async with await asyncio.start_server(metrics, "127.0.0.1", 0) as server:
        await probe_until(stop, url(server), [], rows.append)
    assert len(rows) == 2


def test_the_hardware_names_its_cores():
    assert " cores, " in hardware_id()
