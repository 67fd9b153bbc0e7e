"""The shape of the configuration file: decides which keys exist, their ranges and defaults.

Only shape: what one key allows by itself. What they mean together is in ``consistency``.
Every unknown key is refused, so a typing error can't silently leave a default in force.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.domain import AdmissionMode, Surface

__all__ = [
    "Admin",
    "AdminToken",
    "Auth",
    "Counting",
    "Document",
    "Flow",
    "KeyFile",
    "KeyRecord",
    "Limits",
    "LimitsOverride",
    "Model",
    "Pool",
    "Probe",
    "Route",
    "Scheduling",
    "Server",
    "Service",
    "Size",
    "Upstream",
]

_FROZEN = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
ModelId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
# vLLM serves a local folder under its path.
EngineModel = Annotated[str, Field(pattern=r"^[ -~]{1,256}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1)]
SurfaceName = Annotated[Surface, Field(strict=False)]
Seconds = Annotated[float, Field(gt=0, strict=False)]
Share = Annotated[float, Field(ge=0, le=1, strict=False)]
Positive = Annotated[float, Field(gt=0, strict=False)]
Origin = Annotated[
    str, Field(pattern=r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?$")
]


class Server(BaseModel):
    """The data listener and the bounds on what it holds at once."""

    model_config = _FROZEN
    host: str = "127.0.0.1"
    port: Port = 8080
    max_connections: Count = 4096
    max_requests: Count = 2048
    max_body_bytes: Count = 8 << 20
    max_held_bytes: Count = 256 << 20
    principal_share: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.5
    header_timeout_s: Seconds = 10.0
    header_bytes: Annotated[int, Field(ge=1024)] = 64 << 10
    body_timeout_s: Seconds = 30.0
    shutdown_delay_s: Annotated[float, Field(ge=0, strict=False)] = 5.0
    drain_deadline_s: Seconds = 60.0


class AdminToken(BaseModel):
    """One operator's access to ``/admin``: the digest of the token, never the token."""

    model_config = _FROZEN
    name: Name
    role: Literal["viewer", "operator"]
    sha256: Digest


class Admin(BaseModel):
    """The listener for health, metrics and operators."""

    model_config = _FROZEN
    host: str = "127.0.0.1"
    port: Port = 8081
    tokens: tuple[AdminToken, ...] = Field(default=(), strict=False)


class Auth(BaseModel):
    """Where the callers' keys are. The path is relative to the configuration file."""

    model_config = _FROZEN
    keys_file: str


class Counting(BaseModel):
    """The stage that counts prompt tokens, with its own bounds."""

    model_config = _FROZEN
    threads: Annotated[int, Field(ge=1, le=64)] = 2
    inline_below_bytes: Annotated[int, Field(ge=0)] = 2048
    max_requests: Count = 256
    max_bytes: Count = 64 << 20


class Upstream(BaseModel):
    """How the gateway talks to engines. ``keepalive_s`` stays below vLLM's five seconds."""

    model_config = _FROZEN
    connect_timeout_s: Seconds = 2.0
    first_byte_timeout_s: Seconds = 120.0
    answer_timeout_s: Seconds = 600.0
    idle_timeout_s: Seconds = 60.0
    total_timeout_s: Seconds = 900.0
    keepalive_s: Annotated[float, Field(gt=0, lt=5, strict=False)] = 4.0
    retry_budget: Share = 0.1


class Probe(BaseModel):
    """How often engines are asked for their health, and when silence counts as down."""

    model_config = _FROZEN
    interval_s: Seconds = 1.0
    timeout_s: Seconds = 2.0
    failures: Count = 3


class Scheduling(BaseModel):
    """Surplus round robin: cost units per turn and weight, and the cost of an output token."""

    model_config = _FROZEN
    quantum: Count = 1024
    beta: Annotated[float, Field(ge=0, strict=False)] = 0.3


