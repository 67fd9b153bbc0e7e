"""The shape of the configuration file: decides which keys exist, their ranges and defaults.

Only shape: what one key allows by itself. What they mean together is in ``consistency``.
Every unknown key is refused, so a typing error can't silently leave a default in force.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gateway.domain import AdmissionMode
from gateway.schema_callers import Auth, JwtIssuer, KeyFile, KeyRecord
from gateway.surfaces import DEFAULT_SURFACES
from gateway.values import (
    FROZEN,
    Count,
    Digest,
    EngineModel,
    ModelId,
    Name,
    Origin,
    PassedHeader,
    Port,
    Positive,
    Seconds,
    ServiceOrigin,
    Share,
    SurfaceName,
    Text,
)

__all__ = [
    "Adaptation",
    "Admin",
    "AdminToken",
    "Auth",
    "Counting",
    "Document",
    "EngineTls",
    "Flow",
    "JwtIssuer",
    "KeyFile",
    "KeyRecord",
    "Limits",
    "LimitsOverride",
    "Model",
    "Pool",
    "Probe",
    "Replicas",
    "Route",
    "Scheduling",
    "Server",
    "Service",
    "Size",
    "State",
    "Tls",
    "Tracing",
    "Upstream",
]


class Tls(BaseModel):
    """A listener's certificate; with ``client_ca_file`` callers need one too."""

    model_config = FROZEN
    cert_file: str
    key_file: str
    client_ca_file: str | None = None


class Server(BaseModel):
    """The data listener and the bounds on what it holds at once."""

    model_config = FROZEN
    host: str = "127.0.0.1"
    port: Port = 8080
    max_connections: Count = 4096
    max_connections_per_address: Count = 1024
    max_requests: Count = 2048
    max_body_bytes: Count = 8 << 20
    max_held_bytes: Count = 256 << 20
    principal_share: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.5
    header_timeout_s: Seconds = 10.0
    header_bytes: Annotated[int, Field(ge=1024)] = 64 << 10
    body_timeout_s: Seconds = 30.0
    shutdown_delay_s: Annotated[float, Field(ge=0, strict=False)] = 5.0
    drain_deadline_s: Seconds = 60.0
    early_commit_after_s: Seconds | None = None
    paused_retry_after_s: Annotated[float, Field(ge=1, le=30, strict=False)] = 5.0
    tls: Tls | None = None


class AdminToken(BaseModel):
    """One operator's access to ``/admin``: the digest of the token, never the token."""

    model_config = FROZEN
    name: Name
    role: Literal["viewer", "operator"]
    sha256: Digest


class Admin(BaseModel):
    """The listener for health, metrics and operators."""

    model_config = FROZEN
    host: str = "127.0.0.1"
    port: Port = 8081
    tokens: tuple[AdminToken, ...] = Field(default=(), strict=False)
    tls: Tls | None = None


class State(BaseModel):
    """Where route tables, the audit trail and records are kept; ``None``: in memory alone."""

    model_config = FROZEN
    directory: Text | None = None


class Tracing(BaseModel):
    """Trace context of our own, and where spans go; without an address none are made."""

    model_config = FROZEN
    enabled: bool = False
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://[!-~]+$")] | None = None
    service_name: Annotated[str, Field(pattern=r"^[ -~]{1,128}$")] = "sluicegate"
    max_waiting: Count = 2048


class Counting(BaseModel):
    """The stage that counts prompt tokens, with its own bounds."""

    model_config = FROZEN
    threads: Annotated[int, Field(ge=1, le=64)] = 2
    inline_below_bytes: Annotated[int, Field(ge=0)] = 2048
    max_requests: Count = 256
    max_bytes: Count = 64 << 20


class EngineTls(BaseModel):
    """How engines that speak TLS are verified: always, by the system's authorities or a file's."""

    model_config = FROZEN
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None


class Upstream(BaseModel):
    """How the gateway talks to engines. ``keepalive_s`` stays below vLLM's five seconds."""

    model_config = FROZEN
    connect_timeout_s: Seconds = 2.0
    first_byte_timeout_s: Seconds = 120.0
    answer_timeout_s: Seconds = 600.0
    idle_timeout_s: Seconds = 60.0
    total_timeout_s: Seconds = 900.0
    keepalive_s: Annotated[float, Field(gt=0, lt=5, strict=False)] = 4.0
    retry_budget: Share = 0.1
    pass_headers: tuple[PassedHeader, ...] = Field(default=(), strict=False)
    force_usage: bool = False
    breaker_failures: Count = 5
    breaker_window_s: Seconds = 10.0
    breaker_open_s: Seconds = 5.0
    tls: EngineTls = EngineTls()


class Probe(BaseModel):
    """How often engines are asked for their health, and when silence counts as down."""

    model_config = FROZEN
    interval_s: Seconds = 1.0
    timeout_s: Seconds = 2.0
    failures: Count = 3
    stall_s: Seconds = 10.0


class Adaptation(BaseModel):
    """Whether limits follow what engines say of their load; they never rise above [limits]."""

    model_config = FROZEN
    enabled: bool = False


class Replicas(BaseModel):
    """How many gateways share the engines, and which of them this is; ``None``: the host says."""

    model_config = FROZEN
    count: Annotated[int, Field(ge=1, le=64)] = 1
    index: Annotated[int, Field(ge=0)] | None = None


class Scheduling(BaseModel):
    """Surplus round robin: cost units per turn and weight, and the cost of an output token."""

    model_config = FROZEN
    quantum: Count = 1024
    beta: Annotated[float, Field(ge=0, strict=False)] = 0.3


