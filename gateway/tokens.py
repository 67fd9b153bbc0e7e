"""Decides what a JWT of a known issuer grants: a principal, or a refusal.

The order is fixed: shape and header, issuer, key, signature, then times, audience and grants, so
that a claim counts for nothing before its signature does. The algorithm must be one the issuer is
configured with *and* one the key's own type allows. Headers that name or carry keys (``jku``,
``x5u``, ``jwk``) are ignored, and ``crit`` is refused: no extension is understood here. Times are
compared with ``now_s``, wall seconds since 1970. No message repeats anything of a token.
Pure: no I/O, no clock.
"""

import binascii
import math
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import jwt
import orjson

from gateway.domain import Outcome, Principal, Refused, Surface
from gateway.keysets import KeySet, KeySource

__all__ = [
    "Grants",
    "Issuer",
    "NeedsKeySet",
    "Token",
    "TokenRules",
    "Verified",
    "read_token",
    "verify",
]

MAX_TOKEN_CHARS = 8192
_TYPES = frozenset(("jwt", "at+jwt", "application/at+jwt"))
_PART = re.compile(r"[A-Za-z0-9_-]+")
_SUBJECT = re.compile(r"[A-Za-z0-9._@:-]+")
_MAX_ID_CHARS = 64
_SURFACES = frozenset(surface.value for surface in Surface)
# RFC 8693, 4.2: these are texts with spaces between the values; any other text is one value.
_SPACED = frozenset(("scope", "scp"))


class NeedsKeySet(Exception):
    """The issuer's key set is not there, or a newer one may have the token's key."""

    def __init__(self, issuer: str) -> None:
        super().__init__(issuer)
        self.issuer = issuer


@dataclass(frozen=True, slots=True)
class Grants:
    """How claims become a principal.

    ``service_classes`` maps values of ``service_class_claim``; the first that a token has
    decides, ``service_class`` where it has none. ``caps`` is the in-flight cap by service class.
    A claim that is named here and lacks in a token grants nothing.
    """

    service_class: str | None = None
    service_class_claim: str | None = None
    service_classes: tuple[tuple[str, str], ...] = ()
    principal_claim: str = "sub"
    models_claim: str | None = None
    surfaces_claim: str | None = None
    caps: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token of one issuer must be like. ``name`` is the configuration's for it."""

    name: str
    issuer: str
    audiences: frozenset[str]
    algorithms: frozenset[str]
    grants: Grants
    leeway_s: float = 30.0
    max_lifetime_s: float | None = None


@dataclass(frozen=True, slots=True)
class Issuer:
    """One configured issuer. ``key_set`` is what its file held; a URL is asked later."""

    rules: TokenRules
    source: KeySource
    key_set: KeySet | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A token's parts, of which nothing is verified."""

    algorithm: str
    kid: str | None
    claims: Mapping[str, Any]
    signed: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Verified:
    """A good token: whom it authenticates, until when, and the names it can be revoked by."""

    principal: Principal
    names: frozenset[str]
    until_s: float


def _refused(message: str = "The token is not valid.") -> Refused:
    return Refused(Outcome.UNAUTHENTICATED, message)


# -- shape -------------------------------------------------------------------------------------


def read_token(text: str) -> Token:
    """The parts of a token.

    Raises:
        Refused: ``unauthenticated``; it is too long, malformed, or has a header that is not
            understood.
    """
    if len(text) > MAX_TOKEN_CHARS:
        raise _refused()
    parts = text.split(".")
    if len(parts) != 3 or not all(_PART.fullmatch(part) for part in parts):
        raise _refused()
    header = _object(parts[0])
    algorithm, kid, of_type = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or not (kid is None or isinstance(kid, str)):
        raise _refused()
    if "crit" in header or str(of_type).lower() not in _TYPES:
        raise _refused()
    signed = f"{parts[0]}.{parts[1]}".encode()
    return Token(algorithm, kid, _object(parts[1]), signed, _bytes(parts[2]))


def _object(part: str) -> dict[str, Any]:
    try:
        found = orjson.loads(_bytes(part))
    except orjson.JSONDecodeError as error:
        raise _refused() from error
    if not isinstance(found, dict):
        raise _refused()
    return found


def _bytes(part: str) -> bytes:
    try:
        return urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error as error:
        raise _refused() from error


# -- verification ------------------------------------------------------------------------------


