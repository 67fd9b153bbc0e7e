"""Words a run as the result file that vLLM's serving benchmark writes, so that its tools read it.

The keys and their meanings are vLLM's: times count from the sending, percentiles are interpolated,
a latency ends with the last token. That hides waiting before the sending, so `scheduled_times`,
`classes`, `successes` and the planned rate stand beside them, and what a failure lacks is null
where vLLM writes zero. Pure: no I/O, no clock.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from loadgen.record import Outcome, RequestRecord

__all__ = ["summary_rows", "vllm_result"]

Json = dict[str, Any]
PERCENTILES = (50, 90, 95, 99)
DETAILED = frozenset(
    {
        "input_lens",
        "output_lens",
        "ttfts",
        "itls",
        "latencies",
        "start_times",
        "queue_times",
        "generated_texts",
        "errors",
        "successes",
        "classes",
        "scheduled_times",
    }
)


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Between the two nearest ranks, as NumPy's default does it."""
    at = (len(ordered) - 1) * percent / 100.0
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _spread(values: Sequence[float]) -> float:
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / len(values))


def _statistics(name: str, values_s: Iterable[float]) -> Json:
    ordered = sorted(v * 1e3 for v in values_s) or [0.0]
    found = {
        f"mean_{name}_ms": math.fsum(ordered) / len(ordered),
        f"median_{name}_ms": _percentile(ordered, 50),
        f"std_{name}_ms": _spread(ordered),
    }
    return {**found, **{f"p{p}_{name}_ms": _percentile(ordered, p) for p in PERCENTILES}}


def _ok(record: RequestRecord) -> bool:
    return (
        record.outcome is Outcome.OK and bool(record.event_us) and record.dispatched_us is not None
    )


def _start_s(record: RequestRecord) -> float | None:
    return None if record.dispatched_us is None else record.dispatched_us / 1e6


def _ttft_s(record: RequestRecord) -> float | None:
    if not _ok(record) or not record.event_us or record.dispatched_us is None:
        return None
    return (record.event_us[0] - record.dispatched_us) / 1e6


def _latency_s(record: RequestRecord) -> float | None:
    if not _ok(record) or not record.event_us or record.dispatched_us is None:
        return None
    return (record.event_us[-1] - record.dispatched_us) / 1e6


def _itl_s(record: RequestRecord) -> list[float]:
    return [(b - a) / 1e6 for a, b in pairwise(record.event_us or ())] if _ok(record) else []


def _output_tokens(record: RequestRecord) -> int:
    return (record.completion_tokens_reported or len(record.event_us or ())) if _ok(record) else 0


def _error(record: RequestRecord) -> str:
    if record.outcome is Outcome.OK:
        return ""
    code = f": {record.outcome_code}" if record.outcome_code else ""
    return f"{record.outcome}{code}"


def _queue_s(record: RequestRecord) -> float | None:
    sent = record.dispatched_us
    return None if sent is None else (sent - record.planned_us) / 1e6


def _peaks(done: Sequence[RequestRecord]) -> Json:
    """The busiest second, counted from the first sending, as vLLM counts it."""
    first = min((r.dispatched_us or 0 for r in done), default=0)
    tokens: Counter[int] = Counter()
    active: Counter[int] = Counter()
    for r in done:
        seconds = [(us - first) // 1_000_000 for us in r.event_us or ()]
        tokens.update(seconds)
        begin = ((r.dispatched_us or 0) - first) // 1_000_000
        active.update(range(begin, max(seconds, default=begin) + 1))
    return {
        "max_output_tokens_per_s": float(max(tokens.values(), default=0)),
        "max_concurrent_requests": max(active.values(), default=0),
    }


def _tpots_s(done: Sequence[RequestRecord]) -> Iterable[float]:
    for r in done:
        latency, ttft, tokens = _latency_s(r), _ttft_s(r), _output_tokens(r)
        if latency is not None and ttft is not None and tokens > 1:
            yield (latency - ttft) / (tokens - 1)


def _duration_s(records: Sequence[RequestRecord]) -> float:
    starts = [r.planned_us for r in records]
    ends = [r.last_byte_us for r in records if r.last_byte_us is not None]
    return max((max(ends, default=0) - min(starts, default=0)) / 1e6, 1e-6)


def _detailed(records: Sequence[RequestRecord]) -> Json:
    return {
        "input_lens": [r.prompt_tokens_reported or r.prompt_tokens_planned for r in records],
        "output_lens": [_output_tokens(r) for r in records],
        "ttfts": [_ttft_s(r) for r in records],
        "itls": [_itl_s(r) for r in records],
        "latencies": [_latency_s(r) for r in records],
        "start_times": [_start_s(r) for r in records],
        "queue_times": [_queue_s(r) for r in records],
        "generated_texts": ["" for _ in records],  # texts are never recorded
        "errors": [_error(r) for r in records],
        "successes": [_ok(r) for r in records],
        "classes": [r.size_class for r in records],
        "scheduled_times": [r.planned_us / 1e6 for r in records],
    }


def _present(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None]


def _measured(records: Sequence[RequestRecord], met: int) -> Json:
    done, duration_s = [r for r in records if _ok(r)], _duration_s(records)
    tokens_in = sum(r.prompt_tokens_reported or r.prompt_tokens_planned for r in done)
    tokens_out = sum(_output_tokens(r) for r in done)
    return {
        "duration": duration_s,
        "completed": len(done),
        "failed": len(records) - len(done),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(done) / duration_s,
        "request_goodput": met / duration_s,
        "output_throughput": tokens_out / duration_s,
        "total_token_throughput": (tokens_in + tokens_out) / duration_s,
        **_peaks(done),
        "rtfx": 0.0,
        **_statistics("ttft", _present(_ttft_s(r) for r in done)),
        **_statistics("tpot", _tpots_s(done)),
        **_statistics("itl", (v for r in done for v in _itl_s(r))),
        **_statistics("e2el", _present(_latency_s(r) for r in done)),
    }


def vllm_result(
    run: Mapping[str, Any],
    plan: Mapping[str, Any],
    config: Mapping[str, Any],
    records: Sequence[RequestRecord],
    met: int,
) -> Json:
    """Return a run's observed requests as vLLM's result.

    Args:
        run: its entry in the plan.
        plan: for rate and burstiness.
        config: what the run was; its effective arguments become keys of their own.
        records: of all requests; only the observed ones are told.
        met: how many of them met every limit of their contract.
    """
    observed = [r for r in records if r.phase == "observed"]
    arguments = {str(k): v for k, v in config["effective_args"].items()}
    return {
        **arguments,
        "date": str(config.get("started_at", "")),
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": run["run_id"],
        "model_id": str(config.get("model", config["model_revision"])),
        "tokenizer_id": config["tokenizer_revision"],
        "num_prompts": len(observed),
        "request_rate": run.get("rate_per_s", plan.get("rate_per_s", "inf")),
        "burstiness": float(plan.get("arrivals", {}).get("burstiness", 1.0)),
        "max_concurrency": None,
        **_measured(observed, met),
        **_detailed(observed),
        **{k: run[k] for k in ("run_id", "cell_id", "mix", "rate", "repeat") if k in run},
        "synthetic": plan["synthetic"],
    }


def summary_rows(results: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return the results without their per-request lists, as vLLM's sweep plots read them."""
    return [
        {**{k: v for k, v in result.items() if k not in DETAILED}, "run_number": n}
        for n, result in enumerate(results)
    ]
