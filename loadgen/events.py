"""Cuts a recorded response into events and decides its outcome, after the run.

An event bears the time of the read that completed it. What counts as an event for latency is a
data event with choices: comments, the usage event and `[DONE]` are not. Success needs a good
finish reason, the end mark and no error event; a status of 200 alone proves nothing. Times in
microseconds from the run's start. Pure: no I/O, no clock.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson

from loadgen.record import Outcome

__all__ = ["Response", "Verdict", "judge", "max_stall_us", "read_events"]

BLANK_LINE = re.compile(rb"\r?\n\r?\n")
GOOD_FINISH = frozenset(
    {"stop", "length", "tool_calls", "function_call", "content_filter", "repetition"}
)
EXPIRED = frozenset({"queue_expired"})
INTERRUPTED = frozenset({"stream_interrupted", "drain_terminated"})
REFUSED = frozenset(
    {
        "principal_limit",
        "ingress_full",
        "queue_full",
        "queue_tokens_full",
        "queue_bytes_full",
        "paused",
        "predicted_wait",
        "no_engine",
        "draining",
        "engine_rejected",
    }
)


@dataclass(frozen=True, slots=True)
class Response:
    """What a stream said, by its end."""

    event_us: tuple[int, ...]
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    error_code: str | None
    done: bool
    text: str = field(default="", repr=False)
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome and the word that tells it from others of its kind."""

    outcome: Outcome
    code: str | None = None


def _payload(event: bytes) -> bytes:
    lines = (line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(lines)


def _decoded(payload: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return {"error": {"code": "not_json"}}
    return value if isinstance(value, dict) else {"error": {"code": "not_an_object"}}


def error_code(error: Any) -> str:
    """Name an error object, whose shape differs by server and version."""
    if isinstance(error, Mapping):
        return str(error.get("code") or error.get("type") or "unnamed")
    return str(error)[:80]


def _content(choice: Mapping[str, Any]) -> str:
    said = choice.get("delta")
    found = said.get("content") if isinstance(said, Mapping) else choice.get("text")
    return found if isinstance(found, str) else ""


def _cached_tokens(usage: Mapping[str, Any]) -> int | None:
    details = usage.get("prompt_tokens_details")
    found = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return found if isinstance(found, int) else None


def _timed_payloads(body: bytes, reads: Sequence[tuple[int, int]]) -> list[tuple[int, bytes]]:
    lengths = [length for _, length in reads]
    timed, start = [], 0
    for match in BLANK_LINE.finditer(body):
        payload = _payload(body[start : match.start()])
        start = match.end()
        if payload:
            timed.append((reads[bisect_left(lengths, start)][0], payload))
    return timed


def read_events(body: bytes, reads: Sequence[tuple[int, int]]) -> Response:
    """Cut a stream into events.

    Args:
        body: every byte of the body.
        reads: for each read, its time and how long the body was after it.
    """
    times: list[int] = []
    texts: list[str] = []
    finish = code = None
    usage: Mapping[str, Any] = {}
    done = False
    for at_us, payload in _timed_payloads(body, reads):
        if payload == b"[DONE]":
            done = True
            continue
        event = _decoded(payload)
        if event.get("error") is not None:
            code = code or error_code(event["error"])
        usage = event.get("usage") or usage
        if choices := event.get("choices"):
            times.append(at_us)
            finish = choices[0].get("finish_reason") or finish
            texts.append(_content(choices[0]))
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
    said = "".join(texts)
    return Response(tuple(times), finish, *counts, code, done, said, _cached_tokens(usage))


def max_stall_us(event_us: Sequence[int]) -> int | None:
    """Return the largest gap between events after the first; None with fewer than two."""
    gaps = [b - a for a, b in pairwise(event_us)]
    return max(gaps) if gaps else None


def _refusal(code: str, default: Outcome) -> Verdict:
    if code in EXPIRED:
        return Verdict(Outcome.EXPIRED, code)
    if code in INTERRUPTED:
        return Verdict(Outcome.INTERRUPTED, code)
    return Verdict(Outcome.REJECTED if code in REFUSED else default, code)


def _bad_status(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Verdict:
    named = headers.get(b"x-sluicegate-outcome")
    code = named.decode("latin-1") if named else None
    if code is None and body:
        code = error_code(_decoded(bytes(body)).get("error"))
    default = Outcome.REJECTED if status in {429, 503} else Outcome.ERROR
    return _refusal(code or str(status), default)


def _stream_fault(response: Response, planned_tokens: int | None) -> str | None:
    if response.finish_reason is None:
        return "no_finish_reason"
    if response.finish_reason not in GOOD_FINISH:
        return f"finish_{response.finish_reason}"
    if not response.done:
        return "no_done"
    if planned_tokens is not None and response.completion_tokens not in {None, planned_tokens}:
        return "completion_tokens"
    return None


def judge(
    status: int | None,
    headers: Mapping[bytes, bytes],
    body: bytes,
    fault: str | None,
    response: Response | None,
    planned_tokens: int | None,
) -> Verdict:
    """Decide the outcome of a request that ran to its end, of whatever kind.

    Args:
        status: None if no head arrived.
        headers: of the response, names in lower case.
        body: of the response.
        fault: what ended the connection early, if anything did.
        response: the stream's events, for a status of 200.
        planned_tokens: the completion length that was forced; None if none was.
    """
    if status is None:
        return Verdict(Outcome.ERROR, fault or "no_response")
    if status != 200 or response is None:
        return _bad_status(status, headers, body)
    if response.error_code is not None:
        return _refusal(response.error_code, Outcome.ERROR)
    if fault is not None:
        return Verdict(Outcome.INTERRUPTED, fault)
    wrong = _stream_fault(response, planned_tokens)
    return Verdict(Outcome.INVALID_RESPONSE, wrong) if wrong else Verdict(Outcome.OK)
