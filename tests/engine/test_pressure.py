"""An engine short of memory preempts, and one at its own bound refuses: what callers see of it."""

import asyncio
from collections import Counter
from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.harness import CHAT, PLAIN, Front, chat, eventually, ids, refused
from tests.engine.vllm import Engine

ROOMY = {
    "flow": {"short": {"interactive": {"principal_share": 1.0, "predict": False}}},
    "size": {"short": {"max_prompt_tokens": 1000}, "long": {"max_prompt_tokens": 9216}},
    "limits": {"slots": 200, "prefill_tokens": 200000},
}


async def total(engine: Engine, name: str, **labels: str) -> float:
    """One metric of the engine, summed over the series that carry the labels."""
    wanted = labels.items()
    return sum(
        sample.value
        for family in text_string_to_metric_families(await engine.page())
        for sample in family.samples
        if sample.name == name and wanted <= sample.labels.items()
    )


async def test_preemptions_are_seen_and_shrink_the_limits_below_what_is_configured(
    narrow: Engine, before: Callable[..., Front]
) -> None:
    gateway = before(narrow, adaptation={"enabled": True}, **ROOMY)
    before_n = (await narrow.scrape()).preemptions or 0
    body = ids(512, max_tokens=128, ignore_eos=True)
    async with gateway.expect(completed=18):
        answers = await asyncio.gather(*(gateway.ask(body, PLAIN) for _ in range(18)))
        # What was preempted is computed again: nobody gets less for it.
        assert {answer.json()["usage"]["completion_tokens"] for answer in answers} == {128}
        assert ((await narrow.scrape()).preemptions or 0) > before_n

        async def shrunk() -> bool:
            return await gateway.total("sluicegate_engine_slots_limit") < 200

        await eventually(shrunk)


async def test_a_burst_over_the_engines_own_bound_becomes_proper_refusals(
    narrow: Engine, before: Callable[..., Front]
) -> None:
    """Until both kinds were met: a 503 of the engine, and an error event under its 200."""
    gateway = before(narrow, **ROOMY)
    kinds = Counter[str]()
    for number in range(12):
        stream = number % 3 != 2
        body = chat(max_tokens=8, ignore_eos=True, stream=stream)
        rejected, errors = await rejections(narrow), await statuses(narrow)
        answers = await asyncio.gather(*(gateway.ask(body, CHAT) for _ in range(60)))
        busy = [answer for answer in answers if answer.status_code != 200]
        for answer in busy:
            refused(answer, "engine_rejected")
        for answer in answers:
            assert answer.status_code != 200 or whole(answer, stream=stream), answer.text
        heads = await statuses(narrow) - errors
        assert await rejections(narrow) - rejected == len(busy)
        kinds += Counter(unary=len(busy) if not stream else 0, head=int(heads))
        kinds["event"] += int(len(busy) - heads)
        if min(kinds["unary"], kinds["head"], kinds["event"]) > 0:
            break
    await gateway.at_rest()
    assert min(kinds["unary"], kinds["head"], kinds["event"]) > 0, kinds


async def rejections(engine: Engine) -> float:
    return await total(engine, "vllm:admission_rejections_total")


async def statuses(engine: Engine) -> float:
    """How many answers of the engine began with a status of 5xx."""
    return await total(engine, "http_requests_total", handler=CHAT, status="5xx")


def whole(answer: httpx.Response, *, stream: bool) -> bool:
    if stream:
        return answer.text.endswith("data: [DONE]\n\n") and '"error"' not in answer.text
    return bool(answer.json()["usage"]["completion_tokens"] == 8)
