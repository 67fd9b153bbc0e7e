"""Decides what of a caller's request may reach an engine.

One parser's view: the engine gets the re-serialised parse of the body, so nothing can mean one
thing here and another there; what two parsers could read differently (a byte order mark, NaN,
lone surrogates, trailing data) is refused. Keys the engine would take as orders about
scheduling, identity or transfer are dropped, and the gateway's own are stamped. Headers pass by
an allow-list, so a header nobody thought of does not pass. Pure: no I/O, no clock.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import orjson

from gateway.domain import Outcome, Refused, Surface
from gateway.sent import Sent

__all__ = [
    "MAX_DEPTH",
    "MAX_STRUCTURE",
    "STRIPPED_KEYS",
    "ask_usage",
    "clean_body",
    "parse",
    "request_id",
    "stamp",
    "upstream_headers",
]

MAX_DEPTH = 64
# More than the largest prompt as token ids needs, or as a text of commas.
MAX_STRUCTURE = 200_000

# Each is honoured by some vLLM release on some route: order in the queue, identity in logs and
# caches, where and from where to compute.
STRIPPED_KEYS = frozenset(
    (
        "priority",
        "service_tier",
        "request_id",
        "session_id",
        "kv_transfer_params",
        "ec_transfer_params",
        "data_parallel_rank",
        "stream_interval",
    )
)
# Beam search runs every beam and step as a request of its own, without the stamped priority.
_REFUSED_KEYS = frozenset(("use_beam_search",))
# A number that a parser may have to round has so many digits; a search for any one digit, made
# of all of them, is many times as fast as a pattern.
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS = b"0" * 19
# Their streams bear usage only where it is asked for.
_USAGE_ON_DEMAND = frozenset((Surface.CHAT, Surface.COMPLETIONS))
# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_RESPONSES = Surface.RESPONSES
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TRACEPARENT = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(rb"[\x20-\x7e]{1,512}")


def clean_body(raw: bytes) -> dict[str, Any]:
    """The JSON object in ``raw`` without what callers may not say.

    Raises:
        Refused: ``bad_request`` where it is no JSON object that all parsers read alike.
    """
    try:
        body = parse(raw)
    except ValueError as error:
        raise Refused(Outcome.BAD_REQUEST, f"The body is not usable JSON: {error}.") from error
    if not isinstance(body, dict):
        raise Refused(Outcome.BAD_REQUEST, "The body must be a JSON object.")
    if not STRIPPED_KEYS.isdisjoint(body):
        _strip(body)
    xargs = body.get("vllm_xargs")
    if isinstance(xargs, dict):
        _strip(xargs)
    for key in _REFUSED_KEYS:
        if body.get(key):
            raise Refused(Outcome.BAD_REQUEST, f"{key} is not served here.", param=key)
    return body


def _strip(said: dict[str, Any]) -> None:
    for key in STRIPPED_KEYS.intersection(said):
        del said[key]


def parse(raw: bytes) -> Any:
    """The JSON value in ``raw``; ValueError where parsers could differ or it nests too deeply."""
    # Structure costs memory and time out of proportion to its bytes; text does not.
    brackets = raw.count(b"[") + raw.count(b"{")
    if len(raw) > MAX_STRUCTURE and brackets + raw.count(b",") > MAX_STRUCTURE:
        raise ValueError(f"it has more than {MAX_STRUCTURE} brackets and commas")
    value = orjson.loads(raw)
    # Only a text with many brackets can be deep; most are spared the walk.
    if brackets > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    if raw.translate(_AS_ZEROS).find(_MANY_DIGITS) >= 0:
        _refuse_rounded(raw)  # by a parser that recurses
    return value


def _refuse_rounded(raw: bytes) -> None:
    """ValueError for a whole number beyond 64 bits: some parsers keep it, others round it."""

    def whole(digits: str) -> int:
        if len(digits) > 20 or not -(1 << 63) <= int(digits) < (1 << 64):
            raise ValueError("it has a whole number beyond 64 bits")
        return 0

    json.loads(raw, parse_int=whole)


def _deeper_than(value: object, levels: int) -> bool:
    level = [value]
    for _ in range(levels + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def stamp(
    body: dict[str, Any],
    priority: int,
    engine_model: str | None = None,
    surface: Surface = Surface.CHAT,
) -> bytes:
    """The body for the engine: ``body`` with the gateway's priority and the engine's model."""
    stamped = {**body, "priority": priority}
    if surface is _RESPONSES:
        stamped["store"] = False  # by default an engine that can would keep what was said
    if engine_model is not None:
        stamped["model"] = engine_model
    return orjson.dumps(stamped)


def ask_usage(body: dict[str, Any], surface: Surface) -> bool:
    """Make a stream end with its usage; whether the caller had not asked for that itself.

    Raises:
        Refused: ``bad_request`` where what was asked is no object, or no plain yes or no.
    """
    if surface not in _USAGE_ON_DEMAND or body.get("stream") is not True:
        return False
    options = body.get("stream_options")
    if not isinstance(options, dict | None):
        message = "stream_options: must be an object."
        raise Refused(Outcome.BAD_REQUEST, message, param="stream_options")
    given = options or {}
    asked = given.get("include_usage", False)
    if not isinstance(asked, bool | None):
        message = "stream_options.include_usage: must be true or false."
        raise Refused(Outcome.BAD_REQUEST, message, param="stream_options")
    body["stream_options"] = {**given, "include_usage": True}
    if not asked and "continuous_usage_stats" in given:
        body["stream_options"]["continuous_usage_stats"] = False
    return not asked


def request_id(sent: Sent, fresh: str) -> str:
    """The caller's X-Request-Id if exactly one well-formed was sent, else ``fresh``."""
    given = sent.get(b"x-request-id")
    if given is None:
        return fresh
    text = given.decode("latin-1")
    return text if _REQUEST_ID.fullmatch(text) else fresh


def upstream_headers(
    sent: Sent,
    own_request_id: str,
    priority: int,
    content_type: bytes = b"application/json",
) -> list[tuple[bytes, bytes]]:
    """The whole set of request headers for the engine; framing headers are the client's.

    Accept and trace context pass if sent once and well-formed; a repeated or folded one is
    dropped rather than interpreted. ``X-Vllm-Priority`` is always the gateway's: where a release
    honours it, it overrides the body.
    """
    accept = sent.get(b"accept")
    passed = [
        (b"content-type", content_type),
        (b"x-request-id", own_request_id.encode()),
        (b"x-vllm-priority", b"%d" % priority),
        (b"accept", accept if accept is not None and accept in _ACCEPTED else b"*/*"),
    ]
    parent = sent.get(b"traceparent")
    if parent is None or not _TRACEPARENT.fullmatch(parent):
        return passed
    passed.append((b"traceparent", parent))
    state = sent.get(b"tracestate")
    if state is not None and _TRACESTATE.fullmatch(state):
        passed.append((b"tracestate", state))
    return passed


_ACCEPTED = frozenset((b"application/json", b"text/event-stream", b"*/*"))
