"""The scanner of passing streams beside a naive reader, on streams cut anywhere."""

import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import Surface
from gateway.sse import END_RULES, EndRule, StreamScanner
from tests.fuzz.depth import fuzz

RULE = END_RULES[Surface.CHAT]
GOOD = {"stop", "length", "tool_calls", "function_call", "content_filter", "repetition"}


@dataclass(slots=True)
class Facts:
    """What the naive reader finds: line by line, with a real JSON parser."""

    events: int = 0
    done: bool = False
    error_event: int = 0
    finish_reason: str | None = None
    usage: tuple[int | None, int | None] = (None, None)
    reasons: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.done and not self.error_event and self.finish_reason in GOOD


def naively(stream: bytes) -> Facts:
    found, data = Facts(), []
    lines = stream.split(b"\n")
    for line in lines[:-1]:  # what stands after the last line end is not a line yet
        text = line.removesuffix(b"\r")
        if text.startswith(b"data:"):
            data.append(text[5:].removeprefix(b" "))
        elif not text:
            if data:
                _event(found, b"\n".join(data))
            data = []
    bad = [reason for reason in found.reasons if reason not in GOOD]
    found.finish_reason = bad[0] if bad else (found.reasons or [None])[-1]
    return found


def _event(found: Facts, data: bytes) -> None:
    found.events += 1
    if data == b"[DONE]":
        found.done = True
        return
    body = json.loads(data)
    if "error" in body and not found.error_event:
        found.error_event = found.events
    for choice in body.get("choices", ()):
        if choice.get("finish_reason") is not None:
            found.reasons.append(choice["finish_reason"])
    usage = body.get("usage")
    if usage:
        found.usage = (usage["prompt_tokens"], usage["completion_tokens"])


# -- streams -------------------------------------------------------------------------------

TRICKS = st.sampled_from(
    [
        "", '"', '"finish_reason":"stop"', '"finish_reason": "abort"', "data: [DONE]\n\n", "[DONE]",
        '{"error":{"code":500}}', '\\"error\\":{', "\n\n", "\r\n\r\ndata: x",
        '"usage":{"prompt_tokens":9}',
        "é", "\u2028", "\\", "data:", ": ", "\x00", "event: error",
    ]
)  # fmt: skip
TEXTS = st.lists(st.one_of(TRICKS, st.text(max_size=8)), max_size=3).map("".join)
REASONS = st.sampled_from([None, None, None, None, *sorted(GOOD), "abort", "error", "odd"])
CHOICES = st.builds(
    lambda text, reason, extra: {
        "index": 0, "delta": {"content": text}, "finish_reason": reason, **extra
    },
    TEXTS,
    REASONS,
    st.sampled_from([{}, {"stop_reason": None}, {"logprobs": None}]),
)  # fmt: skip
USAGES = st.builds(
    lambda p, c: {"prompt_tokens": p, "total_tokens": p + c, "completion_tokens": c},
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
CHUNKS = st.builds(
    lambda choices, usage: {"id": "c", "choices": choices, **usage},
    st.lists(CHOICES, max_size=2),
    st.one_of(st.just({}), st.just({"usage": None}), USAGES.map(lambda u: {"usage": u})),
)
ERRORS = st.builds(
    lambda text, code: {"error": {"message": text, "type": "x", "code": code}},
    TEXTS,
    st.sampled_from([400, 500, 503]),
)


@st.composite
def event(draw: st.DrawFn, end: bytes) -> bytes:
    """One block: a chunk, an error, the end mark or a comment, in one of the ways to write it."""
    kind = draw(st.sampled_from(["chunk"] * 8 + ["error", "done", "comment", "named"]))
    if kind == "comment":
        return b": keep-alive" + end + end
    if kind == "done":
        return b"data: [DONE]" + end + end
    value: Any = draw(ERRORS if kind == "error" else CHUNKS)
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    text = json.dumps(value, separators=separators, ensure_ascii=draw(st.booleans())).encode()
    name = b"event: message" + end if kind == "named" else b""
    space = draw(st.sampled_from([b" ", b" ", b" ", b""]))
    return name + b"data:" + space + text + end + end


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    end = draw(st.sampled_from([b"\n", b"\n", b"\r\n"]))
    whole = b"".join(draw(st.lists(event(end), max_size=8)))
    return whole[: draw(st.integers(0, len(whole)))] if draw(st.booleans()) else whole


CUTS = st.lists(st.integers(0, 2000), max_size=12)


def fed(stream: bytes, cuts: list[int], rule: EndRule = RULE) -> StreamScanner:
    scanner = StreamScanner(rule)
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    for start, end in pairwise(places):
        scanner.feed(stream[start:end])
    return scanner


def facts(scanner: StreamScanner) -> tuple[Any, ...]:
    return (
        scanner.events,
        scanner.done,
        scanner.error_event,
        scanner.finish_reason,
        (scanner.prompt_tokens, scanner.completion_tokens),
        scanner.complete,
    )


@given(stream=streams(), cuts=CUTS)
@fuzz(800)
def test_the_scanner_finds_what_a_naive_reader_finds(stream: bytes, cuts: list[int]) -> None:
    naive = naively(stream)
    expected = (
        naive.events,
        naive.done,
        naive.error_event,
        naive.finish_reason,
        naive.usage,
        naive.complete,
    )
    assert facts(fed(stream, cuts)) == expected


NAMES = st.sampled_from(
    ["message_start", "message_delta", "message_stop", "error", "ping", "response.created",
     "response.output_item.added", "response.completed", "response.incomplete", "response.failed"]
)  # fmt: skip
NAMED = st.builds(
    lambda name, reason, text: (
        b"event: %b\ndata: %b\n\n"
        % (
            name.encode(),
            json.dumps({"type": name, "delta": {"stop_reason": reason, "text": text}}).encode(),
        )
    ),
    NAMES,
    st.sampled_from([None, "end_turn", "max_tokens"]),
    TEXTS,
)


@given(
    stream=st.one_of(streams(), st.lists(NAMED, max_size=6).map(b"".join), st.binary(max_size=400)),
    cuts=CUTS,
    noise=st.binary(max_size=9),
    surface=st.sampled_from(sorted(END_RULES)),
)
@fuzz(800)
def test_what_is_found_does_not_depend_on_the_cuts(
    stream: bytes, cuts: list[int], noise: bytes, surface: Surface
) -> None:
    at, rule = min(cuts, default=0), END_RULES[surface]
    data = stream[:at] + noise + stream[at:]
    whole, cut = fed(data, [], rule), fed(data, cuts, rule)
    assert facts(whole) == facts(cut)
    assert whole.open_bytes == cut.open_bytes
    assert whole.open_bytes == len(re.split(rb"\n\r?\n", data)[-1])
