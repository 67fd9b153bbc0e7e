"""Keeps the counters of one simulated engine and prints them under vLLM's names.

Names, types, labels and buckets are those of vLLM 0.32 as far as a simulation can fill them;
what it can't know (FLOPs, multimodal caches) is left out. Times are seconds of the engine's own
clock. A cancelled request moves no counter, as in vLLM.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from loadgen.engine.scheduler import Scheduler, SchedulerConfig

__all__ = ["EngineMetrics", "Finished"]

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")

FINE_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
TTFT_S = (*FINE_S, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
SHORT_GAP_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
GAP_S = (*SHORT_GAP_S, 10.0, 20.0, 40.0, 80.0)
MINUTE_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
REQUEST_S = (*MINUTE_S, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

COUNTERS = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "prompt_tokens_cached": "Number of cached prompt tokens (local + external).",
    "generation_tokens": "Number of generation tokens processed.",
}
GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
HISTOGRAMS_S = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", TTFT_S),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", GAP_S),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        GAP_S,
    ),
    "e2e_request_latency_seconds": (
        "Histogram of e2e request latency in seconds.",
        REQUEST_S,
    ),
    "request_queue_time_seconds": (
        "Histogram of time spent in WAITING phase for request.",
        REQUEST_S,
    ),
    "request_inference_time_seconds": (
        "Histogram of time spent in RUNNING phase for request.",
        REQUEST_S,
    ),
    "request_prefill_time_seconds": (
        "Histogram of time spent in PREFILL phase for request.",
        REQUEST_S,
    ),
    "request_decode_time_seconds": (
        "Histogram of time spent in DECODE phase for request.",
        REQUEST_S,
    ),
}
HISTOGRAMS_TOKENS = {
    "request_prompt_tokens": "Number of prefill tokens processed.",
    "request_generation_tokens": "Number of generation tokens processed.",
    "request_max_num_generation_tokens": (
        "Histogram of maximum number of requested generation tokens."
    ),
    "request_params_max_tokens": "Histogram of the max_tokens request parameter.",
    "request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens)."
    ),
}


@dataclass(frozen=True, slots=True)
class Finished:
    """One request's life, in engine seconds and tokens."""

    reason: str
    queue_s: float
    prefill_s: float
    decode_s: float
    prompt_tokens: int
    generated_tokens: int
    max_tokens: int
    n: int
    preemptions: int
    cached_tokens: int = 0