class Model(BaseModel):
    """One served model: its public name is the table's name."""

    model_config = FROZEN
    engine_model: EngineModel | None = None
    aliases: tuple[ModelId, ...] = Field(default=(), strict=False)
    tokenizer: str
    chat_template: str
    content_format: Literal["auto", "string", "openai"] = "auto"
    chat_template_kwargs: tuple[str, ...] = Field(
        default=("enable_thinking", "thinking", "reasoning_effort"), strict=False
    )
    max_model_len: Count
    surfaces: tuple[SurfaceName, ...] = Field(
        default=tuple(sorted(DEFAULT_SURFACES)), min_length=1, strict=False
    )
    loras: dict[ModelId, EngineModel] = Field(default_factory=dict)
    image_tokens: Count | None = None
    audio_tokens: Count | None = None
    transcription_tokens: Count | None = None


class Size(BaseModel):
    """One size class: its bound, its latency contract, and defaults for its flows."""

    model_config = FROZEN
    max_prompt_tokens: Count
    ttft_limit_s: Seconds
    max_stall_s: Seconds
    e2e_limit_s: Seconds
    max_prefilling_per_engine: Count | None = None
    output_estimate_tokens: Count = 256
    weight: Positive = 1.0


class Service(BaseModel):
    """One service class, which keys are granted. A lower priority runs earlier in the engine."""

    model_config = FROZEN
    weight: Positive = 1.0
    engine_priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    max_in_flight: Count | None = None

    def in_flight_cap(self, own: int | None) -> int | None:
        """What a caller may have in flight whose own cap is ``own``: the lesser of both."""
        return min((cap for cap in (own, self.max_in_flight) if cap is not None), default=None)


class Flow(BaseModel):
    """What one (size class, service class) gets; weight and priority left out are the class's."""

    model_config = FROZEN
    weight: Positive | None = None
    reserved_slots: Annotated[int, Field(ge=0)] = 0
    reserved_prefill_tokens: Annotated[int, Field(ge=0)] = 0
    max_queued: Count = 512
    max_queued_tokens: Count = 2_000_000
    max_queued_bytes: Count = 64 << 20
    max_age_s: Seconds = 60.0
    target_wait_s: Seconds | None = None
    predict: bool = True
    engine_priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    principal_share: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.25
    principal_requests_per_minute: Positive | None = None
    principal_tokens_per_minute: Positive | None = None


class Limits(BaseModel):
    """What may be outstanding on one engine. ``policy`` is the engine's scheduling policy."""

    model_config = FROZEN
    slots: Count
    prefill_tokens: Count
    kv_fraction: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.9
    kv_tokens: Count
    token_budget: Count
    prefill_tokens_per_s: Positive = 39_000.0
    policy: Literal["fcfs", "priority"] = "fcfs"


class LimitsOverride(BaseModel):
    """The limits of one pool's engines where they differ from ``[limits]``."""

    model_config = FROZEN
    slots: Count | None = None
    prefill_tokens: Count | None = None
    kv_fraction: Annotated[float, Field(gt=0, le=1, strict=False)] | None = None
    kv_tokens: Count | None = None
    token_budget: Count | None = None
    prefill_tokens_per_s: Positive | None = None
    policy: Literal["fcfs", "priority"] | None = None


class Pool(BaseModel):
    """Engines that serve the same model in the same way: named, or the addresses of a name.

    ``models`` are public ones; ``None``: those of the routes that lead there. ``model_revision``
    and ``data_region`` are pins: no move of a route leads to a pool whose pins differ.
    """

    model_config = FROZEN
    engines: tuple[Origin, ...] = Field(default=(), strict=False)
    dns: ServiceOrigin | None = None
    dns_interval_s: Seconds = 5.0
    max_engines: Annotated[int, Field(ge=1, le=256)] | None = None
    tls: EngineTls | None = None
    models: tuple[ModelId, ...] | None = Field(default=None, min_length=1, strict=False)
    model_revision: Text | None = None
    data_region: Text | None = None
    limits: LimitsOverride = LimitsOverride()

    @property
    def engine_bound(self) -> int:
        """The most engines it may come to have while the gateway runs."""
        return max(len(self.engines), self.max_engines or (32 if self.dns else 1))


class Route(BaseModel):
    """Where one model's prompts of one size class go."""

    model_config = FROZEN
    model: str
    size: str
    pool: str
    candidate_pool: str | None = None
    candidate_weight: Share = 0.0
    admission: AdmissionMode = Field(default=AdmissionMode.ENFORCE, strict=False)


class Document(BaseModel):
    """The whole configuration file."""

    model_config = FROZEN
    server: Server = Server()
    admin: Admin = Admin()
    auth: Auth
    counting: Counting = Counting()
    upstream: Upstream = Upstream()
    probe: Probe = Probe()
    adaptation: Adaptation = Adaptation()
    replicas: Replicas = Replicas()
    scheduling: Scheduling = Scheduling()
    tracing: Tracing = Tracing()
    state: State = State()
    isolation: Literal["none", "required"] = "none"
    model: dict[ModelId, Model] = Field(min_length=1)
    size: dict[Name, Size] = Field(min_length=1)
    service: dict[Name, Service] = Field(min_length=1)
    flow: dict[str, dict[str, Flow]] = Field(default_factory=dict)
    limits: Limits
    pool: dict[Name, Pool] = Field(min_length=1)
    route: tuple[Route, ...] = Field(min_length=1, strict=False)
