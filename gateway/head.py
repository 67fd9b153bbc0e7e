"""Reads what the head of a request says: surface, declared length, content type, own wait bound.

Pure: no I/O, no clock.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from gateway.domain import Outcome, Refused, Surface

__all__ = [
    "TARGETS",
    "check_content_type",
    "check_declared_length",
    "max_wait_s",
    "surface_of",
    "trace_id",
]

Headers = Iterable[tuple[bytes, bytes]]

# The only paths there are: engines leave several inference and admin paths unauthenticated.
_PATHS: Mapping[str, tuple[str, Surface]] = MappingProxyType(
    {
        "/v1/chat/completions": ("POST", Surface.CHAT),
        "/v1/completions": ("POST", Surface.COMPLETIONS),
        "/v1/models": ("GET", Surface.MODELS),
    }
)
TARGETS = MappingProxyType({surface: path.encode() for path, (_, surface) in _PATHS.items()})
_SECONDS = re.compile(rb"[0-9]{1,6}(\.[0-9]{1,6})?")
_TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def surface_of(scope: Mapping[str, Any]) -> Surface:
    """The surface of an allowed path and method.

    The path must stand on the wire as it is: an encoded or dotted spelling is another path.

    Raises:
        Refused: ``not_found``, or ``bad_request`` with 405.
    """
    path: str = scope["path"]
    known = _PATHS.get(path) if scope["raw_path"] == path.encode() else None
    if known is None:
        raise Refused(Outcome.NOT_FOUND, "There is nothing at this path.")
    if scope["method"] != known[0]:
        raise Refused(Outcome.BAD_REQUEST, f"{path} takes {known[0]}.", status=405)
    return known[1]


def check_declared_length(headers: Headers, limit_bytes: int) -> None:
    """Raises ``Refused`` (``body_too_large``) for a body that is declared larger than allowed."""
    declared = next((value for name, value in headers if name == b"content-length"), b"0")
    if int(declared) > limit_bytes:
        message = f"The request body is larger than {limit_bytes} bytes."
        raise Refused(Outcome.BODY_TOO_LARGE, message)


def check_content_type(headers: Headers) -> None:
    """Raises ``Refused`` (``bad_request`` with 415) unless the body is declared as JSON."""
    kinds = [value for name, value in headers if name == b"content-type"]
    kind = kinds[0].partition(b";")[0].strip().lower() if len(kinds) == 1 else b""
    if kind != b"application/json":
        message = "The content type must be application/json."
        raise Refused(Outcome.BAD_REQUEST, message, status=415)


def max_wait_s(headers: Headers) -> float | None:
    """The caller's own bound on its wait, ``X-Sluicegate-Max-Wait`` in seconds.

    Raises:
        Refused: ``bad_request`` where it was sent and is not one plain number.
    """
    values = [value for name, value in headers if name == b"x-sluicegate-max-wait"]
    if not values:
        return None
    if len(values) > 1 or not _SECONDS.fullmatch(values[0].strip()):
        message = "X-Sluicegate-Max-Wait must be one number of seconds."
        raise Refused(Outcome.BAD_REQUEST, message)
    return float(values[0])


def trace_id(headers: Headers) -> str | None:
    """The trace id of one well-formed W3C ``traceparent``."""
    values = [value for name, value in headers if name == b"traceparent"]
    match = _TRACEPARENT.fullmatch(values[0]) if len(values) == 1 else None
    return match.group(1).decode() if match else None
