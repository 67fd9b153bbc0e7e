"""Reads launch records: decides what a start-up log or a deployment's own description proves.

In production an engine does not tell how it schedules; the record of its start does. These forms
are read: vLLM's log (what was given, and the configuration that came of it; of several starts the
last one), a deployment as ``kubectl get ... -o json`` or ``docker compose config --format json``
prints it, and a JSON object with ``effective_args``, as the bench writes for each of its runs. A
fact that a form does not hold is absent. Facts have the names of a record's fields, and
``kv_tokens``.
Pure: no I/O, no clock.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import orjson

from gateway.manifest_fields import SECRET, RecordError

__all__ = ["LaunchRecord", "launch_record", "literal"]

NOTHING: Mapping[Any, Any] = MappingProxyType({})
_GIVEN = "non-default args: "
_PAIR = re.compile(r"'(\w+)': ('[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,{}]+)")
_ENGINE = re.compile(r"LLM engine \(v([^)]+)\) with config: (.*)")
_VERSION = re.compile(r"\bversion (\d+\.\d+\S*)")
_CHUNKED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_KV = re.compile(r"KV cache size: ([\d,]+) tokens")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Names in the line of the engine's configuration, and the fields that they are.
_CONFIGURED = MappingProxyType(
    {
        "revision": "model.revision",
        "tokenizer_revision": "model.tokenizer_revision",
        "max_seq_len": "args.max_model_len",
        "served_model_name": "model.id",
        "model": "model.root",
        **{
            name: f"args.{name}"
            for name in (
                "dtype", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
                "quantization", "enforce_eager", "kv_cache_dtype", "seed",
                "enable_prefix_caching", "enable_chunked_prefill", "speculative_config",
            )
        },
    }
)  # fmt: skip
# What a log need not say: vLLM lists the arguments that are not at their defaults, and these
# defaults are constants of the release (engine/arg_utils.py), not of the machine.
_CONSTANT = MappingProxyType(
    {
        "0.32": {
            "long_prefill_token_threshold": 0,
            "max_num_queued_reqs": None,
            "max_num_queued_tokens": None,
            "scheduling_policy": "fcfs",
            "num_gpu_blocks_override": None,
            "kv_cache_memory_bytes": None,
            "speculative_config": None,
            "enforce_eager": False,
            "seed": 0,
        }
    }
)
# Where a JSON object of the bench, or of a deployment's own tooling, holds other fields.
_BESIDE = MappingProxyType(
    {
        "image_digest": "image.digest",
        "model_revision": "model.revision",
        "tokenizer_revision": "model.tokenizer_revision",
        "deployment_revision": "deployment.revision",
        "engine_version": "image.version",
    }
)
_WORKLOAD = "deployment.kubernetes.io/revision"


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """What is proved, and the digest of the file that proves it.

    ``started_s`` is when that process started, in seconds since 1970, where the record says so.
    """

    sha256: str
    told: Mapping[str, Any]
    started_s: float | None = None


def launch_record(content: bytes) -> LaunchRecord:
    """Read a launch record.

    Raises:
        RecordError: it shows no arguments in any of the forms.
    """
    text = content.decode(errors="replace")
    found = _json(text)
    started_s = None
    if found is None:
        told = _logged(text)
    elif isinstance(found.get("metadata"), Mapping):
        told = _kubernetes(found)
    elif isinstance(found.get("services"), Mapping):
        told = _container(found["services"].values())
    else:
        told = _described(found)
        said = found.get("started_s")
        started_s = float(said) if isinstance(said, int | float) else None
    if not any(name.startswith("args.") for name in told):
        raise RecordError(
            "shows no arguments: neither vLLM's start-up log ('non-default args: ...'), nor a "
            "Kubernetes object or a compose file in JSON, nor JSON with effective_args"
        )
    return LaunchRecord(sha256(content).hexdigest(), told, started_s)


def literal(text: str) -> Any:
    """A value as Python prints it, or the text itself."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip().removeprefix("torch.")


