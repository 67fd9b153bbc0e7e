"""What is taken notice of on an engine's metrics page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scrape import Scrape, parse_metrics

PAGE = """# HELP vllm:num_requests_running x
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0 1700000000000
vllm:num_requests_waiting{engine="0"} 1.0
vllm:num_requests_waiting_by_reason{reason="capacity",engine="0"} 4.0
vllm:num_requests_waiting_by_reason{reason="deferred",engine="0"} 9.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 7.0
vllm:iteration_tokens_total_count{engine="0"} 20.0
vllm:iteration_tokens_total_count{engine="1"} 22.0
vllm:iteration_tokens_total_sum{engine="0"} 900.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:num_preemptions_total{engine="0"} 2.0
process_start_time_seconds 1.75e+09
process_cpu_seconds_total 12.5
vllm:num_requests_running{engine="2"
vllm:num_requests_waiting{engine="3"} many
"""


def test_the_wanted_figures_are_summed_and_nonsense_is_skipped() -> None:
    assert parse_metrics(PAGE) == Scrape(
        running=5.0,
        waiting=1.0,
        process_start_s=1.75e9,
        cpu_s=12.5,
        iterations=42.0,
        preemptions=2.0,
        kv_usage=0.5,
        capacity_waiting=4.0,
    )


def test_a_figure_that_is_not_there_is_absent_and_never_zero() -> None:
    assert parse_metrics("") == Scrape()
    assert parse_metrics("vllm:num_requests_running 0.0\n") == Scrape(running=0.0)


def test_the_same_cache_configuration_is_known_again_and_another_is_not() -> None:
    def info(blocks: int) -> str:
        return f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1.0\n'

    same = parse_metrics(info(100)).served
    assert same is not None
    assert parse_metrics(info(100) + PAGE).served == same
    assert parse_metrics(info(101)).served != same


@given(st.text())
def test_no_page_is_beyond_reading(page: str) -> None:
    for text in (page, PAGE + page, page + PAGE):
        assert isinstance(parse_metrics(text), Scrape)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1.0", "1e308", "1e400"])
def test_a_figure_that_counts_nothing_is_absent(value: str) -> None:
    names = ("vllm:num_requests_running", "process_start_time_seconds", "vllm:kv_cache_usage_perc")
    assert parse_metrics("".join(f"{name} {value}\n" for name in names)) == Scrape()
    beside = f"vllm:num_requests_running{{engine='1'}} {value}\n"
    assert parse_metrics(PAGE + beside) == parse_metrics(PAGE)
