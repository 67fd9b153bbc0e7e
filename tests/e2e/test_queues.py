"""What waits, and what is refused instead of waiting: two slots, and a caller who keeps both."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.e2e.configs import Served
from tests.e2e.harness import (
    CHAT,
    PLAIN,
    Front,
    chat,
    endless,
    engine_idle,
    eventually,
    ids,
    refused,
    sim_state,
)


@contextlib.asynccontextmanager
async def all_slots_taken(gateway: Front, model: str = "simulated") -> AsyncIterator[None]:
    """One answer of two choices that goes on until the block ends: one ``client_cancelled``."""
    async with gateway.stream(endless(n=2, model=model), key="holder") as held:
        assert held.response.status_code == 200
        assert await held.next() is not None
        yield


@contextlib.asynccontextmanager
async def waiting(gateway: Front, *asks: Awaitable[Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Requests that wait in the queue until the block ends; each is one ``client_cancelled``."""
    depth = await gateway.total("sluicegate_queue_depth")
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    try:
        await eventually(lambda: deep(gateway, depth + len(tasks)))
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def deep(gateway: Front, depth: float) -> bool:
    return await gateway.total("sluicegate_queue_depth") >= depth


async def test_a_flow_at_its_count_refuses_one_more(tight: Front) -> None:
    async with (
        tight.expect(client_cancelled=2, queue_full=1),
        all_slots_taken(tight),
        waiting(tight, tight.ask(chat(), key="count")),
    ):
        refused(await tight.ask(chat(), key="count"), "queue_full")


async def test_a_flow_at_its_tokens_refuses_what_would_pass_them(tight: Front) -> None:
    async with (
        tight.expect(client_cancelled=3, queue_tokens_full=1),
        all_slots_taken(tight),
        waiting(
            tight,
            tight.ask(ids(40), PLAIN, key="tokens"),
            tight.ask(ids(20), PLAIN, key="tokens"),
        ),
    ):
        refused(await tight.ask(ids(1), PLAIN, key="tokens"), "queue_tokens_full")


@pytest.mark.parametrize("kind", ["text", "token ids"])
async def test_a_flow_at_its_bytes_refuses_what_would_pass_them(tight: Front, kind: str) -> None:
    path, body = (PLAIN, ids(110)) if kind == "token ids" else (CHAT, chat("a" * 220))
    async with (
        tight.expect(client_cancelled=2, queue_bytes_full=1),
        all_slots_taken(tight),
        waiting(tight, tight.ask(body, path, "bytes")),
    ):
        refused(await tight.ask(body, path, "bytes"), "queue_bytes_full")


async def test_a_full_queue_is_known_by_its_class_in_answer_and_metrics(tight: Front) -> None:
    labels = {"service_class": "count", "size_class": "short", "outcome": "queue_full"}
    before = await tight.total("sluicegate_outcomes_total", **labels)
    async with all_slots_taken(tight), waiting(tight, tight.ask(chat(), key="count")):
        await tight.ask(chat(), key="count")
        assert await tight.total("sluicegate_outcomes_total", **labels) == before + 1
    await tight.at_rest()


async def test_the_advice_grows_while_refused_callers_keep_coming(tight: Front) -> None:
    advice = []
    async with all_slots_taken(tight), waiting(tight, tight.ask(chat(), key="count")):
        for _ in range(60):
            answer = refused_wait(await tight.ask(chat(), key="count"))
            advice.append(answer)
            await asyncio.sleep(0.06)
    await tight.at_rest()
    assert advice[0] <= 2
    assert max(advice) >= 3
    assert all(1 <= seconds <= 30 for seconds in advice)


def refused_wait(answer: Any) -> int:
    refused(answer, "queue_full")
    return int(answer.headers["retry-after"])


@pytest.mark.parametrize("model", ["simulated", "observed", "open"])
async def test_a_key_has_its_own_bound_on_what_is_in_flight_in_every_mode(
    tight: Front, model: str
) -> None:
    async with (
        tight.expect(client_cancelled=1, principal_limit=1, completed=1),
        tight.stream(endless(model=model), key="lonely") as held,
    ):
        assert await held.next() is not None
        refused(await tight.ask(chat(model=model), key="lonely"), "principal_limit")
        assert (await tight.ask(chat(model=model), key="roomy")).status_code == 200