def _json(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


# -- vLLM's log ----------------------------------------------------------------------------


def _logged(text: str) -> dict[str, Any]:
    begin = text.rfind(_GIVEN)
    if begin < 0:
        return {}
    before, after = text[:begin], text[begin + len(_GIVEN) :]
    given = _given(after.partition("\n")[0])
    versions = _VERSION.findall(before)
    told = _version_facts(versions[-1] if versions else "", given)
    told |= _fields_of(given)
    if chunked := _CHUNKED.search(after):
        told["args.max_num_batched_tokens"] = int(chunked[1])
    if tokens := _KV.search(after):
        told["kv_tokens"] = int(tokens[1].replace(",", ""))
    if engine := _ENGINE.search(after):
        told |= {"image.version": engine[1], **_configured(engine[2])}
    return told


def _given(line: str) -> dict[str, Any]:
    whole = literal(line)
    if isinstance(whole, dict):
        return whole
    # An argument that prints as no literal leaves the others readable.
    return {name: literal(value) for name, value in _PAIR.findall(line)}


def _version_facts(version: str, given: Mapping[str, Any]) -> dict[str, Any]:
    release = ".".join(version.split(".")[:2])
    constant = _CONSTANT.get(release, {})
    told: dict[str, Any] = {f"args.{k}": v for k, v in constant.items() if k not in given}
    return {"image.version": version, **told} if version else told


def _configured(line: str) -> dict[str, Any]:
    told = {}
    for name, field in _CONFIGURED.items():
        found = re.search(rf"(?:^|[ ,]){name}=('[^']*'|[^,\s]+)", line)
        value = literal(found[1]) if found else None
        if not found or (value is None and not field.startswith("args.")):
            continue
        # Where speculation is on, the line describes an object; what was given tells more.
        if name != "speculative_config" or value is None:
            told[field] = value
    return told


def _fields_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under the names of a record's fields."""
    told: dict[str, Any] = {}
    for name, value in given.items():
        if name in SECRET or (value == "auto" and name != "kv_cache_dtype"):
            continue  # nobody is told; what came of "auto" is told elsewhere, or not at all
        if name == "served_model_name":
            told["model.id"] = value[0] if isinstance(value, list) and value else value
        elif name in {"model", "model_tag"}:
            told["model.root"] = value
        elif name in {"revision", "tokenizer_revision"}:
            told[f"model.{name}"] = value
        else:
            told[f"args.{name}"] = value
    return told


# -- descriptions --------------------------------------------------------------------------


def _described(found: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration, a captured baseline, or what somebody's own tooling writes.

    Raises:
        RecordError: the bench says that nobody confirmed it, or that the engine was simulated.
    """
    if found.get("synthetic") is True or found.get("effective_source") == "unverified":
        raise RecordError("is no evidence: the engine was simulated, or confirmed nothing of it")
    args = _table(found.get("effective_args", found.get("args")))
    unknown = set(found.get("unconfirmed") or ())
    told = _fields_of({k: v for k, v in args.items() if k not in unknown})
    for name, field in _BESIDE.items():
        value = found.get(name)
        if isinstance(value, str) and not value.startswith("unverified"):
            told[field] = value
    if not _DIGEST.fullmatch(str(told.get("image.digest"))):
        told.pop("image.digest", None)
    return told


def _kubernetes(found: Mapping[str, Any]) -> dict[str, Any]:
    spec, meta = _table(found.get("spec")), _table(found["metadata"])
    pod = _table(_table(spec.get("template")).get("spec")) or spec
    status = _table(found.get("status")).get("containerStatuses") or ()
    # What was pulled, by container: its digest counts, whatever the tag says.
    pulled = {s.get("name"): s.get("imageID") for s in status if isinstance(s, Mapping)}
    told = _container(pod.get("containers") or (), pulled)
    revision = _table(meta.get("annotations")).get(_WORKLOAD)
    revision = revision or _table(meta.get("labels")).get("pod-template-hash")
    return {**told, "deployment.revision": revision} if told and revision else told


def _container(containers: Iterable[Any], pulled: Mapping[Any, Any] = NOTHING) -> dict[str, Any]:
    """What the container that runs vLLM is given; nothing where none does."""
    engine = next((c for c in containers if isinstance(c, Mapping) and "vllm" in str(c)), None)
    if engine is None:
        return {}
    words = [w for key in ("command", "args") for w in engine.get(key) or () if isinstance(w, str)]
    told = _fields_of(dict(_arguments(words)))
    if digest := _DIGEST.search(str(pulled.get(engine.get("name")) or engine.get("image"))):
        told["image.digest"] = digest[0]
    return told


def _table(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Flags and their values: ``--name value``, ``--name=value``, ``--name``, ``--no-name``."""
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = words[at + 1] if at + 1 < len(words) else "--"
        if not equals and following.startswith("--"):
            on = not name.startswith("no-")
            yield name.removeprefix("no-").replace("-", "_"), on
        else:
            yield name.replace("-", "_"), _value(value if equals else following)


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
