"""Decides who calls: the headers of a request and a keyring give a principal or a refusal.

A key reads ``sg_<id>_<secret>``. The id finds a record, the record holds only the SHA-256 of the
whole key, and one constant-time comparison of digests decides. An unknown id is compared with a
digest nothing hashes to, so that it takes the same work as a wrong secret. A request with several
credentials is refused: which of them counts must not depend on who reads it.
A bearer credential of three parts with dots between them is a token (see ``tokens``), never a key.
Pure: no I/O, no clock.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from gateway.domain import Outcome, Principal, Refused, Surface
from gateway.sent import Sent

__all__ = ["KeyEntry", "Keyring", "by_key", "credential", "new_key", "presented"]

MIN_SECRET_BYTES = 16
_MAX_KEY_CHARS = 256
_ID = re.compile(r"[a-z0-9-]{1,32}")
_KEY = re.compile(rf"sg_({_ID.pattern})_[A-Za-z0-9_-]{{22,}}")
_NO_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """What is kept of one key: the SHA-256 digest of the whole key, and what it grants."""

    digest: bytes
    service_class: str
    models: frozenset[str] | None = None
    surfaces: frozenset[Surface] | None = None
    max_in_flight: int | None = None

    def principal(self, key_id: str) -> Principal:
        """The principal this record authenticates."""
        return Principal(key_id, self.service_class, self.models, self.surfaces, self.max_in_flight)


@dataclass(frozen=True, slots=True)
class Keyring:
    """All accepted keys by id. Immutable: a reload replaces it, which is also revocation.

    ``revoked`` names tokens that are refused although they are good: ``ISSUER:SUBJECT`` or
    ``jti:ID``.
    """

    entries: Mapping[str, KeyEntry]
    revoked: frozenset[str] = frozenset()


def by_key(key: str, keyring: Keyring) -> Principal:
    """The principal of an API key.

    Raises:
        Refused: ``unauthenticated``; the message never says which part was wrong.
    """
    match = _KEY.fullmatch(key) if len(key) <= _MAX_KEY_CHARS else None
    key_id = match.group(1) if match else ""
    entry = keyring.entries.get(key_id)
    digest = sha256(key.encode()).digest()
    same = hmac.compare_digest(digest, entry.digest if entry else _NO_DIGEST)
    if entry is None or not same:
        raise Refused(Outcome.UNAUTHENTICATED, "The API key is not valid.")
    return entry.principal(key_id)


def presented(sent: Sent) -> tuple[bytes, bytes]:
    """The one header of a request that holds a credential: its name and value.

    Raises:
        Refused: ``unauthenticated``; there is none, or more than one.
    """
    bearer, other = b"authorization" in sent, b"x-api-key" in sent
    if not (bearer or other):
        raise Refused(
            Outcome.UNAUTHENTICATED, "An API key is needed: send 'Authorization: Bearer <key>'."
        )
    name = b"authorization" if bearer else b"x-api-key"
    value = sent[name]
    if value is None or (bearer and other):
        raise Refused(Outcome.UNAUTHENTICATED, "More than one credential was sent.")
    return name, value


def credential(sent: Sent) -> tuple[str, bool]:
    """The one credential of a request, and whether it may be a token.

    It stands in ``Authorization: Bearer`` or in ``x-api-key``, which never holds a token.

    Raises:
        Refused: ``unauthenticated``; none was sent, or several.
    """
    name, value = presented(sent)
    text = value.strip().decode("latin-1")
    if name == b"x-api-key":
        return text, False
    scheme, _, key = text.partition(" ")
    if scheme.lower() != "bearer":
        raise Refused(Outcome.UNAUTHENTICATED, "The Authorization header must read 'Bearer <key>'.")
    key = key.strip()
    return key, key.count(".") == 2


def new_key(key_id: str, token_bytes: bytes) -> tuple[str, bytes]:
    """A new key and the digest to keep, from an id and at least 16 random bytes.

    Raises:
        ValueError: the id has other characters than a-z, 0-9 and hyphen, or too few bytes.
    """
    if len(token_bytes) < MIN_SECRET_BYTES:
        raise ValueError(f"a key needs {MIN_SECRET_BYTES} random bytes, got {len(token_bytes)}")
    if not _ID.fullmatch(key_id):
        raise ValueError(f"key id {key_id!r}: use 1 to 32 of a-z, 0-9 and hyphen")
    key = f"sg_{key_id}_{urlsafe_b64encode(token_bytes[:64]).decode().rstrip('=')}"
    return key, sha256(key.encode()).digest()
