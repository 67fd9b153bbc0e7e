"""The words of the gateway: outcomes, principals, flows, limits, requests for admission.

Units: ``_s`` seconds on one monotonic clock, ``_tokens`` prompt or output tokens,
``slots`` sequences an engine schedules at once. Pure: no I/O, no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "HOP_BY_HOP",
    "AdmissionMode",
    "Arm",
    "EngineLimits",
    "FlowKey",
    "FlowSpec",
    "Header",
    "Headers",
    "MisuseError",
    "Outcome",
    "Principal",
    "Refused",
    "Surface",
]

# A name and its value, as they are on the wire; names of callers come in lower case.
Header = tuple[bytes, bytes]
Headers = Sequence[Header]
# Belongs to one connection (RFC 9110, 7.6.1), its framing or its two ends, and is not passed on.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade "
    b"content-length host expect proxy-authenticate proxy-authorization".split()
)


class Outcome(StrEnum):
    """How a request ended. Closed: every member has a row in the failure contract."""

    COMPLETED = "completed"
    UNAUTHENTICATED = "unauthenticated"
    IDENTITY_UNAVAILABLE = "identity_unavailable"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    BAD_REQUEST = "bad_request"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TIMEOUT = "body_timeout"
    PROMPT_TOO_LONG = "prompt_too_long"
    PRINCIPAL_LIMIT = "principal_limit"
    INGRESS_FULL = "ingress_full"
    QUEUE_FULL = "queue_full"
    QUEUE_TOKENS_FULL = "queue_tokens_full"
    QUEUE_BYTES_FULL = "queue_bytes_full"
    PAUSED = "paused"
    PREDICTED_WAIT = "predicted_wait"
    QUEUE_EXPIRED = "queue_expired"
    NO_ENGINE = "no_engine"
    DRAINING = "draining"
    ENGINE_REJECTED = "engine_rejected"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    ENGINE_ERROR = "engine_error"
    STREAM_INTERRUPTED = "stream_interrupted"
    DRAIN_TERMINATED = "drain_terminated"
    INTERNAL_ERROR = "internal_error"
    HEADERS_TOO_LARGE = "headers_too_large"
    HEADER_TIMEOUT = "header_timeout"
    CLIENT_CANCELLED = "client_cancelled"


class Surface(StrEnum):
    """The API surfaces a caller may reach; each has its own end rule and error form."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    SCORE = "score"
    RERANK = "rerank"
    CLASSIFY = "classify"
    POOLING = "pooling"
    TRANSCRIPTIONS = "transcriptions"
    MODELS = "models"


class AdmissionMode(StrEnum):
    """What admission does on a route: decide and act, decide and only count, or neither."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    OFF = "off"


class Arm(StrEnum):
    """The side of a route a request was given at arrival."""

    STABLE = "stable"
    CANDIDATE = "candidate"


class Principal(NamedTuple):
    """Who calls, as authenticated: never as declared by the caller.

    ``models`` and ``surfaces`` are allow-lists; ``None`` allows all that are configured.
    ``max_in_flight`` caps queued plus running requests; ``None`` leaves the flow's default.
    """

    key_id: str
    service_class: str
    models: frozenset[str] | None = None
    surfaces: frozenset[Surface] | None = None
    max_in_flight: int | None = None


class FlowKey(NamedTuple):
    """One FIFO of the admission core. All parts come from configuration, so flows are bounded.

    A named tuple, as is whatever else is made anew for every request: a frozen dataclass of ten
    fields takes three times as long (1.4 us), and its hash is computed in Python.
    """

    model: str
    size_class: str
    service_class: str
    arm: Arm = Arm.STABLE

    @property
    def group(self) -> tuple[str, str, str]:
        """The part that owns queue caps and the maximum age, shared by both arms."""
        return self[:3]


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """What one (model, size class, service class) is promised and bounded by.

    Reservations are per engine. ``target_wait_s`` bounds the predicted wait of what
    is admitted; ``None`` derives it from ``ttft_limit_s``, and refuses nothing where that is
    ``None`` too. ``principal_share`` is the part of ``max_queued`` and the engines' slots together
    that one caller may hold, queued and running.
    """

    model: str
    size_class: str
    service_class: str
    weight: float = 1.0
    reserved_slots: int = 0
    reserved_prefill_tokens: int = 0
    max_queued: int = 512
    max_queued_tokens: int = 2_000_000
    max_queued_bytes: int = 64 << 20
    max_age_s: float = 60.0
    target_wait_s: float | None = None
    ttft_limit_s: float | None = None
    engine_priority: int = 0
    output_estimate_tokens: int = 256
    principal_share: float = 0.25
    principal_requests_per_minute: float | None = None
    principal_tokens_per_minute: float | None = None
    largest_prompt_tokens: int = 16_384

    @property
    def group(self) -> tuple[str, str, str]:
        """The key of the caps: (model, size class, service class)."""
        return (self.model, self.size_class, self.service_class)

    @property
    def name(self) -> str:
        """As operators write it: ``MODEL.SIZE.SERVICE``."""
        return ".".join(self.group)


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the gate lets be outstanding on one engine.

    ``slots`` is N, ``prefill_tokens`` U, ``kv_tokens`` K. ``max_prefilling`` caps the
    requests of a size class in prefill at once; a class that is absent has no cap.
    ``prefill_tokens_per_s`` is the configured start value of the learnt rate.
    """

    slots: int
    prefill_tokens: int
    kv_tokens: int
    max_prefilling: tuple[tuple[str, int], ...] = ()
    token_budget: int = 8192
    prefill_tokens_per_s: float = 39_000.0
    fcfs: bool = True


class MisuseError(Exception):
    """The program called a decision module wrongly. Nothing was changed."""


class Refused(Exception):
    """A request ends here with ``outcome``; ``message`` is for the caller and holds no secrets.

    Args:
        outcome: the row of the failure contract.
        message: one sentence a caller can act on.
        retry_after_s: seconds to wait, where the row allows a retry.
        param: the request field at fault, where one is.
        status: another of the row's statuses, where it has several.
    """

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        retry_after_s: float | None = None,
        param: str | None = None,
        *,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.retry_after_s = retry_after_s
        self.param = param
        self.status = status
