"""The failure contract: decides what a caller is told for each outcome.

One row per outcome gives the status, the error type, the advice on retrying and the status for
the log; the outcome's own word is the metric label and the error code. 429 says that capacity
exists but is contended, 503 that there is none; 408 is never sent, because client libraries
retry it on their own. Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from types import MappingProxyType
from typing import Any

import orjson

from gateway.domain import MisuseError, Outcome, Surface
from gateway.surfaces import SURFACES, ErrorForm

__all__ = [
    "CONTRACT",
    "MAX_RETRY_AFTER_S",
    "MIN_RETRY_AFTER_S",
    "Advice",
    "Answer",
    "Row",
    "answer",
    "error_event",
    "json_answer",
]

MIN_RETRY_AFTER_S = 1
MAX_RETRY_AFTER_S = 30


class Advice(StrEnum):
    """Whose bound it was, and so the rule for the seconds of Retry-After: see ``advice``.

    ``QUEUE``, ``CALLER``, ``GATEWAY``: the time until there is room again, jittered, and more
    while refusals by this bound keep coming: of one flow, of one caller, of the whole gateway.
    ``CONFIGURED``, ``PROBE_INTERVAL``: as the configuration says. ``SHORT``: 1 to 5 seconds.
    ``ENGINE``: the engine's own figure, else short.
    """

    NONE = "none"
    QUEUE = "queue"
    CALLER = "caller"
    GATEWAY = "gateway"
    CONFIGURED = "configured"
    PROBE_INTERVAL = "probe_interval"
    SHORT = "short"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Row:
    """What one outcome means to a caller.

    ``status`` ``None``: the gateway sends no answer of its own. ``should_retry`` ``None``: no
    advice is given. ``logged_status`` is what the access log says where nothing was sent.
    """

    status: int | None
    error_type: str
    should_retry: bool | None
    advice: Advice = Advice.NONE
    logged_status: int | None = None
    code: str | None = None
    other_statuses: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer of the gateway's own, ready to send."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


_CALLER = "invalid_request_error"
_LIMIT = "rate_limit_error"
_OVERLOADED = "overloaded_error"
_SERVER = "server_error"

CONTRACT: Mapping[Outcome, Row] = MappingProxyType(
    {
        Outcome.COMPLETED: Row(None, "", None, logged_status=200),
        Outcome.UNAUTHENTICATED: Row(401, "authentication_error", False),
        # A token that can't be checked now, because its issuer's keys can't be had.
        Outcome.IDENTITY_UNAVAILABLE: Row(503, _OVERLOADED, True, Advice.SHORT),
        Outcome.FORBIDDEN: Row(403, "permission_error", False),
        Outcome.NOT_FOUND: Row(404, "not_found_error", False),
        Outcome.BAD_REQUEST: Row(400, _CALLER, False, other_statuses=(405, 415)),
        Outcome.BODY_TOO_LARGE: Row(413, _CALLER, False),
        Outcome.BODY_TIMEOUT: Row(400, _CALLER, False),
        # The code is the one client libraries look for to shorten a conversation.
        Outcome.PROMPT_TOO_LONG: Row(400, _CALLER, False, code="context_length_exceeded"),
        Outcome.PRINCIPAL_LIMIT: Row(429, _LIMIT, True, Advice.CALLER),
        Outcome.INGRESS_FULL: Row(429, _LIMIT, True, Advice.GATEWAY),
        Outcome.QUEUE_FULL: Row(429, _LIMIT, True, Advice.QUEUE),
        Outcome.QUEUE_TOKENS_FULL: Row(429, _LIMIT, True, Advice.QUEUE),
        Outcome.QUEUE_BYTES_FULL: Row(429, _LIMIT, True, Advice.QUEUE),
        Outcome.PAUSED: Row(503, _OVERLOADED, True, Advice.CONFIGURED),
        Outcome.PREDICTED_WAIT: Row(429, _LIMIT, True, Advice.QUEUE),
        Outcome.QUEUE_EXPIRED: Row(429, _LIMIT, True, Advice.QUEUE),
        Outcome.NO_ENGINE: Row(503, _OVERLOADED, True, Advice.PROBE_INTERVAL),
        Outcome.DRAINING: Row(503, _OVERLOADED, True, Advice.SHORT),
        Outcome.ENGINE_REJECTED: Row(503, _OVERLOADED, True, Advice.ENGINE),
        Outcome.UPSTREAM_UNREACHABLE: Row(502, _SERVER, True),
        Outcome.UPSTREAM_TIMEOUT: Row(504, _SERVER, True),
        Outcome.ENGINE_ERROR: Row(None, _SERVER, None, logged_status=500),
        Outcome.STREAM_INTERRUPTED: Row(None, _SERVER, None, logged_status=200),
        Outcome.DRAIN_TERMINATED: Row(None, _SERVER, None, logged_status=200),
        Outcome.INTERNAL_ERROR: Row(500, _SERVER, False),
        Outcome.HEADERS_TOO_LARGE: Row(431, _CALLER, False),
        Outcome.HEADER_TIMEOUT: Row(None, _CALLER, False),
        Outcome.CLIENT_CANCELLED: Row(None, "", None, logged_status=499),
    }
)


def _openai_form(outcome: Outcome, message: str, param: str | None) -> dict[str, object]:
    row = CONTRACT[outcome]
    error = {"message": message, "type": row.error_type, "param": param}
    return {"error": {**error, "code": row.code or outcome.value}}


# Anthropic's clients choose the exception by status, and show the type.
_ANTHROPIC_TYPES: Mapping[int, str] = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        405: "invalid_request_error",
        413: "request_too_large",
        415: "invalid_request_error",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)


def _anthropic_form(status: int, message: str) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def answer(
    outcome: Outcome,
    message: str,
    *,
    retry_after_s: float | None = None,
    param: str | None = None,
    surface: Surface = Surface.CHAT,
    status: int | None = None,
) -> Answer:
    """The whole answer for ``outcome``; Retry-After (whole seconds) only where its row has it.

    ``status`` picks another of the row's statuses (405 or 415 for ``bad_request``).

    Raises:
        MisuseError: the gateway never answers this outcome itself, or not with ``status``.
    """
    row = CONTRACT[outcome]
    sent = row.status if status is None else status
    if row.status is None or sent is None or sent not in (row.status, *row.other_statuses):
        raise MisuseError(f"{outcome} has no answer with status {sent}")
    if SURFACES[surface].errors is ErrorForm.ANTHROPIC:
        body = orjson.dumps(_anthropic_form(sent, message))
    else:
        body = orjson.dumps(_openai_form(outcome, message, param))
    made = json_answer(sent, outcome, body)
    made.headers.extend(_advice(outcome, row, retry_after_s))
    if sent == 405:
        made.headers.append((b"allow", SURFACES[surface].method.encode()))  # RFC 9110, 15.5.6
    return made


def json_answer(status: int, outcome: Outcome, body: bytes) -> Answer:
    """An answer with a JSON body that is not made from the contract: a list, an engine's error."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-sluicegate-outcome", outcome.encode()),
    ]
    return Answer(status, headers, body)


