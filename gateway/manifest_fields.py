"""Decides which fields a rollback record has, their kinds, and which of them are missing.

A record is complete or it is none: what is not written down comes back as a new default after a
restart, and a restart with new defaults is no rollback. So arguments have no defaults here, not
even null: cache and speculation are pinned by saying "off" as much as by saying "on". Arguments
beyond those listed are kept as they are. Pure: no I/O, no clock.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gateway.thresholds import from_json
from gateway.values import FROZEN, Count, Digest, EngineModel, Name, Positive, Seconds, Share, Text

__all__ = ["SECRET", "SECTIONS", "RecordError", "Scalar", "flat", "nested", "shaped"]

Scalar = Any
SECRET = frozenset({"api_key", "hf_token"})
ARGUMENT = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,127}")
# A moving name ("main", "latest") pins nothing: a commit, or a digest with or without its file.
Revision = Annotated[
    str, Field(pattern=r"^([0-9a-f]{40,64}|sha256:[0-9a-f]{64}|[!-~]{1,128} sha256:[0-9a-f]{64})$")
]
ImageDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
RouteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}/[a-z0-9-]{1,32}$")]
Whole = Annotated[int, Field(ge=0)]
Bound = Annotated[float, Field(ge=0, strict=False)]


class RecordError(ValueError):
    """A rollback record can't be made or used; the message names what is at fault."""


class Image(BaseModel):
    """What runs: the image, and what ``/version`` answers."""

    model_config = FROZEN
    digest: ImageDigest
    version: Text


class Model(BaseModel):
    """What is served: as ``/v1/models`` names it, the revisions, and the tokenizer's own probe."""

    model_config = FROZEN
    id: EngineModel
    root: EngineModel
    revision: Revision
    tokenizer_revision: Revision
    tokenizer_probe: Digest


class Deployment(BaseModel):
    """Which roll-out of the orchestrator it was."""

    model_config = FROZEN
    revision: Text


class HealthProbe(BaseModel):
    """How the gateway finds out that an engine is well."""

    model_config = FROZEN
    path: Annotated[str, Field(pattern=r"^/[!-~]{0,255}$")]
    interval_s: Seconds
    timeout_s: Seconds
    failures: Count
    stall_s: Seconds


class Capacity(BaseModel):
    """What is kept for it: engines, and on each of them the gateway's limits and the KV cache."""

    model_config = FROZEN
    engines: Count
    slots: Count
    prefill_tokens: Count
    kv_tokens: Count


class Threshold(BaseModel):
    """When a canary ends (``thresholds``): past a bound, or so much worse than the stable side."""

    model_config = FROZEN
    max: Bound | None = None
    above_stable: Bound | None = None
    min: Bound | None = None
    below_stable: Bound | None = None
    window_s: Seconds
    min_count: Count


class Abort(BaseModel):
    """The thresholds that end a canary on it, each with its window and least count."""

    model_config = FROZEN
    error_rate: Threshold
    ttft_attainment: Threshold
    stall_attainment: Threshold
    refusals: Threshold
    oldest_age_s: Threshold

    @model_validator(mode="after")
    def _can_be_watched(self) -> "Abort":
        from_json([{"metric": name, **_given(rule)} for name, rule in self])
        return self


