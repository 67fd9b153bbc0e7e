"""Reads what the head of a request says: surface, declared length, content type, own wait bound.

Pure: no I/O, no clock.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.domain import Outcome, Refused, Surface
from gateway.sent import Sent
from gateway.surfaces import SURFACES, BodyForm, ErrorForm

__all__ = [
    "TARGETS",
    "check_content_type",
    "check_declared_length",
    "check_query",
    "max_wait_s",
    "model_named",
    "surface_at",
    "surface_of",
]

# The only paths there are: engines leave several inference and admin paths unauthenticated.
_PATHS: Mapping[bytes, Surface] = MappingProxyType(
    {path.encode(): surface for surface, row in SURFACES.items() for path in row.paths}
)
TARGETS = MappingProxyType({surface: row.paths[0].encode() for surface, row in SURFACES.items()})
_ONE_MODEL = "/v1/models/"
_MODEL_BYTES = _ONE_MODEL.encode()
# As names are configured, without a step up or down the path.
_MODEL_PATH = re.compile(r"/v1/models/[A-Za-z0-9._:/-]{1,128}")
_ONE_RESPONSE = "/v1/responses/"
_SECONDS = re.compile(rb"[0-9]{1,6}(\.[0-9]{1,6})?")


def surface_at(scope: Mapping[str, Any]) -> Surface | None:
    """The surface whose path this is, if any, whatever the method: it has the error form."""
    raw_path: bytes = scope["raw_path"]
    found = _PATHS.get(raw_path)
    if found is None and raw_path.startswith(_MODEL_BYTES) and _is_model_path(scope["path"]):
        return Surface.MODELS
    return found


def _is_model_path(path: str) -> bool:
    steps = {"", ".", ".."}
    return bool(_MODEL_PATH.fullmatch(path)) and steps.isdisjoint(path.split("/")[1:])


def surface_of(scope: Mapping[str, Any]) -> Surface:
    """The surface of an allowed path and method.

    The path must stand on the wire as it is: an encoded or dotted spelling is another path. Only
    the name after ``/v1/models/`` may be encoded; it is looked up in the configuration.

    Raises:
        Refused: ``not_found``; ``bad_request`` with 405, or for calls that need stored responses.
    """
    surface = _PATHS.get(scope["raw_path"]) or surface_at(scope)
    if surface is None:
        if scope["raw_path"].startswith(_ONE_RESPONSE.encode()):
            message = "Responses are not stored here; send the whole conversation as input."
            raise Refused(Outcome.BAD_REQUEST, message)
        raise Refused(Outcome.NOT_FOUND, "There is nothing at this path.")
    method = SURFACES[surface].method
    if scope["method"] != method:
        message = f"{scope['path'][:80]} takes {method}."
        raise Refused(Outcome.BAD_REQUEST, message, status=405)
    return surface


def model_named(path: str) -> str | None:
    """The model that a path under ``/v1/models/`` asks about; ``None``: it asks for the list."""
    return path.removeprefix(_ONE_MODEL) if path.startswith(_ONE_MODEL) else None


def check_query(scope: Mapping[str, Any], surface: Surface) -> None:
    """Raises ``Refused`` (``bad_request``) where a query string could say something.

    None is ever passed on. Anthropic's clients mark their beta calls with one, which is let be.
    """
    query = scope.get("query_string", b"")
    anthropic = SURFACES[surface].errors is ErrorForm.ANTHROPIC
    if query and not (anthropic and query == b"beta=true"):
        raise Refused(Outcome.BAD_REQUEST, "A query string is not taken here.")


def check_declared_length(sent: Sent, limit_bytes: int) -> None:
    """Raises ``Refused`` (``body_too_large``) for a body that is declared larger than allowed."""
    if int(sent.get(b"content-length") or 0) > limit_bytes:
        message = f"The request body is larger than {limit_bytes} bytes."
        raise Refused(Outcome.BODY_TOO_LARGE, message)


_KINDS = MappingProxyType(
    {BodyForm.JSON: b"application/json", BodyForm.MULTIPART: b"multipart/form-data"}
)


def check_content_type(sent: Sent, form: BodyForm = BodyForm.JSON) -> bytes:
    """The declared content type.

    Raises:
        Refused: ``bad_request`` with 415 where it is not exactly one, of ``form``.
    """
    kind, wanted = sent.get(b"content-type"), _KINDS.get(form, b"")
    if kind == wanted:
        return wanted
    if kind is None or kind.partition(b";")[0].strip().lower() != wanted:
        message = f"The content type must be {wanted.decode()}."
        raise Refused(Outcome.BAD_REQUEST, message, status=415)
    return kind


def max_wait_s(sent: Sent) -> float | None:
    """The caller's own bound on its wait, ``X-Sluicegate-Max-Wait`` in seconds.

    Raises:
        Refused: ``bad_request`` where it was sent and is not one plain number.
    """
    if b"x-sluicegate-max-wait" not in sent:
        return None
    value = sent[b"x-sluicegate-max-wait"]
    if value is None or not _SECONDS.fullmatch(value.strip()):
        message = "X-Sluicegate-Max-Wait must be one number of seconds."
        raise Refused(Outcome.BAD_REQUEST, message)
    return float(value)
