"""Faults that are put in place while the engine runs."""

from typing import Any

import httpx
import pytest

from loadgen.engine.launch import EngineProcess
from tests.loadgen.engine.conftest import Start
from tests.loadgen.engine.test_server import metric, until

BODY = {"prompt": "x", "max_tokens": 3, "ignore_eos": True}


@pytest.fixture
def engine(start: Start) -> EngineProcess:
    return start("--sim-control", "--time-scale", "20")


def plan(engine: EngineProcess, fault: Any) -> httpx.Response:
    return httpx.post(f"{engine.url}/sim/fault", json={"fault": fault}, timeout=20.0)


def complete(engine: EngineProcess, **more: Any) -> httpx.Response:
    return httpx.post(f"{engine.url}/v1/completions", json={**BODY, **more}, timeout=20.0)


def test_a_refusing_engine_refuses_everything_until_told_otherwise(engine: EngineProcess) -> None:
    assert plan(engine, "reject").json() == {"synthetic": True, "fault": ["reject"]}
    assert complete(engine).status_code == 503
    answer = httpx.post(f"{engine.url}/v1/embeddings", json={"input": "x"}, timeout=20.0)
    assert answer.status_code == 503
    assert httpx.get(f"{engine.url}/health").status_code == 200
    plan(engine, None)
    assert complete(engine).status_code == 200


def test_a_hanging_scheduler_seats_requests_and_finishes_no_iteration(
    engine: EngineProcess,
) -> None:
    complete(engine)
    before = metric(engine, "vllm:iteration_tokens_total_count")
    plan(engine, "hang-scheduler")
    with (
        httpx.Client(timeout=20.0) as client,
        client.stream("POST", f"{engine.url}/v1/completions", json={**BODY, "stream": True}) as it,
    ):
        until(lambda: metric(engine, "vllm:num_requests_running") == 1)
        assert httpx.get(f"{engine.url}/health").status_code == 200
        assert metric(engine, "vllm:iteration_tokens_total_count") == before
        plan(engine, "")
        assert it.read().endswith(b"data: [DONE]\n\n")
    assert metric(engine, "vllm:iteration_tokens_total_count") > before


def test_counts_start_anew_with_every_plan(engine: EngineProcess) -> None:
    for _ in range(2):
        plan(engine, ["error-event-after=2"])
        assert '"code":500' in complete(engine, stream=True).text
    plan(engine, [])
    assert '"error"' not in complete(engine, stream=True).text


def test_a_hang_ends_with_its_plan(engine: EngineProcess) -> None:
    plan(engine, "hang-after=1")
    with (
        httpx.Client(timeout=20.0) as client,
        client.stream("POST", f"{engine.url}/v1/completions", json={**BODY, "stream": True}) as it,
    ):
        next(it.iter_text())
    plan(engine, None)
    assert complete(engine).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("fault", ["explode", "slow-start=1", "reject=1", ["reject", "hang"]])
def test_a_plan_that_cannot_be_read_changes_nothing(engine: EngineProcess, fault: Any) -> None:
    plan(engine, "reject")
    assert plan(engine, fault).status_code == 400
    assert complete(engine).status_code == 503


def test_without_the_flag_there_is_no_control(shared: EngineProcess) -> None:
    assert plan(shared, "reject").status_code == 404
