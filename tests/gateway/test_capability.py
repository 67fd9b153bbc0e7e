"""Whether an engine honours priorities: what it says, and what the experiment shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.capability import policy_of, probe_priority, stated
from gateway.progress import PriorityState
from loadgen.engine.launch import EngineProcess, start_engine
from tests.gateway.fake_engine import FakeEngine, listening, page

SEATS = ("--max-num-seqs", "12", "--time-scale", "0.5")


@pytest.fixture(params=["priority", "fcfs"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, EngineProcess]]:
    flags = (*SEATS, "--scheduling-policy", request.param)
    with start_engine(flags, tmp_path / "engine.log") as running:
        yield request.param, running


async def test_the_experiment_tells_the_two_policies_apart(
    engine: tuple[str, EngineProcess],
) -> None:
    policy, running = engine
    report = await probe_priority(running.url, "simulated")
    assert report.honoured is (policy == "priority"), report
    assert report.verdict == (
        "priority honoured" if policy == "priority" else "not honoured (fcfs)"
    )
    assert report.ok is report.honoured
    assert len(report.evidence) == 3


async def test_an_engine_that_is_not_there_or_does_not_say_what_waits_tells_nothing() -> None:
    gone = await probe_priority("http://127.0.0.1:9", "m")
    assert (gone.honoured, gone.verdict, gone.ok) == (None, "could not tell", False)
    assert "did not answer" in gone.evidence[0]
    for metrics, why in (
        ("", "does not say what runs"),
        (page(running=0, waiting=0), "answered 404"),
    ):
        async with listening(FakeEngine(metrics=metrics)) as port:
            report = await probe_priority(f"http://127.0.0.1:{port}", "m")
        assert report.honoured is None
        assert why in report.evidence[0]


async def test_an_experiment_that_takes_too_long_is_given_up() -> None:
    async with listening(FakeEngine(hangs=True)) as port:
        report = await probe_priority(f"http://127.0.0.1:{port}", "m", timeout_s=0.1)
    assert report.evidence == ("not over in 0.1 s",)


def test_a_policy_is_found_where_releases_put_it() -> None:
    assert policy_of({"vllm_config": {"scheduler_config": {"policy": "priority"}}}) == "priority"
    assert policy_of({"scheduler_config": {"policy": "fcfs"}}) == "fcfs"
    assert policy_of({"vllm_config": "SchedulerConfig(policy='priority')"}) is None
    assert policy_of([]) is None


@given(st.integers(), st.binary())
def test_an_answer_that_is_not_understood_verifies_nothing(status: int, body: bytes) -> None:
    assert stated(status, body) is PriorityState.UNVERIFIED