async def test_a_full_queue_stops_no_count_that_never_enters_it(tight: Front) -> None:
    async with (
        tight.expect(client_cancelled=2, queue_full=1, completed=1),
        all_slots_taken(tight),
        waiting(tight, tight.ask(chat(), key="count")),
    ):
        refused(await tight.ask(chat(), key="count"), "queue_full")
        answer = await tight.ask(chat(), "/v1/messages/count_tokens", "count")
        assert answer.status_code == 200, answer.text
        assert answer.json()["input_tokens"] > 0


async def test_a_flow_share_of_one_key_leaves_room_for_the_others(tight: Front) -> None:
    # Half of four places in the queue and two in the engine: three for each key.
    async with (
        tight.expect(client_cancelled=5, principal_limit=1),
        all_slots_taken(tight),
        waiting(
            tight,
            tight.ask(chat(), key="shares"),
            tight.ask(chat(), key="shares"),
            tight.ask(chat(), key="shares"),
        ),
    ):
        refused(await tight.ask(chat(), key="shares"), "principal_limit")
        async with waiting(tight, tight.ask(chat(), key="sharer")):
            pass


async def test_a_request_that_waits_too_long_expires(tight: Front) -> None:
    async with tight.expect(client_cancelled=1, queue_expired=1), all_slots_taken(tight):
        answer = await tight.ask(chat(), key="ages")
    refused(answer, "queue_expired")
    assert answer.headers["x-sluicegate-class"] == "short"


async def test_a_caller_may_shorten_its_wait(tight: Front) -> None:
    async with tight.expect(client_cancelled=1, queue_expired=2), all_slots_taken(tight):
        refused(await tight.ask(chat(), X_Sluicegate_Max_Wait="0.1"), "queue_expired")
        refused(await tight.ask(chat(), X_Sluicegate_Max_Wait="0"), "queue_expired")


async def test_a_caller_who_will_not_wait_starts_at_once_where_there_is_room(tight: Front) -> None:
    async with tight.expect(completed=1):
        assert (await tight.ask(chat(), X_Sluicegate_Max_Wait="0")).status_code == 200


async def test_what_cannot_start_within_its_target_is_refused_once_the_rate_is_known(
    slow: str, started: Callable[..., Front]
) -> None:
    many = 6
    flow = {"target_wait_s": 0.01, "principal_share": 1.0}
    gateway = started(  # of its own: what another test's flows were served would be known here
        {"simulated": Served([slow])},
        (slow,),
        {"holder": {"service_class": "interactive"}},
        flow={"short": {"interactive": flow}},
        limits={"slots": 2},
    )
    outcomes = {"completed": many, "predicted_wait": 1, "client_cancelled": 1}
    async with gateway.expect(**outcomes), asyncio.TaskGroup() as group:
        async with all_slots_taken(gateway):
            body = chat(max_tokens=300, n=2)
            asks = [group.create_task(gateway.ask(body)) for _ in range(many)]
            await eventually(lambda: deep(gateway, many))
        await eventually(lambda: any(ask.done() for ask in asks))
        answer = await gateway.ask(chat())
    refused(answer, "predicted_wait")


async def test_a_long_prompt_waits_for_the_one_in_prefill_and_a_short_one_does_not(
    tight: Front,
) -> None:
    whole = ids(1900, stream=True, max_tokens=2)
    async with tight.expect(completed=21), asyncio.TaskGroup() as group:
        longs = [group.create_task(tight.ask(whole, PLAIN)) for _ in range(20)]
        await eventually(lambda: deep(tight, 2))
        status = await tight.status()
        assert dict(status["engines"][0]["prefilling"])["long"] == 1
        short = await tight.ask(chat(max_tokens=1))
        assert short.status_code == 200
        assert short.headers["x-sluicegate-class"] == "short"
    assert {task.result().headers["x-sluicegate-class"] for task in longs} == {"long"}