class Args(BaseModel):
    """The engine's effective arguments, named as ``vllm serve`` names them, with underscores."""

    model_config = ConfigDict(**{**FROZEN, "extra": "allow"})
    max_num_batched_tokens: Count
    max_num_seqs: Count
    scheduling_policy: Literal["fcfs", "priority"]
    long_prefill_token_threshold: Whole
    enable_chunked_prefill: bool
    max_num_queued_reqs: Whole | None
    max_num_queued_tokens: Whole | None
    max_model_len: Count
    dtype: Text
    quantization: Text | None
    enforce_eager: bool
    seed: int
    tensor_parallel_size: Count
    pipeline_parallel_size: Count
    data_parallel_size: Count
    block_size: Count
    kv_cache_dtype: Text
    num_gpu_blocks_override: Count | None
    gpu_memory_utilization: Share | None
    kv_cache_memory_bytes: Count | None
    enable_prefix_caching: bool
    speculative_config: dict[str, Any] | None

    @model_validator(mode="after")
    def _is_fit_to_print(self) -> "Args":
        """Names are printed for a shell (``manifest show --flags``), secrets nowhere."""
        for name in self.model_extra or {}:
            if name in SECRET:
                raise ValueError(f"{name} is a secret and has no place in a record")
            if not ARGUMENT.fullmatch(name):
                raise ValueError(f"{name[:80]!r} is no argument's name (letters, digits and _)")
        return self


class Fields(BaseModel):
    """All fields of a record."""

    model_config = FROZEN
    owner: Text
    drain_deadline_s: Positive
    image: Image
    model: Model
    deployment: Deployment
    route: dict[RouteName, Name] = Field(min_length=1)
    health_probe: HealthProbe
    capacity: Capacity
    abort: Abort
    args: Args


SECTIONS = tuple(name for name in Fields.model_fields if name not in {"owner", "drain_deadline_s"})


def _given(rule: Threshold) -> dict[str, Any]:
    return {key: value for key, value in rule if value is not None}


def flat(tree: Mapping[str, Any]) -> dict[str, Scalar]:
    """The fields by name: ``owner``, ``image.digest``, ``args.seed``, ``route.demo/short``.

    A section's value is one field, whatever it holds. TOML has no null: ``"null"`` among the
    arguments is one.

    Raises:
        RecordError: a section is no table, or nothing that a record has.
    """
    found: dict[str, Scalar] = {}
    for name, value in tree.items():
        if name not in SECTIONS:
            found[name] = value
            continue
        if not isinstance(value, Mapping):
            raise RecordError(f"{name}: must be a table")
        for key, inner in value.items():
            if f"{name}.{key}" in tree:
                raise RecordError(f"{name}.{key}: stands there twice")
            null = name == "args" and inner == "null"
            found[f"{name}.{key}"] = None if null else inner
    return found


def nested(fields: Mapping[str, Scalar]) -> dict[str, Any]:
    """The other way round: the sections as tables."""
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        section, dot, key = name.partition(".")
        if dot and section in SECTIONS:
            tree.setdefault(section, {})[key] = value
        else:
            tree[name] = value
    return tree


def shaped(fields: Mapping[str, Scalar]) -> None:
    """Check that fields are a whole record, each of its kind.

    Raises:
        RecordError: naming every field that is missing, and everything that is wrong.
    """
    try:
        Fields.model_validate(nested(fields))
    except ValidationError as error:
        raise RecordError("; ".join(_faults(error))) from error


def _faults(error: ValidationError) -> Iterable[str]:
    """Missing fields first; no value is repeated."""
    rows = error.errors(include_input=False, include_url=False)
    missing = [name for row in rows if row["type"] == "missing" for name in _missing(row["loc"])]
    if missing:
        one = len(missing) == 1
        yield f"{len(missing)} field{' is' if one else 's are'} missing: {', '.join(missing)}"
    for row in rows:
        if row["type"] != "missing":
            yield f"{_dotted(row['loc'])}: {_reason(row['type'], row['msg'])}"


def _missing(location: tuple[int | str, ...]) -> list[str]:
    """A section that is not there lacks all its fields."""
    shape = Fields.model_fields[str(location[0])].annotation
    if len(location) == 1 and isinstance(shape, type) and issubclass(shape, BaseModel):
        return [f"{location[0]}.{key}" for key in shape.model_fields]
    return [_dotted(location)]


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location if part != "[key]")


def _reason(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "unknown field"
    said = message.removeprefix("Value error, ").replace("Input ", "")
    return said[0].lower() + said[1:]
