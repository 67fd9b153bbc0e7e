"""Defines the words of a measurement and their canonical encoding.

Times are integer microseconds from the run's start on the monotonic clock; the planned offset
lies on the same axis. A field that was not measured is absent from the encoded line, never zero:
zero is a measurement. Canonical JSON has sorted keys and floats of nine significant digits, so
that another machine recomputes the same bytes. Pure: no I/O, no clock.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import orjson

__all__ = [
    "SERVICE_CLASS",
    "BenchError",
    "Outcome",
    "Prompt",
    "RequestRecord",
    "RunConfig",
    "canonical",
    "decode_requests",
    "digest",
    "encode_lines",
    "encode_record",
    "encode_requests",
    "nine_digits",
    "strict_json",
]

# Which service class a size class calls as, where the configuration has it.
SERVICE_CLASS = {"short": "interactive", "long": "batch"}

Json = dict[str, Any]


class BenchError(Exception):
    """A bench input or environment is at fault; the message names it and the reason."""


class Outcome(StrEnum):
    """What became of an offered request: exactly one of these."""

    OK = "ok"
    INVALID_RESPONSE = "invalid_response"
    REJECTED = "rejected"
    EXPIRED = "expired"
    TIMEOUT = "timeout"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    UNFINISHED = "unfinished"
    NOT_SENT = "not_sent"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One frozen prompt. The text stays in the corpus; all other files hold its digest.

    Prompts of one `session` begin alike, on purpose.
    """

    size_class: str
    prompt_tokens: int
    output_tokens: int
    text: str = field(repr=False)
    sha256: str
    validator: Mapping[str, Any] | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One offered request. `None` means not measured and is left out of the encoded line."""

    seq: int
    size_class: str
    phase: str
    planned_us: int
    outcome: Outcome
    prompt_tokens_planned: int
    completion_tokens_planned: int
    prompt_sha256: str
    outcome_code: str | None = None
    status: int | None = None
    connect_wait_us: int | None = None
    dispatched_us: int | None = None
    first_byte_us: int | None = None
    first_event_us: int | None = None
    last_byte_us: int | None = None
    event_us: tuple[int, ...] | None = None
    max_stall_us: int | None = None
    finish_reason: str | None = None
    prompt_tokens_reported: int | None = None
    completion_tokens_reported: int | None = None
    cached_tokens: int | None = None
    queue_ms: float | None = None
    response_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What a run was, apart from what it measured. Every field but `details` is always there."""

    run_id: str
    cell_id: str
    repeat: int
    trace_sha256: str
    corpus_sha256: str
    image_digest: str
    model_revision: str
    tokenizer_revision: str
    hardware_id: str
    effective_args: Mapping[str, Any]
    warmup_seconds: float
    observation_seconds: float
    drain_deadline_seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> Json:
        """Return the configuration as one flat object, with `details` beside the fields."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "details"}
        return {**self.details, **own}


def nine_digits(value: Any) -> Any:
    """Round every float in a JSON value to nine significant digits.

    Raises:
        BenchError: a float is not finite; unbounded is written as null by its owner.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BenchError(f"a value of {value} cannot be recorded; write null for unbounded")
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {str(k): nine_digits(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [nine_digits(v) for v in value]
    return value


def canonical(value: Any) -> bytes:
    """Encode a JSON value canonically: sorted keys, nine digits, one closing newline."""
    return orjson.dumps(nine_digits(value), option=orjson.OPT_SORT_KEYS) + b"\n"


def digest(data: bytes) -> str:
    """Return the SHA-256 of the bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def strict_json(data: bytes, name: str) -> Any:
    """Decode JSON.

    Raises:
        BenchError: not JSON; the message names the input.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BenchError(f"{name}: not valid JSON ({error})") from error


def encode_record(record: RequestRecord) -> bytes:
    """Encode one request's line."""
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return canonical({k: v for k, v in values.items() if v is not None})


def encode_requests(header: Mapping[str, Any], records: Iterable[RequestRecord]) -> bytes:
    """Encode a run's requests: a first line that names the inputs, then one line per request."""
    return encode_lines(header, map(encode_record, records))


def encode_lines(header: Mapping[str, Any], lines: Iterable[bytes]) -> bytes:
    """Put the header before lines that are encoded already, as `encode_requests` does."""
    return canonical({"kind": "requests", **header}) + b"".join(lines)


def _record(line: bytes, name: str, number: int) -> RequestRecord:
    row = strict_json(line, f"{name} line {number}")
    try:
        row["outcome"] = Outcome(row["outcome"])
        if "event_us" in row:
            row["event_us"] = tuple(row["event_us"])
        return RequestRecord(**row)
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"{name} line {number}: not a request record ({error})") from error


def decode_requests(data: bytes, name: str) -> tuple[Json, Sequence[RequestRecord]]:
    """Decode what `encode_requests` wrote: the header and the records, in file order.

    Raises:
        BenchError: the header or a line is malformed; the message names file and line.
    """
    lines = data.splitlines()
    header = strict_json(lines[0], f"{name} line 1") if lines else None
    if not isinstance(header, dict) or header.get("kind") != "requests":
        raise BenchError(f"{name} line 1: not the header of a requests file")
    return header, [_record(line, name, n) for n, line in enumerate(lines[1:], start=2)]
