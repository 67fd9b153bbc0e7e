"""Decides whether a started engine is the one that the plan asked for.

What an engine says of itself counts first (its configuration in vLLM's layout), then the record of
its start (the log), else nothing is claimed. Names are those of `vllm serve`, with underscores.
Pure: no I/O, no clock.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "FIELDS",
    "Confirmed",
    "confirm",
    "effective_of",
    "facts_of",
    "logged",
]

Json = Mapping[str, Any]
# Where vLLM's configuration holds the value of a flag (/server_info?config_format=json).
FIELDS = {
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_num_active_seqs": ("scheduler_config", "max_num_active_seqs"),
    "scheduling_policy": ("scheduler_config", "policy"),
    "long_prefill_token_threshold": ("scheduler_config", "long_prefill_token_threshold"),
    "enable_chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
    "max_num_queued_reqs": ("scheduler_config", "max_num_queued_reqs"),
    "max_num_queued_tokens": ("scheduler_config", "max_num_queued_tokens"),
    "scheduler_reserve_full_isl": ("scheduler_config", "scheduler_reserve_full_isl"),
    "watermark": ("scheduler_config", "watermark"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "stream_interval": ("scheduler_config", "stream_interval"),
    "block_size": ("cache_config", "block_size"),
    "num_gpu_blocks_override": ("cache_config", "num_gpu_blocks"),
    "enable_prefix_caching": ("cache_config", "enable_prefix_caching"),
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "kv_cache_memory_bytes": ("cache_config", "kv_cache_memory_bytes"),
    "gpu_memory_utilization": ("cache_config", "gpu_memory_utilization"),
    "max_model_len": ("model_config", "max_model_len"),
    "dtype": ("model_config", "dtype"),
    "seed": ("model_config", "seed"),
    "revision": ("model_config", "revision"),
    "tokenizer_revision": ("model_config", "tokenizer_revision"),
    "quantization": ("model_config", "quantization"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "pipeline_parallel_size": ("parallel_config", "pipeline_parallel_size"),
    "data_parallel_size": ("parallel_config", "data_parallel_size"),
}
# Compared even where the plan does not name them: a sweep without them measures something else.
PINNED = {"enable_prefix_caching": False}
# As vLLM reads sizes: a small letter is a power of ten, a capital one of two.
BYTES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BYTES |= {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT])?")
CHUNKED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
GIVEN = re.compile(r"non-default args: \{(.*)\}")
PAIR = re.compile(r"'(\w+)': ('[^']*'|\[[^\]]*\]|[^,{}]+)")
# Something else than a word or a number, printed as Python prints it: it tells nothing comparable.
OBJECT = re.compile(r"\s*<|\w+\(")
KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What is known of an engine's settings.

    `source` is "engine", "launch-record" or "unverified"; `unconfirmed` names planned arguments
    that neither told; `differences` says where they contradict the plan: then the cell is none.
    """

    source: str
    args: Json
    unconfirmed: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    facts: Json = field(default_factory=dict)


def effective_of(config: Json, *, nulls: bool = False) -> dict[str, Any]:
    """Return the flags' values in an engine's own configuration; what it lacks is absent.

    So is what is null there, as an engine leaves null also what it finds out later. With `nulls`
    those are kept, but for revisions: null pins none.
    """
    found = {}
    for name, (section, key) in FIELDS.items():
        part = config.get(section)
        kept = nulls and not name.endswith("revision")
        if isinstance(part, Mapping) and key in part and (kept or part[key] is not None):
            told = part[key]
            found[name] = told.removeprefix("torch.") if isinstance(told, str) else told
    if config.get("speculative_config") is not None:
        found["speculative_config"] = config["speculative_config"]
    return found


def facts_of(config: Json) -> dict[str, Any]:
    """Return what a configuration says beside the flags: precision, parallelism, KV tokens."""
    model, cache = (config.get(k) or {} for k in ("model_config", "cache_config"))
    parallel = config.get("parallel_config") or {}
    sizes = {k: v for k, v in parallel.items() if k.endswith("_parallel_size")}
    kv_tokens = cache.get("kv_cache_size_tokens")
    if kv_tokens is None and cache.get("num_gpu_blocks") and cache.get("block_size"):
        kv_tokens = cache["num_gpu_blocks"] * cache["block_size"]
    dtype = str(model["dtype"]).removeprefix("torch.") if model.get("dtype") else None
    told = {"precision": dtype, "parallelism": sizes or None, "kv_tokens": kv_tokens}
    return {k: v for k, v in told.items() if v is not None}


def logged(text: str) -> dict[str, Any]:
    """Return the flags' values that an engine's start-up log shows."""
    found: dict[str, Any] = {}
    if given := GIVEN.search(text):
        found = {n: _literal(v) for n, v in PAIR.findall(given[1]) if not OBJECT.match(v)}
    if chunked := CHUNKED.search(text):
        found["max_num_batched_tokens"] = int(chunked[1])
    if tokens := KV_TOKENS.search(text):
        found["kv_tokens"] = int(tokens[1].replace(",", ""))
    return found


def _literal(text: str) -> Any:
    text = text.strip()
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")


def _number(value: Any) -> float | None:
    """Return what a number or a size such as 48G is worth."""
    if isinstance(value, bool) or value is None:
        return None
    match = SIZE.fullmatch(str(value).strip())
    return None if match is None else float(match[1]) * BYTES.get(match[2] or "", 1)


def _same(planned: Any, told: Any) -> bool:
    if planned == told or str(planned) == str(told):
        return True
    one, other = _number(planned), _number(told)
    return one is not None and one == other


def confirm(planned: Json, critical: Iterable[str], config: Json | None, log: str) -> Confirmed:
    """Compare a cell's arguments with what its engine told.

    Args:
        planned: the complete arguments.
        critical: what the cells of the plan differ in; without them nothing is confirmed.
        config: the engine's own configuration, None if it does not tell.
        log: what it printed while it started.
    """
    told, record = effective_of(config or {}), logged(log)
    source, args = _source(set(critical), told, record)
    if config is None and "kv_tokens" in record:
        facts = {"kv_tokens": record["kv_tokens"]}
    else:
        facts = facts_of(config or {})
    return Confirmed(
        source=source,
        args={**planned, **{k: v for k, v in args.items() if k in FIELDS or k in planned}},
        unconfirmed=tuple(sorted(k for k, v in planned.items() if v is not None and k not in args)),
        differences=tuple(_differences(planned, args)),
        facts=facts,
    )


def _source(critical: set[str], told: Json, record: Json) -> tuple[str, Json]:
    """Whichever tells every critical argument; what the other adds is kept, the engine's first."""
    both = {**record, **told}
    if told and critical <= told.keys():
        return "engine", both
    if both and critical <= both.keys():
        return "launch-record", both
    return "unverified", both


def _differences(planned: Json, args: Json) -> Iterable[str]:
    for name, value in {**PINNED, **planned}.items():
        if name in args and value is not None and not _same(value, args[name]):
            yield f"{name} is {args[name]} at the engine, {value} in the plan"
    if args.get("speculative_config") is not None and "speculative_config" not in planned:
        yield "speculative decoding is on at the engine and is not in the plan"