def _advice(outcome: Outcome, row: Row, retry_after_s: float | None) -> list[tuple[bytes, bytes]]:
    headers = []
    if row.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if row.should_retry else b"false"))
    if row.advice is not Advice.NONE:
        headers.append((b"retry-after", b"%d" % _whole_seconds(retry_after_s)))
    if outcome is Outcome.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))  # RFC 9110, 11.6.1
    return headers


def _whole_seconds(seconds: float | None) -> int:
    wanted = MIN_RETRY_AFTER_S if seconds is None else min(seconds, MAX_RETRY_AFTER_S)
    return max(MIN_RETRY_AFTER_S, ceil(wanted))


def error_event(
    outcome: Outcome, message: str, surface: Surface = Surface.CHAT, status: int | None = None
) -> bytes:
    """The event that ends a stream which already has its 200, in the surface's error form.

    ``status`` is what the answer would have had, where the outcome's row does not say it.
    """
    form = SURFACES[surface].errors
    if form is ErrorForm.ANTHROPIC:
        told = _anthropic_form(status or CONTRACT[outcome].status or 500, message)
        # The form has no code, and the head that would have named the outcome is gone.
        told["error"] = {**told["error"], "code": outcome.value}
        return b"event: error\ndata: " + orjson.dumps(told) + b"\n\n"
    error = _openai_form(outcome, message, None)
    if form is ErrorForm.OPENAI:
        return b"data: " + orjson.dumps(error) + b"\n\n"
    # OpenAI's own event, and beside it the member that makes its clients raise the error.
    event = {"type": "error", "code": outcome.value, "message": message, "param": None}
    return b"event: error\ndata: " + orjson.dumps({**event, **error}) + b"\n\n"
