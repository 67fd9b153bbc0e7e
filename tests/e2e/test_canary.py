"""Canaries that are watched: taken back by themselves, held, and not forgotten by a crash."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.state import State
from tests.e2e.configs import ADMIN_TOKEN
from tests.e2e.conftest import FAST, Engines
from tests.e2e.harness import ROOT, Front, chat, endless, eventually, front
from tests.e2e.rollout import (
    CALLERS,
    OTHER,
    ROUTE,
    STABLE,
    audit,
    move,
    route,
    routes,
    two_pools,
    watch_row,
)

ABORT = [
    {"metric": "error_rate", "max": 0.02, "above_stable": 0.01, "window_s": 20, "min_count": 15}
]
CANARY: dict[str, Any] = {
    "route": ROUTE,
    "to": OTHER,
    "weight": 50,
    "without_record": "engines of a test",
    "watch": {"abort": ABORT},
}


@pytest.fixture(scope="module")
def pools(engines: Engines) -> tuple[str, str]:
    """An engine that serves, and one that refuses whatever it is asked."""
    good, bad = engines(FAST, (*FAST, "--fault", "reject"))
    return good.url, bad.url


@pytest.fixture
def faulty(pools: tuple[str, str], fast: str, tmp_path: Path) -> Iterator[Front]:
    path, keys = two_pools(tmp_path, [fast], [pools[1]])
    with front(path, keys, [fast, pools[1]]) as gateway:
        yield gateway


@asynccontextmanager
async def load(gateway: Front) -> AsyncIterator[None]:
    """Every caller asks again and again, while the block runs."""

    async def ask() -> None:
        while True:
            await asyncio.gather(*(gateway.ask(chat(), key=key) for key in CALLERS))

    task = asyncio.ensure_future(ask())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def state_is(gateway: Front, state: str) -> bool:
    return bool((await watch_row(gateway))["state"] == state)


async def verdict_is(gateway: Front, verdict: str) -> bool:
    return bool((await watch_row(gateway))["verdict"] == verdict)


async def drains(gateway: Front, pool: str) -> bool:
    return bool((await routes(gateway))["pools"][pool]["draining"])


def command(gateway: Front, verb: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "gateway", "routes", verb, ROUTE, *flags),
            *("--admin-url", gateway.admin_url),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SLUICEGATE_ADMIN_TOKEN": ADMIN_TOKEN},
    )


async def test_a_canary_onto_an_engine_that_fails_goes_back_by_itself(faulty: Front) -> None:
    flags = ["--to", OTHER, "--weight", "50", "--without-record", "engines of a test"]
    flags += ["--abort", "error_rate=0.02,+0.01", "--window", "20", "--min-count", "15"]
    begun = await asyncio.to_thread(command, faulty, "canary", *flags)
    assert begun.returncode == 0, begun.stderr
    assert (await route(faulty))["candidate"] == OTHER
    async with load(faulty):
        await eventually(lambda: state_is(faulty, "reverted"), 20.0)
    await eventually(lambda: drains(faulty, OTHER))
    row = await route(faulty)
    assert (row["stable"], row["candidate"], row["candidate_weight"]) == (STABLE, None, 0)
    (entry,) = await audit(faulty, "abort")
    assert entry["who"] == "watch"
    assert entry["why"].startswith("error_rate: ")
    assert "above 0.02 and worse than stable by more than 0.01" in entry["why"]
    (figure,) = entry["detail"]["canary"][ROUTE]["figures"]
    assert figure["candidate"]["value"] > 0.5 > figure["stable"]["value"] == 0.0
    (first,) = await audit(faulty, "canary")
    told = first["detail"]["canary"][ROUTE]
    assert told == {"record": {"without_record": "engines of a test"}, "abort": ABORT}
    assert await faulty.total("sluicegate_canary_aborts_total", route=ROUTE) == 1
    assert await faulty.total("sluicegate_canary_watch", route=ROUTE, state="reverted") == 1
    await eventually(lambda: faulty.events("canary_aborted"))  # the log is written in batches
    assert [line["why"] for line in faulty.events("canary_aborted")] == [entry["why"]]
    answers = await asyncio.gather(*(faulty.ask(chat(), key=key) for key in CALLERS))
    assert {answer.status_code for answer in answers} == {200}
    followed = await asyncio.to_thread(command, faulty, "watch")
    assert (followed.returncode, followed.stdout.split()[0]) == (3, "reverted"), followed.stderr
    # What was taken back may not come again unless somebody undrains it.
    refusal = await move(faulty, "canary", 400, **CANARY)
    assert "draining" in refusal["error"]


async def test_a_canary_onto_an_engine_that_serves_holds_then_is_fine_and_stays(
    pools: tuple[str, str], fast: str, tmp_path: Path
) -> None:
    path, keys = two_pools(tmp_path, [fast], [pools[0]])
    with front(path, keys, [fast, pools[0]]) as gateway:
        usual = {key: value for key, value in CANARY.items() if key != "watch"}
        abort = [{**ABORT[0], "min_count": 40}, {"metric": "ttft_attainment", "min": 0.9}]
        await move(gateway, "canary", **usual, watch={"abort": abort})
        await eventually(lambda: verdict_is(gateway, "hold"))
        assert "too little data: 0 of 40 on candidate" in (await watch_row(gateway))["why"]
        async with load(gateway):
            await eventually(lambda: verdict_is(gateway, "fine"), 20.0)
            # Another weight of the same canary needs no record again, and keeps what was counted.
            await move(gateway, "canary", route=ROUTE, to=OTHER, weight=80)
            await asyncio.sleep(1.5)
        row = await watch_row(gateway)
        assert (row["state"], row["verdict"], row["weight"]) == ("watching", "fine", 80)
        assert all(f["candidate"]["count"] >= 40 for f in row["figures"])
        assert (await route(gateway))["candidate"] == OTHER
        told = await asyncio.to_thread(command, gateway, "watch", "--once", "--json")
        assert (told.returncode, json.loads(told.stdout)["verdict"]) == (0, "fine")
        # Promotion is a person's act, and ends the watch.
        await move(gateway, "promote", route=ROUTE)
        row = await watch_row(gateway)
        assert (row["state"], row["why"]) == ("ended", "promote by tests")


async def test_a_gateway_killed_in_the_middle_of_a_watch_watches_on(
    pools: tuple[str, str], fast: str, tmp_path: Path
) -> None:
    path, keys = two_pools(tmp_path, [fast], [pools[1]])
    with front(path, keys, [fast, pools[1]]) as gateway:
        # So many that the load before the crash decides nothing.
        patient = [{**ABORT[0], "min_count": 60}]
        await move(gateway, "canary", **{**CANARY, "watch": {"abort": patient}})
        await asyncio.gather(*(gateway.ask(chat(), key=key) for key in CALLERS))
        assert await state_is(gateway, "watching")
        await asyncio.sleep(4.0)  # until what was counted is kept
        counted = (await watch_row(gateway))["figures"][0]["candidate"]["count"]
        kill(gateway)
    with front(path, keys, [fast, pools[1]]) as again:
        (line,) = again.events("canary_resumed")
        assert (line["state"], line["route"]) == ("watching", ROUTE)
        await eventually(lambda: verdict_is(again, "hold"))
        row = await watch_row(again)
        assert row["figures"][0]["candidate"]["count"] == counted > 0
        assert row["candidate"] == OTHER == (await route(again))["candidate"]
        async with load(again):
            await eventually(lambda: state_is(again, "reverted"), 40.0)
        assert (await route(again))["candidate"] is None


async def test_a_gateway_killed_between_a_breach_and_the_way_back_goes_back_at_its_start(
    pools: tuple[str, str], fast: str, tmp_path: Path
) -> None:
    path, keys = two_pools(tmp_path, [fast], [pools[1]])
    with front(path, keys, [fast, pools[1]]) as gateway:
        await move(gateway, "canary", **CANARY)
        kill(gateway)
    state = State(tmp_path / "state")  # as it is when the breach was written, and nothing after it
    (kept,) = state.get_all("watch").values()
    state.put("watch", ROUTE, {**kept, "state": "breached", "why": "seen before the crash"})
    state.close()
    with front(path, keys, [fast, pools[1]]) as again:
        await eventually(lambda: state_is(again, "reverted"))
        (entry,) = await audit(again, "abort")
        assert (entry["who"], entry["why"]) == ("watch", "seen before the crash")
        await eventually(lambda: drains(again, OTHER))


async def test_a_canary_is_refused_where_nothing_could_take_it_back(
    pools: tuple[str, str], slow: str, tmp_path: Path
) -> None:
    path, keys = two_pools(tmp_path, [slow], [pools[0]], limits={"slots": 2})
    with front(path, keys, [slow, pools[0]]) as gateway:
        no_record = {key: value for key, value in CANARY.items() if key != "without_record"}
        refusal = await move(gateway, "canary", 400, **no_record)
        assert "needs the rollback record of its baseline" in refusal["error"]
        refusal = await move(gateway, "canary", 400, **{**CANARY, "watch": {"abort": [{}]}})
        assert "is not watched; known are error_rate" in refusal["error"]
        async with gateway.stream(endless(n=2)) as stream:
            assert await stream.next() is not None
            refusal = await move(gateway, "canary", 400, **CANARY)
        assert "all of its 1 engines that are up are full" in refusal["error"]
        assert (await routes(gateway))["watches"] == []


def kill(gateway: Front) -> None:
    assert gateway.process is not None
    gateway.process.send_signal(signal.SIGKILL)
    gateway.process.wait()
