"""Reads what gateway and engines say of themselves, once a second, and what machine this is.

A scrape that fails is a row that says so (`up: false`), never a gap and never a zero: server
behaviour does not invalidate a run, it is recorded. Ages in seconds.
"""

import asyncio
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from loadgen.gpu import gpu_names

__all__ = ["Sample", "engine_row", "gateway_row", "hardware_id", "parse_metrics", "probe_until"]

LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ENGINE_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:num_preemptions_total": "preemptions_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:generation_tokens_total": "generation_tokens_total",
    "vllm:prefix_cache_hits_total": "prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total": "prefix_cache_queries_total",
    "vllm:request_queue_time_seconds_sum": "queue_time_s_sum",
    "vllm:request_queue_time_seconds_count": "queue_time_s_count",
    "vllm:request_prefill_time_seconds_sum": "prefill_time_s_sum",
    "vllm:request_prefill_time_seconds_count": "prefill_time_s_count",
    "process_start_time_seconds": "process_start_time_seconds",
}
SCRAPE_TIMEOUT_S = 0.9

Sample = tuple[str, dict[str, str], float]
Row = dict[str, Any]


def parse_metrics(text: str, prefixes: tuple[str, ...]) -> Iterator[Sample]:
    """Yield (name, labels, value) of the samples whose name begins with one of the prefixes."""
    for line in text.splitlines():
        if line.startswith(prefixes) and (match := LINE.match(line)):
            name, labels, value = match.groups()
            yield name, dict(LABEL.findall(labels or "")), float(value)


def gateway_row(text: str) -> Row:
    """Return per size class the oldest waiting age (largest over flows) and the queue depth."""
    ages: dict[str, float] = {}
    depths: dict[str, float] = {}
    names = ("sluicegate_oldest_waiting_age_seconds", "sluicegate_queue_depth")
    for name, labels, value in parse_metrics(text, names):
        size_class = labels.get("size_class", "all")
        if name == names[0]:
            ages[size_class] = max(ages.get(size_class, 0.0), value)
        elif name == names[1]:
            depths[size_class] = depths.get(size_class, 0.0) + value
    return {"oldest_age_s": ages, "queue_depth": depths}


def engine_row(text: str) -> Row:
    """Return the engine's own gauges and counters; one it does not export is absent."""
    row: Row = {}
    for name, _, value in parse_metrics(text, tuple(ENGINE_GAUGES)):
        if (key := ENGINE_GAUGES.get(name)) is not None:
            row[key] = row.get(key, 0.0) + value
    return row


Reader = Callable[[str], Row]


async def _scrape(client: httpx.AsyncClient, url: str, reader: Reader) -> Row:
    try:
        answer = await client.get(f"{url}/metrics", timeout=SCRAPE_TIMEOUT_S)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        return {"up": False, "reason": type(error).__name__}
    return {"up": True, **reader(answer.text)}


def _targets(admin_url: str | None, engines: Sequence[str]) -> list[tuple[Row, str, Reader]]:
    own: list[tuple[Row, str, Reader]] = [
        ({"source": "engine", "engine": n}, url, engine_row) for n, url in enumerate(engines)
    ]
    if admin_url is not None:
        own.append(({"source": "gateway"}, admin_url, gateway_row))
    return own


async def probe_until(
    stop: asyncio.Event,
    admin_url: str | None,
    engines: Sequence[str],
    emit: Callable[[Row], None],
    interval_s: float = 1.0,
) -> None:
    """Scrape every interval until stopped, and once more then.

    Rows bear `at_ns` on the monotonic clock; the caller turns it into seconds of the run.
    """
    targets = _targets(admin_url, engines)
    async with httpx.AsyncClient(trust_env=False) as client:
        last = False
        while not last:
            last = stop.is_set()
            due_s = time.monotonic() + interval_s
            for label, url, reader in targets:
                emit({**label, "at_ns": time.monotonic_ns(), **await _scrape(client, url, reader)})
            if not last:
                await _sleep_or_stop(stop, due_s - time.monotonic())


async def _sleep_or_stop(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), max(0.0, seconds))
    except TimeoutError:
        return


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def hardware_id() -> str:
    """Name the CPU model, the cores this process may use, and the GPUs if there are any."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = gpu_names()
    own = f"{_cpu_model()}, {cores} cores, {platform.system()}"
    return own if gpus is None else f"{gpus}; {own}"