class EngineMetrics:
    """Counters of one engine in a registry of its own; ``page`` prints them."""

    def __init__(self, model: str, config: SchedulerConfig) -> None:
        self._registry = CollectorRegistry()
        GCCollector(self._registry)
        PlatformCollector(self._registry)
        ProcessCollector(registry=self._registry)
        self._model = model
        self._labels = {"model_name": model, "engine": "0"}
        self._counters = {name: self._counter(name, text) for name, text in COUNTERS.items()}
        self._gauges = {name: self._gauge(name, text) for name, text in GAUGES.items()}
        self._histograms = self._make_histograms(config)
        self._by_reason = self._waiting_by_reason()
        self._finished = self._request_success()
        self._sources = self._prompt_sources()
        self._rejections = self._admission_rejections()
        self._cache_config(config)
        self.first_token = self._histograms["time_to_first_token_seconds"].observe
        self.next_token = self._histograms["inter_token_latency_seconds"].observe
        self.generated = self._counters["generation_tokens"].inc
        self.step_tokens = self._histograms["iteration_tokens_total"].observe

    def looked_up(self, prompt_tokens: int, known: int) -> None:
        """Count what a prompt asked of the prefix cache, and what was there."""
        self._counters["prefix_cache_queries"].inc(prompt_tokens)
        self._counters["prefix_cache_hits"].inc(known)

    def prefilled(self, prompt_tokens: int, cached_tokens: int = 0) -> None:
        """Count a prompt once, when its first token is out."""
        self._counters["prompt_tokens"].inc(prompt_tokens)
        self._counters["prompt_tokens_cached"].inc(cached_tokens)
        self._sources["local_compute"].inc(prompt_tokens - cached_tokens)
        self._sources["local_cache_hit"].inc(cached_tokens)

    def preempted(self, count: int) -> None:
        """Count sequences that lost their seat."""
        self._counters["num_preemptions"].inc(count)

    def rejected(self, reason: str) -> None:
        """Count a 503 of native admission."""
        self._rejections[reason].inc()

    def finished(self, request: Finished) -> None:
        """Observe a request that ended by itself."""
        self._finished[request.reason].inc()
        inference_s = request.prefill_s + request.decode_s
        gaps = request.generated_tokens - 1
        values: dict[str, float] = {
            "e2e_request_latency_seconds": request.queue_s + inference_s,
            "request_queue_time_seconds": request.queue_s,
            "request_inference_time_seconds": inference_s,
            "request_prefill_time_seconds": request.prefill_s,
            "request_decode_time_seconds": request.decode_s,
            "request_time_per_output_token_seconds": request.decode_s / gaps if gaps > 0 else 0.0,
            "request_prompt_tokens": request.prompt_tokens,
            "request_generation_tokens": request.generated_tokens,
            "request_max_num_generation_tokens": request.generated_tokens,
            "request_params_max_tokens": request.max_tokens,
            "request_prefill_kv_computed_tokens": request.prompt_tokens - request.cached_tokens,
            "request_params_n": request.n,
            "request_num_preemptions": request.preemptions,
        }
        for name, value in values.items():
            self._histograms[name].observe(value)

    def page(self, scheduler: Scheduler) -> bytes:
        """The text of /metrics; gauges are read from the scheduler at this moment."""
        self._gauges["num_requests_running"].set(scheduler.running)
        self._gauges["num_requests_waiting"].set(scheduler.waiting)
        self._by_reason["capacity"].set(scheduler.waiting)
        usage = scheduler.kv_used_blocks / scheduler.config.usable_blocks
        self._gauges["kv_cache_usage_perc"].set(usage)
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"vllm:{name}", text, list(self._labels), registry=self._registry)
        return counter.labels(**self._labels)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"vllm:{name}", text, list(self._labels), registry=self._registry)
        return gauge.labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}", text, list(self._labels), buckets=buckets, registry=self._registry
        )
        return histogram.labels(**self._labels)

    def _make_histograms(self, config: SchedulerConfig) -> dict[str, Histogram]:
        made = {name: self._histogram(name, *spec) for name, spec in HISTOGRAMS_S.items()}
        tokens = _one_two_five(config.max_model_len)
        for name, text in HISTOGRAMS_TOKENS.items():
            made[name] = self._histogram(name, text, tokens)
        spread = (1, 2, 5, 10, 20)
        made["request_params_n"] = self._histogram(
            "request_params_n", "Histogram of the n request parameter.", spread
        )
        made["request_num_preemptions"] = self._histogram(
            "request_num_preemptions",
            "Histogram of the number of preemptions.",
            (1, 2, 3, 4, 5, 10, 20),
        )
        made["iteration_tokens_total"] = self._histogram(
            "iteration_tokens_total", "Histogram of number of tokens per engine_step.", STEP_TOKENS
        )
        return made

    def _waiting_by_reason(self) -> dict[str, Gauge]:
        gauge = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Number of waiting requests by reason.",
            [*self._labels, "reason"],
            registry=self._registry,
        )
        reasons = ("capacity", "deferred")
        return {reason: gauge.labels(**self._labels, reason=reason) for reason in reasons}

    def _request_success(self) -> dict[str, Counter]:
        counter = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            [*self._labels, "finished_reason"],
            registry=self._registry,
        )
        return {
            reason: counter.labels(**self._labels, finished_reason=reason)
            for reason in FINISH_REASONS
        }

    def _prompt_sources(self) -> dict[str, Counter]:
        counter = Counter(
            "vllm:prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            [*self._labels, "source"],
            registry=self._registry,
        )
        return {source: counter.labels(**self._labels, source=source) for source in SOURCES}

    def _admission_rejections(self) -> dict[str, Counter]:
        counter = Counter(
            "vllm:admission_rejections",
            "Requests rejected by admission control.",
            ["model_name", "reason"],
            registry=self._registry,
        )
        return {
            reason: counter.labels(model_name=self._model, reason=reason) for reason in REJECTIONS
        }

    def _cache_config(self, config: SchedulerConfig) -> None:
        tokens = config.num_gpu_blocks * config.block_size
        values = {
            "block_size": config.block_size,
            "cache_dtype": "auto",
            "enable_prefix_caching": config.enable_prefix_caching,
            "kv_cache_max_concurrency": tokens / config.max_model_len,
            "kv_cache_size_tokens": tokens,
            "num_gpu_blocks": config.num_gpu_blocks,
        }
        labels = {name: str(value) for name, value in values.items()} | {"engine": "0"}
        Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            list(labels),
            registry=self._registry,
        ).labels(**labels).set(1)


def _one_two_five(limit: int) -> list[float]:
    """Bucket bounds 1, 2, 5, 10, … up to a limit, as vLLM builds its token histograms."""
    bounds: list[float] = []
    exponent = 0
    while True:
        for mantissa in (1, 2, 5):
            bound = mantissa * 10**exponent
            if bound > limit:
                return bounds
            bounds.append(bound)
        exponent += 1