class Model(BaseModel):
    """One served model: its public name is the table's name."""

    model_config = _FROZEN
    engine_model: EngineModel | None = None
    aliases: tuple[ModelId, ...] = Field(default=(), strict=False)
    tokenizer: str
    chat_template: str
    content_format: Literal["auto", "string", "openai"] = "auto"
    chat_template_kwargs: tuple[str, ...] = Field(
        default=("enable_thinking", "thinking", "reasoning_effort"), strict=False
    )
    max_model_len: Count


class Size(BaseModel):
    """One size class: its bound, its latency contract, and defaults for its flows."""

    model_config = _FROZEN
    max_prompt_tokens: Count
    ttft_limit_s: Seconds
    max_stall_s: Seconds
    e2e_limit_s: Seconds
    max_prefilling_per_engine: Count | None = None
    output_estimate_tokens: Count = 256
    weight: Positive = 1.0


class Service(BaseModel):
    """One service class, which keys are granted. A lower priority runs earlier in the engine."""

    model_config = _FROZEN
    weight: Positive = 1.0
    engine_priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    max_in_flight: Count | None = None


class Flow(BaseModel):
    """What one (size class, service class) gets; a key left out takes the class's default."""

    model_config = _FROZEN
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

    model_config = _FROZEN
    slots: Count
    prefill_tokens: Count
    kv_fraction: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.9
    kv_tokens: Count
    token_budget: Count
    prefill_tokens_per_s: Positive = 39_000.0
    policy: Literal["fcfs", "priority"] = "fcfs"


class LimitsOverride(BaseModel):
    """The limits of one pool's engines where they differ from ``[limits]``."""

    model_config = _FROZEN
    slots: Count | None = None
    prefill_tokens: Count | None = None
    kv_fraction: Annotated[float, Field(gt=0, le=1, strict=False)] | None = None
    kv_tokens: Count | None = None
    token_budget: Count | None = None
    prefill_tokens_per_s: Positive | None = None
    policy: Literal["fcfs", "priority"] | None = None


class Pool(BaseModel):
    """Engines that serve the same model in the same way."""

    model_config = _FROZEN
    engines: tuple[Origin, ...] = Field(min_length=1, strict=False)
    limits: LimitsOverride = LimitsOverride()


class Route(BaseModel):
    """Where one model's prompts of one size class go."""

    model_config = _FROZEN
    model: str
    size: str
    pool: str
    candidate_pool: str | None = None
    candidate_weight: Share = 0.0
    admission: AdmissionMode = Field(default=AdmissionMode.ENFORCE, strict=False)


class Document(BaseModel):
    """The whole configuration file."""

    model_config = _FROZEN
    server: Server = Server()
    admin: Admin = Admin()
    auth: Auth
    counting: Counting = Counting()
    upstream: Upstream = Upstream()
    probe: Probe = Probe()
    scheduling: Scheduling = Scheduling()
    isolation: Literal["none", "required"] = "none"
    model: dict[ModelId, Model] = Field(min_length=1)
    size: dict[Name, Size] = Field(min_length=1)
    service: dict[Name, Service] = Field(min_length=1)
    flow: dict[str, dict[str, Flow]] = Field(default_factory=dict)
    limits: Limits
    pool: dict[Name, Pool] = Field(min_length=1)
    route: tuple[Route, ...] = Field(min_length=1, strict=False)


class KeyRecord(BaseModel):
    """One caller's key: its digest and what it grants."""

    model_config = _FROZEN
    sha256: Digest
    service_class: str
    models: tuple[str, ...] | None = Field(default=None, strict=False)
    surfaces: tuple[SurfaceName, ...] | None = Field(default=None, strict=False)
    max_in_flight: Count | None = None


class KeyFile(BaseModel):
    """The keys file: ``[key.ID]`` tables."""

    model_config = _FROZEN
    key: dict[Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$")], KeyRecord] = Field(
        default_factory=dict
    )
