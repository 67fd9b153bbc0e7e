"""What an engine is asked to show that it answers, and what its answers are taken for."""

import time

import pytest

from gateway.config import SizeClass
from gateway.endpoint import Endpoint
from gateway.warm_probe import Question, engine_facts, questions, warm_probe
from tests.gateway.fake_engine import FakeEngine, listening

SIZES = [SizeClass("short", 4096, 0.5, 0.5, 30.0), SizeClass("long", 16384, 5.0, 1.0, 120.0)]
ASKED = [Question("short", 16, 30.0)]


def test_each_class_is_asked_with_a_prompt_well_inside_it() -> None:
    found = [(q.size_class, q.prompt_tokens, q.limit_s) for q in questions(SIZES, 16384)]
    assert found == [("short", 512, 0.5), ("long", 8192, 5.0)]


def test_an_answer_may_take_a_given_part_or_multiple_of_the_classes_limit() -> None:
    assert [q.limit_s for q in questions(SIZES, 16384, 3.0)] == [1.5, 15.0]
    assert [q.limit_s for q in questions(SIZES, 16384, 0.5)] == [0.25, 2.5]


@pytest.mark.parametrize("length", [100, 5000])
def test_no_prompt_is_larger_than_its_class_or_the_model(length: int) -> None:
    assert all(q.prompt_tokens < length for q in questions(SIZES, length))
    small = [SizeClass("short", 40, 0.5, 0.5, 30.0), SizeClass("long", 60, 5.0, 1.0, 120.0)]
    assert [q.prompt_tokens for q in questions(small, length)] == [40, 60]


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        (FakeEngine(answers={"/v1/completions": "no event"}), "its answer has no event"),
        (FakeEngine(), "it answers 404"),
    ],
)
async def test_an_engine_that_does_not_answer_in_events_is_faulty(
    engine: FakeEngine, fault: str
) -> None:
    async with listening(engine) as port:
        (probe,) = await warm_probe(
            Endpoint(f"http://127.0.0.1:{port}"), "m", ASKED, time.monotonic
        )
    assert (probe.ttft_s, probe.fault) == (None, fault)
    assert fault in (probe.why or "")


async def test_the_first_event_counts() -> None:
    engine = FakeEngine(answers={"/v1/completions": "data: {}\n\n"})
    async with listening(engine) as port:
        (probe,) = await warm_probe(
            Endpoint(f"http://127.0.0.1:{port}"), "m", ASKED, time.monotonic
        )
    assert (probe.fault, probe.why) == (None, None)
    assert probe.ttft_s is not None


async def test_nobody_there_is_a_fault_with_its_reason() -> None:
    (probe,) = await warm_probe(Endpoint("http://127.0.0.1:9"), "m", ASKED, time.monotonic)
    assert probe.fault


async def test_a_simulated_engine_is_known_by_its_version_and_others_are_not() -> None:
    models = '{"data": [{"id": "m"}]}'
    for version, synthetic in (("0.32.0+simulated", True), ("0.32.0", False)):
        engine = FakeEngine(
            answers={"/version": f'{{"version": "{version}"}}', "/v1/models": models}
        )
        async with listening(engine) as port:
            told = await engine_facts(Endpoint(f"http://127.0.0.1:{port}"))
        assert (told["version"], told["models"], told["synthetic"]) == (version, ["m"], synthetic)
    assert (await engine_facts(Endpoint("http://127.0.0.1:9")))["version"] is None
