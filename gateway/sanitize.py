"""Decides what of a caller's request may reach an engine.

One parser's view: the engine gets the re-serialised parse of the body, so nothing can mean one
thing here and another there; what two parsers could read differently (a byte order mark, NaN,
lone surrogates, trailing data) is refused. Keys the engine would take as orders about
scheduling, identity or transfer are dropped, and the gateway's own are stamped. Headers pass by
an allow-list, so a header nobody thought of does not pass. Pure: no I/O, no clock.
"""

import re
from collections.abc import Iterable
from typing import Any

import orjson

from gateway.domain import Outcome, Refused

__all__ = [
    "MAX_DEPTH",
    "MAX_STRUCTURE",
    "STRIPPED_KEYS",
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
    for key in STRIPPED_KEYS.intersection(body):
        del body[key]
    xargs = body.get("vllm_xargs")
    if isinstance(xargs, dict):
        for key in STRIPPED_KEYS.intersection(xargs):
            del xargs[key]
    for key in _REFUSED_KEYS.intersection(body):
        if body[key]:
            raise Refused(Outcome.BAD_REQUEST, f"{key} is not served here.", param=key)
    return body


def parse(raw: bytes) -> Any:
    """The JSON value in ``raw``; ValueError where parsers could differ or it nests too deeply."""
    # Structure costs memory and time out of proportion to its bytes; text does not.
    if sum(raw.count(mark) for mark in (b"[", b"{", b",")) > MAX_STRUCTURE:
        raise ValueError(f"it has more than {MAX_STRUCTURE} brackets and commas")
    value = orjson.loads(raw)
    # Only a text with many brackets can be deep; most are spared the walk.
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return value


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


def stamp(body: dict[str, Any], priority: int, engine_model: str | None = None) -> bytes:
    """The body for the engine: ``body`` with the gateway's priority and the engine's model."""
    stamped = {**body, "priority": priority}
    if engine_model is not None:
        stamped["model"] = engine_model
    return orjson.dumps(stamped)


def request_id(headers: Iterable[tuple[bytes, bytes]], fresh: str) -> str:
    """The caller's X-Request-Id if exactly one well-formed was sent, else ``fresh``."""
    sent = [value for name, value in headers if name.lower() == b"x-request-id"]
    text = sent[0].decode("latin-1") if len(sent) == 1 else ""
    return text if _REQUEST_ID.fullmatch(text) else fresh


def upstream_headers(
    headers: Iterable[tuple[bytes, bytes]], own_request_id: str, priority: int
) -> list[tuple[bytes, bytes]]:
    """The whole set of request headers for the engine; framing headers are the client's.

    Accept and trace context pass if sent once and well-formed; a repeated or folded one is
    dropped rather than interpreted. ``X-Vllm-Priority`` is always the gateway's: where a release
    honours it, it overrides the body.
    """
    passed = [
        (b"content-type", b"application/json"),
        (b"x-request-id", own_request_id.encode()),
        (b"x-vllm-priority", b"%d" % priority),
    ]
    sent: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        sent.setdefault(name.lower(), []).append(value)
    passed.append((b"accept", _one_of(sent.get(b"accept"), _ACCEPTED) or b"*/*"))
    parent = _well_formed(sent.get(b"traceparent"), _TRACEPARENT)
    if parent is None:
        return passed
    passed.append((b"traceparent", parent))
    state = _well_formed(sent.get(b"tracestate"), _TRACESTATE)
    return passed if state is None else [*passed, (b"tracestate", state)]


_ACCEPTED = frozenset((b"application/json", b"text/event-stream", b"*/*"))


def _one_of(values: list[bytes] | None, known: frozenset[bytes]) -> bytes | None:
    return values[0] if values and len(values) == 1 and values[0] in known else None


def _well_formed(values: list[bytes] | None, shape: re.Pattern[bytes]) -> bytes | None:
    return values[0] if values and len(values) == 1 and shape.fullmatch(values[0]) else None
