"""Reads an engine's metrics page: decides what of it the gateway takes notice of.

Each wanted figure is summed over its label sets (one per engine core). A figure that the page does
not have is ``None``, never zero; a line that is no number, or one that counts nothing (negative,
NaN, infinite), is skipped, because a half-understood page must not stop probing.
Pure: no I/O, no clock.
"""

from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType

__all__ = ["Scrape", "parse_metrics"]

# vLLM writes a histogram of tokens per engine step: its count is the number of steps.
_WANTED = MappingProxyType(
    {
        "vllm:num_requests_running": "running",
        "vllm:num_requests_waiting": "waiting",
        "process_start_time_seconds": "process_start_s",
        "process_cpu_seconds_total": "cpu_s",
        "vllm:iteration_tokens_total_count": "iterations",
        "vllm:num_preemptions_total": "preemptions",
        "vllm:kv_cache_usage_perc": "kv_usage",
        "vllm:prompt_tokens_total": "prompt_tokens",
    }
)
# Figures beyond it are nonsense, and sums of those below stay far from infinity.
_LARGEST = 1e18
_BY_REASON = "vllm:num_requests_waiting_by_reason"
_CACHE = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True)
class Scrape:
    """What an engine's metrics page said; ``None``: it did not say.

    ``capacity_waiting`` are requests that wait for room in the engine, where it tells them apart
    from those that wait for something else. ``served`` is a digest of the cache configuration,
    ``cpu_s`` what the process has used of processors.
    """

    running: float | None = None
    waiting: float | None = None
    process_start_s: float | None = None
    cpu_s: float | None = None
    iterations: float | None = None
    preemptions: float | None = None
    kv_usage: float | None = None
    prompt_tokens: float | None = None
    capacity_waiting: float | None = None
    served: str | None = None


def parse_metrics(page: str) -> Scrape:
    """The wanted figures of a metrics page in Prometheus' text format."""
    sums: dict[str, float] = {}
    served: set[str] = set()
    for line in page.splitlines():
        if not line.startswith(("vllm:", "process_")):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        if name == _CACHE:
            served.add(line.rpartition("}")[0])
            continue
        field = _WANTED.get(name)
        if name == _BY_REASON and 'reason="capacity"' in line:
            field = "capacity_waiting"
        value = _number(line, name) if field else None
        if field and value is not None:
            # A fraction is no sum: the fullest core counts.
            more = max if field == "kv_usage" else float.__add__
            sums[field] = more(sums[field], value) if field in sums else value
    return Scrape(**sums, served=_digest(served))


def _digest(lines: set[str]) -> str | None:
    text = "\n".join(sorted(lines))
    return blake2b(text.encode(), digest_size=8).hexdigest() if text else None


def _number(line: str, name: str) -> float | None:
    rest = line.rpartition("}")[2] if "{" in line else line[len(name) :]
    words = rest.split()
    try:
        value = float(words[0])  # a timestamp may follow
    except (IndexError, ValueError):
        return None
    return value if 0 <= value <= _LARGEST else None  # NaN is neither
