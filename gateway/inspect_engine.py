"""Asks a live engine what it is: version, model, cache, speculation, tokenizer, health.

The answers are facts under the names of a record's fields (``drift``). In production vLLM tells
its version (``/version``), the model's name, root and length (``/v1/models``), its whole cache
configuration as labels of ``vllm:cache_config_info``, whether it speculates (it has the
``vllm:spec_decode`` counters only then), when its process started, and the token ids of a text
(``/tokenize``). Its scheduler's arguments it tells in development mode alone (``/server_info``).
What is not answered is absent.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

from gateway.drift import Facts
from gateway.endpoint import Endpoint
from gateway.engine_http import http_client
from gateway.launch_record import literal
from gateway.manifest import Record, canonical
from gateway.manifest_fields import RecordError

__all__ = ["facts_of_metrics", "facts_of_server_info", "inspect_engine", "probe_of_tokenizer"]

MOST_BYTES = 4 << 20
# Words, code, several scripts, blanks, digits: tokenizers differ in these.
PROBE = (
    "The quick brown fox jumps over 13 lazy dogs.\n\n  def f(x):\n\treturn x ** 2  # ok\n"
    "naïve Straße 中文测试 한국어 日本語 🙂 https://example.org/a_b?c=%20 {'k': [1, 2.5e-3]}"
)
_CACHE = "vllm:cache_config_info"
_SPECULATION = "vllm:spec_decode"
_START = "process_start_time_seconds"
_LABELS = MappingProxyType(
    {
        "block_size": "args.block_size",
        "cache_dtype": "args.kv_cache_dtype",
        "enable_prefix_caching": "args.enable_prefix_caching",
        "gpu_memory_utilization": "args.gpu_memory_utilization",
        "kv_cache_memory_bytes": "args.kv_cache_memory_bytes",
        "num_gpu_blocks_override": "args.num_gpu_blocks_override",
        "num_gpu_blocks": "num_gpu_blocks",
        "kv_cache_size_tokens": "kv_tokens",
    }
)
# Where the engine's own configuration holds a field that is not called like its argument.
_SECTIONS = ("model_config", "cache_config", "scheduler_config", "parallel_config")
_RENAMED = MappingProxyType(
    {
        "policy": "args.scheduling_policy",
        "cache_dtype": "args.kv_cache_dtype",
        "revision": "model.revision",
        "tokenizer_revision": "model.tokenizer_revision",
        "num_gpu_blocks": "num_gpu_blocks",
    }
)
_NULLABLE = frozenset(
    {"quantization", "max_num_queued_reqs", "max_num_queued_tokens", "kv_cache_memory_bytes"}
    | {"max_num_active_seqs", "num_gpu_blocks_override"}
)


async def inspect_engine(
    record: Record, endpoint: Endpoint, timeout_s: float = 10.0, api_key: str | None = None
) -> Facts:
    """What the engine at ``endpoint`` tells of the record's fields.

    Args:
        record: names the model and the health probe's path.
        endpoint: of the engine.
        timeout_s: for each question.
        api_key: the engine's own, where it has one.

    Raises:
        ConnectionError: it can't be reached.
    """
    path = str(record.fields["health_probe.path"])
    async with http_client(endpoint, timeout_s) as client:
        if api_key is not None:
            client.headers["authorization"] = f"Bearer {api_key}"
        engine = _Engine(client, endpoint.url)
        status, _ = await engine.get(path)
        health = path if status == 200 else f"{path} answers {status}"
        told: dict[str, Any] = {"health_probe.path": health}
        told |= _named("image.version", (await engine.json("/version")).get("version"))
        told |= _model(await engine.json("/v1/models"), str(record.fields["model.id"]))
        metrics, started_s = facts_of_metrics(await engine.text("/metrics"))
        own = facts_of_server_info(await engine.json("/server_info?config_format=json"))
        probe = await engine.probe(str(told.get("model.id", "")))
        return Facts({**told, **own, **metrics, **probe}, started_s=started_s)


class _Engine:
    """One engine as it answers; what it does not answer is empty."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    async def get(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body, of which no more is read than is ever needed."""
        method, content = ("GET", None) if body is None else ("POST", orjson.dumps(body))
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with self._client.stream(method, path, content=content, headers=headers) as found:
                parts, size = [], 0
                async for part in found.aiter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > MOST_BYTES:
                        return 0, b""
                return found.status_code, b"".join(parts)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = f"{self._url}{path}: {error or type(error).__name__}"
            raise ConnectionError(said) from error

    async def text(self, path: str) -> str:
        status, body = await self.get(path)
        return body.decode(errors="replace") if status == 200 else ""

    async def json(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        status, content = await self.get(path, body)
        try:
            found = orjson.loads(content) if status == 200 else None
        except orjson.JSONDecodeError:
            found = None
        return found if isinstance(found, Mapping) else {}

    async def probe(self, model: str) -> dict[str, Any]:
        """The digest of the ids that its tokenizer makes of the fixed text."""
        body = {"model": model, "prompt": PROBE, "add_special_tokens": False}
        ids = (await self.json("/tokenize", body)).get("tokens")
        return {"model.tokenizer_probe": _digest(ids)} if isinstance(ids, list) else {}


def probe_of_tokenizer(path: Path) -> str:
    """The same digest by a ``tokenizer.json``.

    Raises:
        RecordError: the file is no tokenizer.
    """
    try:
        # Its loader raises bare Exception for a file that is no tokenizer.
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise RecordError(f"{path}: not a tokenizer.json: {error}") from error
    return _digest(tokenizer.encode(PROBE, add_special_tokens=False).ids)


def _digest(ids: list[Any]) -> str:
    return sha256(canonical(ids)).hexdigest()


def _named(field: str, value: Any) -> dict[str, Any]:
    return {} if value is None else {field: value}


def _model(page: Mapping[str, Any], wanted: str) -> dict[str, Any]:
    """The row of the model that the record names; else that of the first, to show the drift."""
    rows = [row for row in page.get("data") or () if isinstance(row, Mapping)]
    row = next((row for row in rows if row.get("id") == wanted), rows[0] if rows else {})
    return {
        **_named("model.id", row.get("id")),
        **_named("model.root", row.get("root")),
        **_named("args.max_model_len", row.get("max_model_len")),
    }


def facts_of_metrics(page: str) -> tuple[dict[str, Any], float | None]:
    """What a metrics page tells beside load, and when the process started."""
    lines = page.splitlines()
    wanted = [line for line in lines if line.startswith((_CACHE, _START))]
    try:
        families = list(text_string_to_metric_families("\n".join(wanted) + "\n"))
    except ValueError:
        families = []
    samples = [sample for family in families for sample in family.samples]
    started = [sample.value for sample in samples if sample.name == _START]
    told = _of_labels([sample.labels for sample in samples if sample.name == _CACHE])
    if any(line.startswith("vllm:") for line in lines):
        told["speculation"] = any(line.startswith(_SPECULATION) for line in lines)
    return told, started[0] if started else None


def _of_labels(cores: list[dict[str, str]]) -> dict[str, Any]:
    """One set of labels for each engine core; what the cores differ in is a list."""
    told: dict[str, Any] = {}
    for label, field in _LABELS.items():
        seen = list(dict.fromkeys(core[label] for core in cores if label in core))
        if seen:
            told[field] = literal(seen[0]) if len(seen) == 1 else [literal(text) for text in seen]
    return _with_kv_tokens(told)


def _with_kv_tokens(told: dict[str, Any]) -> dict[str, Any]:
    """Tokens of KV cache, of the core that has least."""
    if isinstance(told.get("kv_tokens"), list):
        told["kv_tokens"] = min(told["kv_tokens"], key=float)
    sizes = told.get("num_gpu_blocks"), told.get("args.block_size")
    if not isinstance(told.get("kv_tokens"), int) and all(isinstance(n, int) for n in sizes):
        told["kv_tokens"] = told["num_gpu_blocks"] * told["args.block_size"]
    if not isinstance(told.get("kv_tokens"), int):
        told.pop("kv_tokens", None)
    return told


def facts_of_server_info(page: Mapping[str, Any]) -> dict[str, Any]:
    """The effective arguments of an engine in development mode.

    What is null there is told only where null is a value that the argument can have.
    """
    config = page.get("vllm_config")
    if not isinstance(config, Mapping):
        return {}
    told: dict[str, Any] = {}
    for name, value in _settings(config):
        if value is not None or name in _NULLABLE:
            told[_RENAMED.get(name, f"args.{name}")] = value
    if config.get("speculative_config") is not None:
        told["args.speculative_config"] = config["speculative_config"]
    return told


def _settings(config: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for section in _SECTIONS:
        part = config.get(section)
        if isinstance(part, Mapping):
            yield from part.items()
