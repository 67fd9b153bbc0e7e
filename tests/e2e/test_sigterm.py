"""SIGTERM as Kubernetes sends it: what every phase of the shutdown serves, and how it ends."""

import asyncio
from pathlib import Path

import httpx

from tests.e2e.configs import Served
from tests.e2e.harness import (
    CHAT,
    Front,
    caller,
    chat,
    endless,
    engine_idle,
    eventually,
    front,
    refused,
)
from tests.e2e.rollout import OTHER, STABLE, move, routes, two_pools
from tests.e2e.test_drain import Start, depth_is, exit_code, health, outcomes, tell, unready


async def test_each_phase_of_a_shutdown_does_what_a_load_balancer_and_its_callers_count_on(
    slow: str, started: Start
) -> None:
    gateway = started(
        {"simulated": Served([slow])},
        (slow,),
        server={"shutdown_delay_s": 1.5, "drain_deadline_s": 8.0},
        limits={"slots": 2},
    )
    async with caller() as kept, gateway.stream(endless()) as longest:
        assert await longest.next() is not None
        async with gateway.stream(chat(ignore_eos=True, max_tokens=160)) as stream:
            assert await stream.next() is not None
            queued = asyncio.ensure_future(gateway.ask(chat()))
            await eventually(lambda: depth_is(gateway, 1))
            tell(gateway)
            # 1. Unready at once, alive, and everything is served that still comes.
            await eventually(lambda: unready(gateway))
            late = asyncio.ensure_future(ask_on(kept, gateway))
            await eventually(lambda: depth_is(gateway, 2))

            # 2. Refused then, on old connections and new ones; what is queued still goes.
            async def turned_away() -> bool:
                answer = await gateway.ask(chat(), X_Sluicegate_Max_Wait="0")
                return answer.headers["x-sluicegate-outcome"] == "draining"

            await eventually(turned_away)
            assert (await health(gateway, "ready"), await health(gateway, "live")) == (503, 200)
            events = await stream.rest()
            assert events[-1] == "[DONE]"
            answers = [await queued, await late]
            assert [answer.status_code for answer in answers] == [200, 200]
            refused(await ask_on(kept, gateway), "draining")
        # 3. What is left at the deadline is ended so that its caller can tell.
        events = await longest.rest()
    assert events[-1]["error"]["code"] == "drain_terminated"
    assert await exit_code(gateway) == 3
    counted = outcomes(gateway)
    # While it still served, a probe of the second phase may have been served as well.
    assert counted["completed"] >= 3
    assert (counted["drain_terminated"], counted["draining"] >= 2) == (1, True)
    assert gateway.events("drained")[0]["ended"] == 1
    await engine_idle(slow)


async def ask_on(client: httpx.AsyncClient, gateway: Front) -> httpx.Response:
    return await client.post(gateway.url + CHAT, json=chat(), headers=gateway.headers())


async def test_a_second_sigterm_while_it_refuses_ends_what_is_left(
    slow: str, started: Start
) -> None:
    gateway = started({"simulated": Served([slow])}, (slow,), server={"drain_deadline_s": 60.0})
    async with gateway.stream(endless()) as stream:
        assert await stream.next() is not None
        tell(gateway)

        async def turned_away() -> bool:
            answer = await gateway.ask(chat())
            return answer.headers["x-sluicegate-outcome"] == "draining"

        await eventually(turned_away)
        tell(gateway)
        assert (await stream.rest())[-1]["error"]["code"] == "drain_terminated"
    assert await exit_code(gateway) == 3
    await engine_idle(slow)


async def test_two_sigterms_with_nothing_to_end_are_no_failure(fast: str, started: Start) -> None:
    gateway = started({"simulated": Served([fast])}, (fast,), server={"shutdown_delay_s": 60.0})
    tell(gateway)
    await eventually(lambda: bool(gateway.events("draining")))
    tell(gateway)
    assert await exit_code(gateway) == 0


async def test_a_sigterm_during_a_drain_of_a_pool_keeps_the_pool_out_of_use(
    fast: str, slow: str, tmp_path: Path
) -> None:
    path, keys = two_pools(tmp_path, [slow], [fast], server={"drain_deadline_s": 0.5})
    with front(path, keys, [fast, slow]) as gateway:
        async with gateway.stream(endless()) as stream:
            assert await stream.next() is not None
            await move(gateway, "drain", pool=STABLE, deadline_s=60)
            (row,) = (await routes(gateway))["drains"]
            assert (row["state"], row["remaining"]) == ("draining", 1)
            assert await gateway.total("sluicegate_drain_remaining") == 1
            refused(await gateway.ask(chat()), "draining")
            tell(gateway)
            assert (await stream.rest())[-1]["error"]["code"] == "drain_terminated"
        assert await exit_code(gateway) == 3
    with front(path, keys, [fast, slow]) as again:
        (row,) = (await routes(again))["drains"]
        assert (row["drain"], row["state"], row["remaining"]) == (STABLE, "done", 0)
        refused(await again.ask(chat()), "draining")
        assert await health(again, "ready") == 503
        await move(again, "undrain", pool=STABLE)
        assert (await again.ask(chat())).status_code == 200


async def test_a_drained_pool_gives_its_queue_to_the_other_and_ends_what_is_left(
    fast: str, slow: str, tmp_path: Path
) -> None:
    path, keys = two_pools(tmp_path, [slow], [fast], limits={"slots": 2})
    with front(path, keys, [fast, slow]) as gateway:
        async with gateway.stream(endless(n=2)) as stream:
            assert await stream.next() is not None
            queued = asyncio.ensure_future(gateway.ask(chat()))
            await eventually(lambda: depth_is(gateway, 1))
            canary = {"route": "simulated/short", "to": OTHER, "weight": 0, "force": True}
            await move(gateway, "canary", **canary, without_record="the baseline is full")
            await move(gateway, "drain", pool=STABLE, deadline_s=0.3)
            assert (await queued).status_code == 200
            assert (await gateway.ask(chat())).status_code == 200
            assert (await stream.rest())[-1]["error"]["code"] == "drain_terminated"
        await eventually(lambda: len(gateway.requests()) == 3)
        served = sorted((r["outcome"], r["pool"], r["engine"]) for r in gateway.requests())
        assert served == [
            *[("completed", OTHER, fast)] * 2,
            ("drain_terminated", STABLE, slow),
        ]

        async def told() -> bool:
            (row,) = (await routes(gateway))["drains"]
            return (row["state"], row["drained"], row["ended"]) == ("done", 0, 1)

        await eventually(told)
    await engine_idle(slow)
