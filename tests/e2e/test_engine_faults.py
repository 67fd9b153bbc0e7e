"""Engines that refuse, hang, err and die: what the caller is told, and what is left behind."""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator

import httpx
import pytest

from loadgen.engine.launch import EngineProcess
from tests.e2e.configs import Served, write_config
from tests.e2e.harness import (
    CHAT,
    PLAIN,
    Front,
    chat,
    endless,
    eventually,
    front,
    ids,
    refused,
    sim_state,
)

FLAGS = {
    "busy": ("--fault", "busy-event=1"),
    "native": ("--max-num-queued-reqs", "1", "--time-scale", "0.3"),
    "hung": ("--fault", "hang-after=3", "--sim-state"),
    "broken": ("--fault", "error-event-after=2"),
    "victim": ("--time-scale", "0.3", "--sim-state"),
    "prey": ("--time-scale", "0.02", "--sim-state"),
}


@pytest.fixture(scope="module")
def troubled(engines: Callable[..., list[EngineProcess]]) -> dict[str, EngineProcess]:
    return dict(zip(FLAGS, engines(*FLAGS.values()), strict=True))


@pytest.fixture(scope="module")
def gateway(
    troubled: dict[str, EngineProcess], fast: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    """One model per engine; ``pair`` has a good engine beside the one that will be killed."""
    urls = {name: engine.url for name, engine in troubled.items()}
    models = {name: Served([url]) for name, url in urls.items()}
    models["pair"] = Served([urls["victim"], fast])
    path, keys = write_config(
        tmp_path_factory.mktemp("troubled"),
        models,
        upstream={"first_byte_timeout_s": 1.0, "answer_timeout_s": 1.0, "idle_timeout_s": 0.8},
        probe={"interval_s": 0.2, "timeout_s": 0.5},
        flow={"short": {"interactive": {"max_age_s": 1.0, "principal_share": 1.0}}},
    )
    with front(path, keys, [*urls.values(), fast]) as running:
        yield running


async def test_an_engine_that_lost_a_race_becomes_a_proper_refusal(gateway: Front) -> None:
    async with gateway.expect(engine_rejected=1, completed=1):
        answer = await gateway.ask(chat(model="busy", stream=True))
        refused(answer, "engine_rejected")
        assert answer.headers["x-sluicegate-class"] == "short"
        assert (await gateway.ask(chat(model="busy", stream=True))).status_code == 200
    assert [line["status"] for line in gateway.requests()[-2:]] == [503, 200]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_engine_at_its_own_bound_becomes_a_proper_refusal(
    gateway: Front, stream: bool
) -> None:
    async with (
        gateway.expect(client_cancelled=1, engine_rejected=1),
        gateway.stream(endless(model="native")) as held,
    ):
        assert await held.next() is not None
        refused(await gateway.ask(chat(model="native", stream=stream)), "engine_rejected")


async def test_an_engines_own_error_passes_unchanged(gateway: Front, fast: str) -> None:
    async with gateway.expect(engine_error=1):
        answer = await gateway.ask(chat(model="pair", min_tokens=9))
    async with httpx.AsyncClient(trust_env=False) as client:
        direct = await client.post(f"{fast}/v1/chat/completions", json=chat(min_tokens=9))
    assert (answer.status_code, answer.content) == (400, direct.content)
    assert "x-should-retry" not in answer.headers
    assert answer.headers["x-sluicegate-outcome"] == "engine_error"


async def test_a_stream_in_which_the_engine_errs_is_interrupted_by_its_own_words(
    gateway: Front,
) -> None:
    body = chat(model="broken", max_tokens=20, ignore_eos=True)
    async with gateway.expect(stream_interrupted=1), gateway.stream(body) as stream:
        assert stream.response.status_code == 200
        events = await stream.rest()
    errors = [event["error"] for event in events if event != "[DONE]" and "error" in event]
    assert len(errors) == 1
    assert errors[0]["code"] == 500


async def test_a_stream_that_stalls_is_ended_by_an_error_event_and_in_good_order(
    gateway: Front,
) -> None:
    content = json.dumps({**endless(model="hung"), "stream": True}).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"authorization: {gateway.headers()['authorization']}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    async with gateway.expect(stream_interrupted=1):
        answer = await gateway.raw(head.encode() + content)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"data: ") == 4
    assert b'"code":"stream_interrupted"' in answer
    assert answer.endswith(b"\r\n0\r\n\r\n")
    assert gateway.requests()[-1]["status"] == 200


