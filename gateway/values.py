"""The kinds of values that a configuration key may have: names, counts, addresses, durations.

Pure: no I/O, no clock.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from gateway.domain import HOP_BY_HOP, Surface

__all__ = [
    "FROZEN",
    "Count",
    "Digest",
    "EngineModel",
    "JwtAlgorithm",
    "ModelId",
    "Name",
    "Origin",
    "PassedHeader",
    "Port",
    "Positive",
    "Seconds",
    "ServiceOrigin",
    "Share",
    "SurfaceName",
    "Text",
]

# The gateway's own words, what client libraries take for its advice, and how a body is written.
_OWN = frozenset(
    (
        *("x-request-id", "x-should-retry", "retry-after", "retry-after-ms"),
        *("cache-control", "set-cookie"),
    )
)
_OWN_KINDS = ("x-sluicegate-", "x-accel-", "content-", "transfer-")


def _passable(name: str) -> str:
    if name in _OWN or name.startswith(_OWN_KINDS) or name.encode() in HOP_BY_HOP:
        raise ValueError(f"{name} is not an engine's to say")
    return name


FROZEN = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
ModelId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
# vLLM serves a local folder under its path.
EngineModel = Annotated[str, Field(pattern=r"^[ -~]{1,256}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, Field(min_length=1, max_length=512)]
JwtAlgorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA",
]  # fmt: skip
Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1)]
PassedHeader = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$"), AfterValidator(_passable)]
SurfaceName = Annotated[Surface, Field(strict=False)]
Seconds = Annotated[float, Field(gt=0, strict=False)]
Share = Annotated[float, Field(ge=0, le=1, strict=False)]
Positive = Annotated[float, Field(gt=0, strict=False)]
Origin = Annotated[
    str,
    Field(
        pattern=r"^(https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?|unix:/[!-~]{1,100})$"
    ),
]
ServiceOrigin = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9._-]+:[0-9]{1,5}$")]
