"""The metrics page: vLLM's names and labels, and what moves them."""

import re

from loadgen.engine.metrics import EngineMetrics, Finished
from loadgen.engine.scheduler import Scheduler, SchedulerConfig

CONFIG = SchedulerConfig()
LIFE = Finished(
    reason="stop",
    queue_s=0.4,
    prefill_s=0.5,
    decode_s=2.0,
    prompt_tokens=100,
    generated_tokens=5,
    max_tokens=50,
    n=1,
    preemptions=0,
)


def page(metrics: EngineMetrics, scheduler: Scheduler | None = None) -> str:
    return metrics.page(scheduler or Scheduler(CONFIG)).decode()


def value(text: str, name: str, labels: str = "") -> float:
    found = re.search(rf"^{name}\{{[^}}]*{labels}[^}}]*\}} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])


def test_gauges_are_read_from_the_scheduler_when_the_page_is_asked_for() -> None:
    metrics, scheduler = EngineMetrics("m", CONFIG), Scheduler(SchedulerConfig(max_num_seqs=1))
    scheduler.add(1, 8000, 1)
    scheduler.add(2, 10, 1)
    scheduler.step()
    text = page(metrics, scheduler)
    assert value(text, "vllm:num_requests_running") == 1
    assert value(text, "vllm:num_requests_waiting") == 1
    assert value(text, "vllm:num_requests_waiting_by_reason", 'reason="capacity"') == 1
    assert value(text, "vllm:kv_cache_usage_perc") == 500 / 24575


def test_a_finished_request_is_split_into_its_phases() -> None:
    metrics = EngineMetrics("m", CONFIG)
    metrics.finished(LIFE)
    text = page(metrics)
    assert value(text, "vllm:request_success_total", 'finished_reason="stop"') == 1
    assert value(text, "vllm:e2e_request_latency_seconds_sum") == 2.9
    assert value(text, "vllm:request_inference_time_seconds_sum") == 2.5
    assert value(text, "vllm:request_time_per_output_token_seconds_sum") == 0.5
    assert value(text, "vllm:request_queue_time_seconds_bucket", 'le="0.3"') == 0
    assert value(text, "vllm:request_queue_time_seconds_bucket", 'le="0.5"') == 1


def test_rejections_and_preemptions_are_counted() -> None:
    metrics = EngineMetrics("m", CONFIG)
    metrics.rejected("max_num_queued_tokens")
    metrics.preempted(3)
    text = page(metrics)
    assert value(text, "vllm:admission_rejections_total", 'reason="max_num_queued_tokens"') == 1
    assert value(text, "vllm:num_preemptions_total") == 3


def test_no_label_tells_a_class_or_a_priority() -> None:
    labels = set(re.findall(r'(\w+)="', page(EngineMetrics("m", CONFIG))))
    assert not labels & {"priority", "class", "service_class"}
    assert {"model_name", "engine", "le", "reason", "finished_reason", "source"} <= labels


def test_two_engines_in_one_process_share_no_counter() -> None:
    first, second = EngineMetrics("a", CONFIG), EngineMetrics("b", CONFIG)
    first.preempted(1)
    assert value(page(second), "vllm:num_preemptions_total") == 0
