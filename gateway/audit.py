"""Decides how the entries of the audit trail hang together, and where the trail was tampered with.

Each entry carries the digest of the one before it, and its own: SHA-256 of that parent and of the
entry in canonical JSON (keys sorted, no spaces). Who changes or removes one in the middle breaks
the chain there; the digest of the last one also stands in the log. Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson

__all__ = [
    "ACTORS",
    "CONFIGURATION",
    "EXPIRY",
    "FIRST_PARENT",
    "GATEWAY",
    "WATCH",
    "AuditEntry",
    "Note",
    "broken_at",
    "digest_of",
    "linked",
]

FIRST_PARENT = "0" * 64
# Who changes things beside operators: none of theirs may have such a name.
CONFIGURATION, EXPIRY, GATEWAY, WATCH = "configuration", "expiry", "gateway", "watch"
ACTORS = frozenset({CONFIGURATION, EXPIRY, GATEWAY, WATCH})


@dataclass(frozen=True, slots=True)
class Note:
    """What is to be written down: who did what, and why. ``detail`` is JSON."""

    who: str
    action: str
    route: str | None = None
    from_revision: int | None = None
    to_revision: int | None = None
    why: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry. ``n`` counts from 1, ``at`` is UTC, the digests are lower hex."""

    n: int
    at: str
    who: str
    action: str
    route: str | None
    from_revision: int | None
    to_revision: int | None
    why: str
    detail: Mapping[str, Any]
    parent: str
    digest: str


def linked(note: Note, n: int, at: str, parent: str) -> AuditEntry:
    """The entry that follows the one whose digest is ``parent``."""
    told = {
        "n": n,
        "at": at,
        "who": note.who,
        "action": note.action,
        "route": note.route,
        "from_revision": note.from_revision,
        "to_revision": note.to_revision,
        "why": note.why,
        "detail": orjson.loads(orjson.dumps(note.detail)),
    }
    return AuditEntry(**told, parent=parent, digest=_digest(parent, told))


def broken_at(
    entries: Iterable[AuditEntry],
    head: tuple[int, str],
    before: tuple[int, str | None] = (0, FIRST_PARENT),
) -> int | None:
    """The number of the first entry that does not follow the one before it; None: all do.

    Args:
        entries: all of them after ``before``.
        head: number and digest of the last one, as kept elsewhere; (0, ``FIRST_PARENT``) for none.
        before: number and digest of the one before them; None: the digest that the first names.
    """
    n, parent = before
    for entry in entries:
        n += 1
        parent = entry.parent if parent is None else parent
        told = {key: getattr(entry, key) for key in _TOLD}
        if (entry.n, entry.parent, entry.digest) != (n, parent, _digest(parent, told)):
            return n
        parent = entry.digest
    return None if (n, parent) == head else n + 1


_TOLD = tuple(name for name in AuditEntry.__slots__ if name not in {"parent", "digest"})


def digest_of(value: Any) -> str:
    """SHA-256 of a value in canonical JSON."""
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _digest(parent: str, told: Mapping[str, Any]) -> str:
    return digest_of({"parent": parent, "entry": told})
