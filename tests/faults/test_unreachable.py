"""Engines that can't be connected to, alone and beside another that can."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import chat, eventually
from tests.e2e.inside import assert_at_zero, inside
from tests.faults.caller import ask, post
from tests.faults.crooked import crooked_engine
from tests.faults.stand import CHANGES, Stand, stand
from tests.faults.table import GOOD_BODY, good

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Stand]:
    changes = {"flow": {"short": {"interactive": {"max_age_s": 1.5, "principal_share": 1.0}}}}
    async with stand(tmp_path, changes) as running:
        yield running


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_engine_that_accepts_no_connection_is_unreachable_and_serves_again(
    pair: Stand, stream: bool
) -> None:
    """Its backlog is full and connecting takes for ever."""
    pair.requests.clear()
    pair.engine.accept_nobody()
    reply = await pair.ask(stream=stream)
    outcome = reply.error()["code"]
    # The retry may find it already taken out of use.
    assert (reply.status, outcome) in {(502, "upstream_unreachable"), (503, "no_engine")}
    await pair.at_rest()
    assert [line["outcome"] for line in pair.requests] == [outcome]
    pair.engine.accept()
    await eventually(pair.has_served)
    await pair.serves_well()


async def test_a_port_that_nobody_listens_at_has_no_engine_and_the_request_waits_for_one(
    pair: Stand,
) -> None:
    """A request that finds its only engine gone waits until its age cap; then it is told so."""
    pair.requests.clear()
    pair.engine.refuse()
    reply = await pair.ask(stream=True)
    assert (reply.status, reply.error()["code"]) == (503, "no_engine")
    await pair.at_rest()
    assert [line["outcome"] for line in pair.requests] == ["no_engine"]


@pytest.mark.parametrize("refuses", [True, False], ids=["refused", "no answer to connecting"])
async def test_another_engine_takes_what_one_does_not(tmp_path: Path, refuses: bool) -> None:
    async with crooked_engine(good) as broken, crooked_engine(good) as sound:
        address = NOBODY if refuses else broken.url
        if not refuses:
            broken.accept_nobody()
        pair = inside(tmp_path, address, sound.url, changes=CHANGES)
        async with pair as (gateway, outside, lines):
            key = outside.headers()["authorization"]
            for number in range(12):  # different beginnings prefer different engines
                request = post(chat(f"{number}", stream=False), key)
                reply = await ask(outside.url, request)
                assert (reply.status, reply.body) == (200, GOOD_BODY), reply
            assert_at_zero(gateway)
            requests = [line for line in lines() if line["event"] == "request"]
        assert max(line["retries"] for line in requests) == 1
