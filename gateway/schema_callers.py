"""The shape of what says who may call: keys, and issuers of tokens.

Part of ``schema``, which has the rest of the configuration.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from gateway.values import FROZEN, Count, Digest, JwtAlgorithm, Name, Seconds, SurfaceName, Text

__all__ = ["Auth", "JwtIssuer", "KeyFile", "KeyRecord"]


class JwtIssuer(BaseModel):
    """One issuer of tokens: how its tokens are verified, and what their claims grant.

    Exactly one of ``jwks_url``, ``jwks_file`` and ``secret_file`` says where its keys are.
    """

    model_config = FROZEN
    issuer: Text
    audience: Annotated[
        tuple[Text, ...],
        BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
        Field(min_length=1, strict=False),
    ]
    algorithms: tuple[JwtAlgorithm, ...] = Field(min_length=1, strict=False)
    jwks_url: Text | None = None
    jwks_file: str | None = None
    secret_file: str | None = None
    refresh_s: Annotated[float, Field(ge=1, strict=False)] = 300.0
    max_stale_s: Annotated[float, Field(ge=1, strict=False)] = 3600.0
    leeway_s: Annotated[float, Field(ge=0, le=300, strict=False)] = 30.0
    max_lifetime_s: Seconds | None = None
    principal_claim: Text = "sub"
    service_class: str | None = None
    service_class_claim: Text | None = None
    service_classes: dict[Text, str] = Field(default_factory=dict)
    models_claim: Text | None = None
    surfaces_claim: Text | None = None
    max_in_flight: Count | None = None


class Auth(BaseModel):
    """Who may call: a file of keys, and issuers of tokens.

    Paths are relative to the configuration file.
    """

    model_config = FROZEN
    keys_file: str
    jwt: dict[Name, JwtIssuer] = Field(default_factory=dict)


class KeyRecord(BaseModel):
    """One caller's key: its digest and what it grants."""

    model_config = FROZEN
    sha256: Digest
    service_class: str
    models: tuple[str, ...] | None = Field(default=None, strict=False)
    surfaces: tuple[SurfaceName, ...] | None = Field(default=None, strict=False)
    max_in_flight: Count | None = None


class KeyFile(BaseModel):
    """The keys file: ``[key.ID]`` tables, and names of tokens that are revoked."""

    model_config = FROZEN
    revoked: tuple[Annotated[str, Field(pattern=r"^[^:]+:.+$")], ...] = Field(
        default=(), strict=False
    )
    key: dict[Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$")], KeyRecord] = Field(
        default_factory=dict
    )