async def test_an_engine_that_does_not_answer_in_time_is_a_timeout(gateway: Front) -> None:
    # It has hung since the test above, or hangs from the third event of this one on.
    async with gateway.stream(endless(model="hung")) as stream:
        await stream.rest()
    await gateway.at_rest()
    async with gateway.expect(upstream_timeout=2):
        refused(await gateway.ask(chat(model="hung")), "upstream_timeout")
        refused(await gateway.ask(chat(model="hung", stream=True)), "upstream_timeout")


async def test_an_engine_killed_before_its_first_byte_is_unreachable(
    gateway: Front, troubled: dict[str, EngineProcess]
) -> None:
    prey = troubled["prey"]

    async def run(number: int) -> bool:
        return bool((await sim_state(prey.url))["running"] == number)

    async with gateway.expect(upstream_unreachable=2):
        # The stream comes second: when both run, its prompt has just begun.
        whole = asyncio.ensure_future(gateway.ask(ids(300, model="prey"), PLAIN))
        await eventually(lambda: run(1))
        stream = asyncio.ensure_future(gateway.ask(ids(300, model="prey", stream=True), PLAIN))
        await eventually(lambda: run(2))
        prey.process.send_signal(signal.SIGKILL)
        for ask in (whole, stream):
            refused(await ask, "upstream_unreachable")


async def test_an_engine_killed_mid_stream_ends_it_and_others_take_over(
    gateway: Front, troubled: dict[str, EngineProcess], fast: str
) -> None:
    """The streams get an error event; new work goes elsewhere, or is told there is no engine."""
    victim = troubled["victim"]
    async with gateway.expect(stream_interrupted=2, completed=8, no_engine=2):
        async with (
            gateway.stream(endless(model="victim")) as chat_stream,
            gateway.stream(
                ids(3, model="victim", max_tokens=3000, ignore_eos=True), PLAIN
            ) as plain,
        ):
            assert await chat_stream.next() is not None
            assert await plain.next() is not None
            victim.process.send_signal(signal.SIGKILL)
            for stream in (chat_stream, plain):
                last = (await stream.rest())[-1]
                assert last["error"]["code"] == "stream_interrupted"
                assert set(last["error"]) == {"message", "type", "param", "code"}
        answers = [await gateway.ask(chat(f"{n}", model="pair")) for n in range(8)]
        assert [answer.status_code for answer in answers] == [200] * 8
        # Down for less than two seconds: it waits, and expires while there is still no engine.
        refused(await gateway.ask(chat(model="victim")), "no_engine")
        await asyncio.sleep(1.2)
        refused(await gateway.ask(chat(model="victim")), "no_engine")
    assert victim.url in {line["engine"] for line in gateway.events("engine_down")}
    assert {line["engine"] for line in gateway.requests()[-11:-2]} <= {fast, victim.url}


async def test_an_engine_that_comes_back_serves_again(
    engines: Callable[..., list[EngineProcess]], started: Callable[..., Front]
) -> None:
    (first,) = engines(())
    port = first.url.rsplit(":", 1)[1]
    gateway = started({"simulated": Served([first.url])}, (first.url,))
    async with gateway.expect(completed=2):
        assert (await gateway.ask(chat())).status_code == 200
        first.kill()
        await eventually(lambda: bool(gateway.events("engine_down")))
        asked = asyncio.ensure_future(gateway.ask(chat()))
        await asyncio.to_thread(engines, ("--port", port))
        assert (await asked).status_code == 200
    assert (await gateway.status())["health"][0]["epoch"] == 2
