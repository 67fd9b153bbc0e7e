import asyncio
from collections import Counter

import pytest

from loadgen.closed_loop import Server, measure_completions
from loadgen.record import BenchError, Prompt
from loadgen.saturation import class_sequence
from tests.loadgen.truth import truth_server

NAMES = ("a", "b")
PROMPTS = {
    name: [Prompt(name, 10, 4, f"{name} {n}", f"{name}{n}") for n in range(3)] for name in NAMES
}


MEASURED_S = 1.5


async def measured(truth, in_flight, measured_s=MEASURED_S, settle_s=0.1):
    server = Server(truth.url, "m", "sg_key", settle_s=settle_s, measured_s=measured_s)
    names = class_sequence({"a": 0.5, "b": 0.5})
    return await measure_completions(server, PROMPTS, names, in_flight)


async def test_never_more_than_the_given_number_is_in_flight():
    now, most = 0, 0

    async with truth_server(ttft_s=0.02, gap_s=0.001, chunks=4) as truth:
        answer = truth.answer

        async def counted(writer, seen, plan):
            nonlocal now, most
            now += 1
            most = max(most, now)
            try:
                await answer(writer, seen, plan)
            finally:
                now -= 1

        truth.answer = counted
        assert await measured(truth, 6) > 0
    assert most == 6


async def test_completions_are_counted_per_second_of_the_measured_time_alone():
    async with truth_server(ttft_s=0.01, gap_s=0.001, chunks=4) as truth:
        per_s = await measured(truth, 4, MEASURED_S, 2 * MEASURED_S)
        assert 0 < per_s * MEASURED_S < 0.6 * len(truth.bodies)


async def test_requests_are_of_both_classes_and_of_forced_length():
    async with truth_server(ttft_s=0.005, gap_s=0.001) as truth:
        await measured(truth, 4)
        texts = Counter(b["messages"][0]["content"][0] for b in truth.bodies)
        assert abs(texts["a"] - texts["b"]) <= 20
        assert {(b["max_tokens"], b["min_tokens"], b["ignore_eos"]) for b in truth.bodies} == {
            (4, 4, True)
        }


async def test_a_server_that_refuses_is_not_measured():
    async with truth_server() as truth:
        truth.script = lambda body: {"status": 429, "code": "queue_full"}
        with pytest.raises(BenchError, match=r"failed of \d+: status 429"):
            await measured(truth, 2, 60, 0)
        assert len(truth.bodies) < 20  # it gives up at the eleventh


async def test_a_server_that_is_not_there_is_named():
    async def refuse(reader, writer):
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(BenchError, match=f"http://127.0.0.1:{port}: "):
        await measure_completions(
            Server(f"http://127.0.0.1:{port}", "m"), PROMPTS, class_sequence({"a": 1.0}), 2
        )
