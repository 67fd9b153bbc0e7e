"""Decides which request heads are refused: those that two readers could understand differently.

Here is also what bounds the listener.

Pure: no I/O, no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.domain import Outcome

__all__ = ["MALFORMED", "TOO_LARGE", "EdgeLimits", "head_bytes", "judge"]

MALFORMED = (Outcome.BAD_REQUEST, "The request is not well-formed HTTP/1.1.")
TOO_LARGE = (Outcome.HEADERS_TOO_LARGE, "The request's headers are too large.")

_MAX_LENGTH_DIGITS = 18
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds of the listener.

    ``send_timeout_s`` is how long a caller with a full write buffer may take nothing from it.
    """

    header_bytes: int = 64 * 1024
    header_timeout_s: float = 10.0
    max_connections: int = 4096
    max_connections_per_address: int = 1024
    send_timeout_s: float = 60.0
    keepalive_s: int = 30


def judge(
    target: bytes, headers: Sequence[tuple[bytes, bytes]], version: str, *, upgrade: bool
) -> tuple[Outcome, str] | None:
    """Why a head is refused, or None; ``headers`` have names in lower case."""
    if not target.startswith(b"/") or b"#" in target:  # RFC 9112, 3.2: no fragment
        return Outcome.BAD_REQUEST, "The request target must be a path that begins with a slash."
    hosts, framing = 0, []
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name in _FRAMING:
            framing.append((name, value.lower()))
    if len(framing) > 1 or (framing and not _plain(*framing[0], version)):
        return Outcome.BAD_REQUEST, "The body's framing must be one length or plain chunks."
    if version not in {"1.1", "1.0"} or upgrade:
        return Outcome.BAD_REQUEST, "Only HTTP/1.1 is spoken here, without upgrades."
    if hosts != 1 and version == "1.1":
        return Outcome.BAD_REQUEST, "There must be one Host header."
    return None


def head_bytes(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> int:
    """How many bytes a head has, about."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers)


def _plain(name: bytes, value: bytes, version: str) -> bool:
    if name == b"content-length":
        return len(value) <= _MAX_LENGTH_DIGITS
    # RFC 9112, 6.1: chunks in HTTP/1.0 have passed a reader that does not know them.
    return value == b"chunked" and version != "1.0"