def verify(token: Token, rules: TokenRules, key_set: KeySet | None, now_s: float) -> Verified:
    """What a token of this issuer grants at ``now_s``.

    Raises:
        Refused: ``unauthenticated``, or ``forbidden`` for a good token that grants nothing here.
        NeedsKeySet: a newer key set could change that.
    """
    if token.algorithm not in rules.algorithms:
        raise _refused()
    if key_set is None or not key_set.knows(token.kid):
        raise NeedsKeySet(rules.name)
    check = jwt.get_algorithm_by_name(token.algorithm).verify
    keys = key_set.suited(token.kid, token.algorithm)
    if not any(check(token.signed, key.key, token.signature) for key in keys):
        raise _refused()
    if token.claims.get("iss") != rules.issuer:
        raise _refused()
    until_s = _until_s(token.claims, rules, now_s)
    _check_audience(token.claims, rules)
    return _granted(token.claims, rules, until_s)


def _until_s(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> float:
    expires_s = _seconds(claims, "exp")
    begins_s, issued_s = _seconds(claims, "nbf"), _seconds(claims, "iat")
    if expires_s is None:
        raise _refused("The token lacks 'exp'.")
    if now_s >= expires_s + rules.leeway_s:
        raise _refused("The token has expired.")
    if max(begins_s or 0.0, issued_s or 0.0) > now_s + rules.leeway_s:
        raise _refused("The token is not valid yet.")
    if rules.max_lifetime_s is not None:
        if issued_s is None:
            raise _refused("The token lacks 'iat'.")
        if expires_s - issued_s > rules.max_lifetime_s:
            raise _refused("The token is valid for longer than is allowed here.")
    return expires_s + rules.leeway_s


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _refused()
    return float(value)


def _check_audience(claims: Mapping[str, Any], rules: TokenRules) -> None:
    if not rules.audiences.intersection(_texts(claims.get("aud"))):
        raise _refused("The token is not meant for this service.")


# -- grants ------------------------------------------------------------------------------------


def _granted(claims: Mapping[str, Any], rules: TokenRules, until_s: float) -> Verified:
    grants = rules.grants
    subject = _claim(claims, grants.principal_claim)
    if not isinstance(subject, str) or not subject:
        raise _refused("The token does not say who its principal is.")
    principal_id = _principal_id(rules.name, subject)
    service_class = _service_class(claims, grants)
    principal = Principal(
        principal_id,
        service_class,
        _values(claims, grants.models_claim),
        _surfaces(claims, grants),
        dict(grants.caps).get(service_class),
    )
    names = {principal_id, f"{rules.name}:{subject}"}
    if isinstance(claims.get("jti"), str):
        names.add(f"jti:{claims['jti']}")
    return Verified(principal, frozenset(names), until_s)


def _principal_id(issuer: str, subject: str) -> str:
    """An id for logs and shares. Its colon keeps it apart from the ids of keys.

    A subject that does not fit stands for itself by a hash, behind a sign no subject has.
    """
    plain = f"{issuer}:{subject}"
    if len(plain) <= _MAX_ID_CHARS and _SUBJECT.fullmatch(subject):
        return plain
    digest = blake2b(subject.encode(), digest_size=12)
    return f"{issuer}:#{digest.hexdigest()}"


def _service_class(claims: Mapping[str, Any], grants: Grants) -> str:
    has = _values(claims, grants.service_class_claim) or ()
    for value, service_class in grants.service_classes:
        if value in has:
            return service_class
    if grants.service_class is None:
        raise Refused(Outcome.FORBIDDEN, "The token grants no service class.")
    return grants.service_class


def _surfaces(claims: Mapping[str, Any], grants: Grants) -> frozenset[Surface] | None:
    named = _values(claims, grants.surfaces_claim)
    return None if named is None else frozenset(Surface(name) for name in named & _SURFACES)


def _values(claims: Mapping[str, Any], name: str | None) -> frozenset[str] | None:
    """The texts of a claim; ``None`` where no claim is configured."""
    if name is None:
        return None
    value = _claim(claims, name)
    if isinstance(value, str) and name in _SPACED:
        return frozenset(value.split())
    return frozenset(_texts(value))


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """The claim of this name, or what a dotted path leads to: issuers nest groups and roles."""
    if name in claims:
        return claims[name]
    found: object = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(item for item in value if isinstance(item, str))
    return ()