async def test_the_age_of_the_oldest_grows_behind_a_hung_engine_up_to_its_bound(
    engines: Callable[..., Any], started: Callable[..., Front]
) -> None:
    (hung,) = engines(("--fault", "hang-after=1"))
    gateway = started(
        {"simulated": Served([hung.url])},
        (hung.url,),
        flow={"short": {"interactive": {"max_age_s": 1.2, "principal_share": 1.0}}},
        limits={"slots": 2},
    )
    ages = []
    async with (
        gateway.expect(client_cancelled=1, queue_expired=1),
        gateway.stream(endless(n=2)) as held,
    ):
        assert await held.next() is not None
        asked = asyncio.ensure_future(gateway.ask(chat()))
        await eventually(lambda: deep(gateway, 1))
        while not asked.done():
            ages.append(await gateway.total("sluicegate_oldest_waiting_age_seconds"))
        refused(asked.result(), "queue_expired")
    seen = [age for age in ages if age > 0.0]
    assert len(seen) >= 5
    assert seen == sorted(set(seen))
    assert 0.6 < seen[-1] <= 1.2 + 0.05  # the bound, plus the time one scrape takes
    assert await gateway.total("sluicegate_oldest_waiting_age_seconds") == 0.0


# -- modes ---------------------------------------------------------------------------------


async def test_enforce_holds_back_what_is_beyond_the_limits(tight: Front, slow: str) -> None:
    async with (
        tight.expect(client_cancelled=2),
        all_slots_taken(tight),
        waiting(tight, tight.ask(chat())),
    ):
        assert (await sim_state(slow))["running"] == 2


async def test_off_forwards_at_once_beyond_every_limit(tight: Front, slow: str) -> None:
    async with tight.expect(client_cancelled=1, completed=4), all_slots_taken(tight, "open"):
        asks = [tight.ask(chat(model="open"), key="count") for _ in range(4)]
        answers = await asyncio.gather(*asks)
        assert [answer.status_code for answer in answers] == [200] * 4
        assert await tight.total("sluicegate_queue_depth") == 0
    await engine_idle(slow)


async def test_off_keeps_the_account_of_what_it_forwards(tight: Front) -> None:
    async with (
        tight.expect(client_cancelled=2),
        all_slots_taken(tight, "open"),
        all_slots_taken(tight, "open"),
    ):
        status = await tight.status()
        assert status["engines"][0]["slots"] == 4
        assert status["engines"][0]["slot_limit"] == 2


async def test_observe_forwards_and_counts_what_it_would_have_refused(tight: Front) -> None:
    before = await tight.counts("sluicegate_would_refuse_total", "outcome")
    async with tight.expect(client_cancelled=1, completed=3), all_slots_taken(tight, "observed"):
        for _ in range(3):
            answer = await tight.ask(chat(model="observed"), key="count")
            assert answer.status_code == 200
    after = await tight.counts("sluicegate_would_refuse_total", "outcome")
    # The first ghost waits in the one place of the queue; the other two find it taken.
    assert after["queue_full"] - before["queue_full"] == 2


async def test_observe_counts_an_expiry_while_the_request_itself_has_long_been_served(
    tight: Front,
) -> None:
    before = await tight.counts("sluicegate_would_refuse_total", "outcome")

    async def counted() -> bool:
        after = await tight.counts("sluicegate_would_refuse_total", "outcome")
        return after["queue_expired"] - before["queue_expired"] == 1

    async with tight.expect(client_cancelled=1, completed=1), all_slots_taken(tight, "observed"):
        assert (await tight.ask(chat(model="observed"), key="ages")).status_code == 200
        await eventually(counted)


async def test_enforce_counts_nothing_as_would_refuse(tight: Front) -> None:
    before = await tight.counts("sluicegate_would_refuse_total", "outcome")
    async with (
        tight.expect(client_cancelled=2, queue_full=1),
        all_slots_taken(tight),
        waiting(tight, tight.ask(chat(), key="count")),
    ):
        refused(await tight.ask(chat(), key="count"), "queue_full")
    assert await tight.counts("sluicegate_would_refuse_total", "outcome") == before
