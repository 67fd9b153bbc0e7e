"""Reads what an answer says about itself while its bytes pass: end, error, finish reason, usage.

A stream is watched event by event, but an event of the ordinary kind (one token, no finish
reason yet) is recognised by a few counts over the bytes and never taken apart. Only an event
that may say something is looked at, and then with patterns for JSON keys: inside a JSON string a
quote is always escaped, so ``"finish_reason":`` cannot be text that a model wrote.

Events are blocks ended by an empty line, with LF or CRLF line ends. A block without a ``data``
line (a comment) is not data. What is known does not depend on how the bytes were cut into reads:
the fast path takes only reads that hold whole one-line events and nothing else.

Memory is bounded: of a block longer than ``MAX_EVENT_BYTES`` only the last ``TAIL_BYTES`` are
kept, where an engine writes the finish reason and the usage. Pure: no I/O, no clock.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gateway.domain import Surface

__all__ = [
    "END_RULES",
    "MAX_EVENT_BYTES",
    "TAIL_BYTES",
    "BodyFacts",
    "EndRule",
    "StreamScanner",
    "scan_body",
]

MAX_EVENT_BYTES = 64 * 1024
TAIL_BYTES = 4 * 1024

_EVENT_END = re.compile(rb"\n\r?\n")
# The longest beginning of an event's end that can be left over at the end of a read.
_END_BYTES = 2
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"([^"\\]*)"')
_ERROR = re.compile(rb'"error"\s*:\s*[{"]|"object"\s*:\s*"error"')
_ERROR_CODE = re.compile(rb'"code"\s*:\s*"?(\d{3})\b')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_PROMPT_TOKENS = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,9})(?!\d)')
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,9})(?!\d)')
# The usage object is short; its own keys come within this many bytes of its brace.
_USAGE_BYTES = 2048


@dataclass(frozen=True, slots=True)
class EndRule:
    """What a complete stream of a surface must have shown.

    ``mark`` is the data of its last event, ``good`` the finish reasons that are a success.
    """

    mark: bytes
    good: frozenset[str]


_OPENAI = EndRule(
    b"[DONE]", frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})
)
END_RULES: Mapping[Surface, EndRule] = MappingProxyType(
    {Surface.CHAT: _OPENAI, Surface.COMPLETIONS: _OPENAI}
)


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """What one JSON answer, or one event, says; ``None`` where it does not say.

    ``finish_reason`` is the first that ``good`` does not hold, else the last.
    """

    error: bool
    error_code: int | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None


def scan_body(body: bytes, good: frozenset[str] = _OPENAI.good) -> BodyFacts:
    """What a whole JSON answer says, found by its keys without parsing it."""
    error = b'"error"' in body and _ERROR.search(body) is not None
    code = _ERROR_CODE.search(body) if error else None
    reasons = [m.decode("utf-8", "replace") for m in _FINISH.findall(body)]
    bad = [reason for reason in reasons if reason not in good]
    prompt, completion = _usage(body)
    return BodyFacts(
        error=error,
        error_code=int(code[1]) if code else None,
        finish_reason=(bad[:1] or reasons[-1:] or [None])[0],
        prompt_tokens=prompt,
        completion_tokens=completion,
    )


def _usage(body: bytes) -> tuple[int | None, int | None]:
    starts = [found.end() for found in _USAGE.finditer(body)]
    if not starts:
        return None, None
    start, end = starts[-1], starts[-1] + _USAGE_BYTES
    prompt = _PROMPT_TOKENS.search(body, start, end)
    completion = _COMPLETION_TOKENS.search(body, start, end)
    return int(prompt[1]) if prompt else None, int(completion[1]) if completion else None


class StreamScanner:
    """The facts of one stream so far; ``feed`` takes its bytes in order, cut anywhere.

    Args:
        rule: the end rule of the stream's surface.

    Attributes:
        events: data events that are complete.
        done: the surface's end mark was seen.
        error: data of the first error event, else ``None``; at most ``MAX_EVENT_BYTES``.
        error_event: which data event that was, from 1; 0 without one.
        error_code: its three-digit code, where it has one.
        finish_reason: the first bad one, else the last.
        prompt_tokens: from the last event that bears usage.
        completion_tokens: from the same event.
    """

    __slots__ = (
        "_block",
        "_cut",
        "_cut_data",
        "_good",
        "_mark",
        "completion_tokens",
        "done",
        "error",
        "error_code",
        "error_event",
        "events",
        "finish_reason",
        "prompt_tokens",
    )

    def __init__(self, rule: EndRule) -> None:
        self._mark = rule.mark
        self._good = rule.good
        # The bytes of the block that is not complete, or its tail once `_cut`; `_cut_data`:
        # a data line went by in the part that was let go.
        self._block = b""
        self._cut = False
        self._cut_data = False
        self.events = 0
        self.done = False
        self.error: bytes | None = None
        self.error_event = 0
        self.error_code: int | None = None
        self.finish_reason: str | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the surface's end rule is met: mark, good finish reason, no error."""
        return self.done and self.error is None and self.finish_reason in self._good

    @property
    def open_bytes(self) -> int:
        """How many of the last bytes belong to an event that is not complete.

        0 once that event is so long that it is not held back: see ``torn``.
        """
        return 0 if self._cut else len(self._block)

    @property
    def torn(self) -> bool:
        """Whether the stream stands in the middle of an event that is too long to hold back."""
        return self._cut

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if not self._block and data.endswith(b"\n\n") and self._whole_and_quiet(data):
            return
        self._split(data)

    def _whole_and_quiet(self, data: bytes) -> bool:
        """Count ``data`` if it is whole one-line data events that say nothing, else do nothing."""
        events = data.count(b"\n\n")
        if (
            not data.startswith(b"data:")
            or data.count(b"\n") != 2 * events
            or (events > 1 and data.count(b"\n\ndata:") != events - 1)
            or len(data) > MAX_EVENT_BYTES
            or self._may_speak(data)
        ):
            return False
        self.events += events
        return True

    def _may_speak(self, data: bytes) -> bool:
        """Whether ``data`` may hold a finish reason, an error, usage, or the end mark."""
        keys = data.count(b'"finish_reason"')
        return (
            data.count(b'"finish_reason":null') + data.count(b'"finish_reason": null') != keys
            or b'"error"' in data
            or b'"usage"' in data
            or self._mark in data
        )

    def _split(self, data: bytes) -> None:
        block = self._block + data
        start, search_from = 0, max(0, len(self._block) - _END_BYTES)
        while found := _EVENT_END.search(block, search_from):
            self._end_block(block[start : found.start()])
            start = search_from = found.end()
        self._block = block[start:]
        if len(self._block) > MAX_EVENT_BYTES + _END_BYTES:
            self._cut_block()

    def _cut_block(self) -> None:
        self._cut_data = self._has_data(self._block)
        self._cut = True
        self._block = self._block[-(TAIL_BYTES + _END_BYTES) :]

    def _has_data(self, block: bytes) -> bool:
        # A cut block may begin in the middle of a line: there only a line end tells.
        starts = not self._cut and block.startswith(b"data:")
        return starts or self._cut_data or b"\ndata:" in block

    def _end_block(self, block: bytes) -> None:
        is_data = self._has_data(block)
        if self._cut or len(block) > MAX_EVENT_BYTES:
            block = block[-TAIL_BYTES:]
        self._cut = self._cut_data = False
        if is_data:
            self.events += 1
            self._take_event(_payload(block))

    def _take_event(self, payload: bytes) -> None:
        if payload == self._mark:
            self.done = True
            return
        facts = scan_body(payload, self._good)
        if facts.error and self.error is None:
            self.error, self.error_code = payload, facts.error_code
            self.error_event = self.events
        if facts.finish_reason is not None and self.finish_reason in {None, *self._good}:
            self.finish_reason = facts.finish_reason
        if facts.prompt_tokens is not None or facts.completion_tokens is not None:
            self.prompt_tokens = facts.prompt_tokens
            self.completion_tokens = facts.completion_tokens


def _payload(block: bytes) -> bytes:
    """The data of an event: its data lines without the field name, joined as the format says."""
    if block.startswith(b"data:") and b"\n" not in block:
        return block[5:].strip()
    lines = [line.strip() for line in block.split(b"\n")]
    data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    return b"\n".join(data) if data else block
