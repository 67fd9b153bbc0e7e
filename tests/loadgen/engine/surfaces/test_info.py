"""What an engine says about itself."""

import httpx

from loadgen.engine.launch import EngineProcess
from tests.loadgen.engine.conftest import Start
from tests.loadgen.engine.test_server import until


def test_the_load_is_counted_only_where_asked_for(start: Start, shared: EngineProcess) -> None:
    engine = start("--enable-server-load-tracking", "--fault", "hang-scheduler")
    body = {"prompt": "x", "stream": True}

    def load() -> object:
        return httpx.get(f"{engine.url}/load").json()["server_load"]

    with (
        httpx.Client(timeout=20.0) as client,
        client.stream("POST", f"{engine.url}/v1/completions", json=body),
    ):
        until(lambda: load() == 1)
    until(lambda: load() == 0)
    assert httpx.get(f"{shared.url}/load").json() == {"server_load": 0}


def test_settings_are_told_only_in_development_mode(start: Start, shared: EngineProcess) -> None:
    engine = start("--dev-mode", "--scheduling-policy", "priority", "--max-num-seqs", "16")
    info = httpx.get(f"{engine.url}/server_info?config_format=json").json()
    scheduler = info["vllm_config"]["scheduler_config"]
    assert (scheduler["policy"], scheduler["max_num_seqs"]) == ("priority", 16)
    assert isinstance(httpx.get(f"{engine.url}/server_info").json()["vllm_config"], str)
    assert httpx.get(f"{engine.url}/server_info?config_format=xml").status_code == 400
    assert httpx.get(f"{shared.url}/server_info").status_code == 404


def test_the_metrics_hold_what_shows_progress_and_restarts(shared: EngineProcess) -> None:
    page = httpx.get(f"{shared.url}/metrics").text
    for name in (
        "vllm:iteration_tokens_total_count{",
        "vllm:num_preemptions_total{",
        "vllm:kv_cache_usage_perc{",
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="simulated",reason="deferred"}',
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="simulated",reason="capacity"}',
        "vllm:cache_config_info{",
        "process_start_time_seconds ",
    ):
        assert f"\n{name}" in page
