"""Decides which keys of an issuer may verify which tokens.

A key set comes from a JWKS document (RFC 7517) or is one shared secret. Each key keeps the
algorithms it may be used with, from its own type: a public key can never be taken for a shared
secret, whatever a token says. Of a JWKS document only public parts are read; keys that are not for
signatures, too weak or of another type are passed over. Pure: no I/O, no clock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from jwt import InvalidKeyError
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

__all__ = [
    "SECRET_BYTES",
    "KeySet",
    "KeySetError",
    "KeySource",
    "VerifyKey",
    "parse_jwks",
    "shared_secret",
]

MAX_KEYS = 256
# Below 2048 bits RFC 7518, 3.3 forbids; a longer key only makes each check slower.
RSA_BITS = range(2048, 8193)
# RFC 7518, 3.2: a secret is at least as long as the hash.
SECRET_BYTES: Mapping[str, int] = MappingProxyType({"HS256": 32, "HS384": 48, "HS512": 64})
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EC = MappingProxyType({"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"})


class KeySetError(Exception):
    """Keys can't be used; the message holds nothing of them."""


@dataclass(frozen=True, slots=True)
class VerifyKey:
    """One key. ``algorithms`` are all it may be used with."""

    kid: str | None
    algorithms: frozenset[str]
    key: Any = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class KeySet:
    """All keys of an issuer. ``shared``: one secret, which key ids do not select.

    ``digest`` identifies what it was made from.
    """

    keys: tuple[VerifyKey, ...]
    digest: bytes
    shared: bool = False

    def suited(self, kid: str | None, algorithm: str) -> list[VerifyKey]:
        """The keys a token may have been signed with: empty if its key id is unknown.

        A token without a key id is tried only where one key suits: which key is meant is not
        guessed.
        """
        suited = [key for key in self.keys if algorithm in key.algorithms]
        if self.shared:
            return suited
        if kid is None:
            return suited if len(suited) == 1 else []
        return [key for key in suited if key.kid == kid]

    def knows(self, kid: str | None) -> bool:
        """Whether a newer set would not tell more of this key id."""
        return self.shared or kid is None or any(key.kid == kid for key in self.keys)


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where an issuer's keys come from; neither place: they never change.

    Asked every ``refresh_s``; an answer is used for ``max_stale_s`` at most.
    """

    url: str = ""
    path: str = ""
    refresh_s: float = 300.0
    max_stale_s: float = 3600.0


def shared_secret(secret: bytes, algorithms: frozenset[str]) -> KeySet:
    """The key set of one shared secret.

    Raises:
        KeySetError: it is shorter than an algorithm demands, or is a public key.
    """
    needed_bytes = max(SECRET_BYTES[name] for name in algorithms)
    if len(secret) < needed_bytes:
        raise KeySetError(
            f"a secret for {', '.join(sorted(algorithms))} needs {needed_bytes} bytes,"
            f" got {len(secret)}"
        )
    try:
        HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(secret)
    except InvalidKeyError as error:
        raise KeySetError("holds a key pair's key or a certificate, not a secret") from error
    return KeySet((VerifyKey(None, algorithms, secret),), sha256(secret).digest(), shared=True)


def parse_jwks(document: bytes) -> KeySet:
    """The key set of a JWKS document.

    Raises:
        KeySetError: it is none, or has no key that can verify a signature.
    """
    try:
        found = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise KeySetError("not JSON") from error
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise KeySetError("not a JWKS document: it has no list 'keys'")
    if len(listed) > MAX_KEYS:
        raise KeySetError(f"more than {MAX_KEYS} keys")
    keys = tuple(key for key in map(_verify_key, listed) if key is not None)
    if not keys:
        raise KeySetError("has no key that can verify a signature")
    return KeySet(keys, sha256(document).digest())


def _verify_key(jwk: object) -> VerifyKey | None:
    if not isinstance(jwk, dict) or not _for_signatures(jwk):
        return None
    kid, of_type = jwk.get("kid"), jwk.get("kty")
    read = _READERS.get(of_type) if isinstance(of_type, str) else None
    if read is None or not (kid is None or isinstance(kid, str)):
        return None
    try:
        names, key = read(jwk)
    except (InvalidKeyError, UnsupportedAlgorithm, ValueError):
        return None
    stated = jwk.get("alg")
    allowed = frozenset(names) if stated is None else frozenset(names) & {str(stated)}
    return VerifyKey(kid, allowed, key) if allowed else None


def _for_signatures(jwk: dict[str, Any]) -> bool:
    operations = jwk.get("key_ops", ["verify"])
    return (
        jwk.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations
    )


def _public(jwk: dict[str, Any], *names: str) -> dict[str, Any]:
    """The named members and no others: a private part that slipped in is not read."""
    if not all(isinstance(jwk.get(name), str) for name in names):
        raise InvalidKeyError
    return {name: jwk[name] for name in ("kty", *names)}


def _rsa(jwk: dict[str, Any]) -> tuple[tuple[str, ...], Any]:
    key = RSAAlgorithm.from_jwk(_public(jwk, "n", "e"))
    if key.key_size not in RSA_BITS:
        raise InvalidKeyError
    return _RSA, key


def _ec(jwk: dict[str, Any]) -> tuple[tuple[str, ...], Any]:
    public = _public(jwk, "crv", "x", "y")
    if public["crv"] not in _EC:
        raise InvalidKeyError
    return (_EC[public["crv"]],), ECAlgorithm.from_jwk(public)


def _okp(jwk: dict[str, Any]) -> tuple[tuple[str, ...], Any]:
    public = _public(jwk, "crv", "x")
    if public["crv"] != "Ed25519":
        raise InvalidKeyError
    return ("EdDSA",), OKPAlgorithm.from_jwk(public)


_Reader = Callable[[dict[str, Any]], tuple[tuple[str, ...], Any]]
_READERS: Mapping[str, _Reader] = MappingProxyType({"RSA": _rsa, "EC": _ec, "OKP": _okp})
