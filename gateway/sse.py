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
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from gateway.domain import Surface
from gateway.surfaces import SURFACES, EndRule

__all__ = [
    "END_RULES",
    "MAX_EVENT_BYTES",
    "TAIL_BYTES",
    "BodyFacts",
    "EndRule",
    "StreamScanner",
    "scan_answer",
    "scan_body",
]

MAX_EVENT_BYTES = 64 * 1024
TAIL_BYTES = 4 * 1024

# As numbers: Python 3.11 looks for one in a tenth of the time that ``in`` takes with bytes.
_QUOTE, _BACKSLASH, _LINE_END = b'"\\\n'
_TEXT = re.compile(rb'"(?:content|reasoning_content|reasoning|text)"\s*:\s*"')
_EVENT_END = re.compile(rb"\n\r?\n")
# The longest beginning of an event's end that can be left over at the end of a read.
_END_BYTES = 2
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"([^"\\]*)"')
_ERROR = re.compile(rb'"error"\s*:\s*[{"]|"object"\s*:\s*"error"')
_ERROR_CODE = re.compile(rb'"code"\s*:\s*"?(\d{3})\b')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_PROMPT_TOKENS = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,9})(?!\d)')
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,9})(?!\d)')
# As vLLM begins it: one look instead of three.
_USUAL_USAGE = re.compile(
    rb'"usage":\{"prompt_tokens":(\d{1,9}),(?:"total_tokens":\d+,)?"completion_tokens":(\d{1,9})[,}]'
)
# The usage object is short; its own keys come within this many bytes of its brace.
_USAGE_BYTES = 2048


END_RULES: Mapping[Surface, EndRule] = MappingProxyType(
    {surface: row.ends for surface, row in SURFACES.items() if row.ends is not None}
)
_OPENAI = END_RULES[Surface.CHAT]


class BodyFacts(NamedTuple):
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
    error = body.find(b'"error"') >= 0 and _ERROR.search(body) is not None
    code = _ERROR_CODE.search(body) if error else None
    reason = None
    for found in _FINISH.findall(body):
        reason = found.decode("utf-8", "replace")
        if reason not in good:
            break
    prompt, completion = _usage(body)
    return BodyFacts(error, int(code[1]) if code else None, reason, prompt, completion)


def scan_answer(body: bytes, surface: Surface) -> BodyFacts:
    """What a whole JSON answer of ``surface`` says.

    Answers of surfaces with named events hold objects that callers and models write (schemas of
    tools, arguments of calls), so keys found by a search could be theirs: those are parsed.
    """
    rule = END_RULES.get(surface, _OPENAI)
    if not rule.ends:
        return scan_body(body, rule.good)
    answer = _object(body)
    error = isinstance(answer.get("error"), dict | str) or answer.get("status") == "failed"
    reason = answer.get("stop_reason") if rule.tells else answer.get("status")
    prompt, completion = _named_usage(answer.get("usage"))
    said = reason if isinstance(reason, str) else None
    return BodyFacts(error, None, said, prompt, completion)


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object in ``text``; an empty one where there is none."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _named_usage(usage: object) -> tuple[int | None, int | None]:
    """Tokens in the names of messages and responses; cached ones are part of the prompt."""
    if not isinstance(usage, dict) or type(usage.get("input_tokens")) is not int:
        return None, None
    # Responses give the cached part inside the sum, messages beside it.
    beside = (usage.get(f"cache_{kind}_input_tokens") for kind in ("read", "creation"))
    prompt = usage["input_tokens"] + sum(more for more in beside if type(more) is int)
    output = usage.get("output_tokens")
    return prompt, output if type(output) is int else None


def _usage(body: bytes) -> tuple[int | None, int | None]:
    at, found = len(body), None
    while found is None:  # the last one, from the end: an answer ends with it
        at = body.rfind(b'"usage"', 0, at + 6)
        if at < 0:
            return None, None
        if usual := _USUAL_USAGE.match(body, at):
            return int(usual[1]), int(usual[2])
        found = _USAGE.match(body, at)
    start, end = found.end(), found.end() + _USAGE_BYTES
    prompt = _PROMPT_TOKENS.search(body, start, end)
    completion = _COMPLETION_TOKENS.search(body, start, end)
    return int(prompt[1]) if prompt else None, int(completion[1]) if completion else None


class StreamScanner:
    """The facts of one stream so far; ``feed`` takes its bytes in order, cut anywhere.

    Args:
        rule: the end rule of the stream's surface.

    Attributes:
        events: data events that are complete, without those that come before any output.
        open_bytes: how many of the last bytes belong to an event that is not complete; 0 once it
            is so long that it is not held back, see ``torn``.
        done: the surface's end mark was seen.
        error: data of the first error event, else ``None``; at most ``MAX_EVENT_BYTES``.
        error_event: which data event that was, from 1; 0 without one.
        error_code: its three-digit code, where it has one.
        finish_reason: the first bad one, else the last.
        prompt_tokens: from the last event that bears usage.
        completion_tokens: from the same event.
    """

    __slots__ = (
        "_after",
        "_before",
        "_block",
        "_cut",
        "_cut_data",
        "_cut_name",
        "_good",
        "_mark",
        "_rule",
        "_speaking",
        "completion_tokens",
        "done",
        "error",
        "error_code",
        "error_event",
        "events",
        "finish_reason",
        "open_bytes",
        "prompt_tokens",
    )

    def __init__(self, rule: EndRule) -> None:
        self._mark = rule.mark
        self._good = rule.good
        # Only where events have names: how they end, fail, and say more.
        self._rule = rule if rule.ends else None
        self._speaking = rule.speaking
        # The bytes of the block that is not complete, or its tail once `_cut`; `_cut_data`:
        # a data line went by in the part that was let go; `_cut_name`: the name that did.
        self._block = b""
        # Of the last quiet event, what came before and after its text; empty until there is one.
        self._before = self._after = b""
        self._cut = False
        self._cut_data = False
        self._cut_name = b""
        self.events = self.open_bytes = 0
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
    def torn(self) -> bool:
        """Whether the stream stands in the middle of an event that is too long to hold back."""
        return self._cut

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self.ordinary(data):
            return
        if not self._block and data.endswith(b"\n\n"):
            plain = self._rule is None
            if self._whole_and_quiet(data) if plain else self._named_and_quiet(data):
                self._remember(data)
                return
        self._split(data)

    def ordinary(self, data: bytes) -> bool:
        """Take ``data`` if it differs from a quiet event before it in a JSON string's text alone.

        Most of a stream does. False takes nothing: ``feed`` must.
        """
        before, after = self._before, self._after
        if not after or self._block or not (data.startswith(before) and data.endswith(after)):
            return False
        start, end = len(before), len(data) - len(after)
        if start > end:
            return False
        text = data[start:end]
        if _QUOTE in text or _BACKSLASH in text or _LINE_END in text:
            return False
        self.events += 1
        return True

    def _remember(self, data: bytes) -> None:
        """Keep what stands round the text of a quiet event: most of a stream repeats it."""
        found = _TEXT.search(data)
        if found is None or data.count(b"\n\n") != 1:
            return
        start, end = found.end(), data.find(b'"', found.end())
        if end > 0 and b"\\" not in data[start:end]:
            self._before, self._after = data[:start], data[end:]

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

    def _named_and_quiet(self, data: bytes) -> bool:
        """As ``_whole_and_quiet`` for events of two lines, a name and data."""
        events = data.count(b"\n\n")
        if (
            not data.startswith(b"event: ")
            or data.count(b"\n") != 3 * events
            or data.count(b"\ndata: ") != events
            or (events > 1 and data.count(b"\n\nevent: ") != events - 1)
            or len(data) > MAX_EVENT_BYTES
            or self._names_tell(data)
        ):
            return False
        self.events += events
        return True

    def _names_tell(self, data: bytes) -> bool:
        """Whether an event's name in ``data`` is one that says something."""
        names = {line[7:] for line in data.split(b"\n") if line.startswith(b"event: ")}
        return not names.isdisjoint(self._speaking)

    def _may_speak(self, data: bytes) -> bool:
        """Whether ``data`` may hold a finish reason, an error, usage, or the end mark."""
        return (
            _may_have(data, b'"finish_reason"')
            or _may_have(data, b'"usage"')
            or data.find(b'"error"') >= 0
            or data.find(self._mark) >= 0
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
        self.open_bytes = 0 if self._cut else len(self._block)

    def _cut_block(self) -> None:
        if not self._cut:
            self._cut_name = _name(self._block)
        self._cut_data = self._has_data(self._block)
        self._cut = True
        self._block = self._block[-(TAIL_BYTES + _END_BYTES) :]

    def _has_data(self, block: bytes) -> bool:
        # A cut block may begin in the middle of a line: there only a line end tells.
        starts = not self._cut and block.startswith(b"data:")
        return starts or self._cut_data or b"\ndata:" in block

    def _end_block(self, block: bytes) -> None:
        is_data = self._has_data(block)
        name = self._cut_name if self._cut else b"" if self._rule is None else _name(block)
        cut = self._cut or len(block) > MAX_EVENT_BYTES
        if cut:
            block = block[-TAIL_BYTES:]
        self._cut = self._cut_data = False
        self._cut_name = b""
        if not is_data or (self._rule is not None and name in self._rule.heralds):
            return
        self.events += 1
        if self._rule is not None and name:
            self._take_named(self._rule, name, _payload(block), cut)
        else:
            self._take_event(_payload(block))

    def _take_event(self, payload: bytes) -> None:
        if payload == self._mark and self._rule is None:
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

    def _take_named(self, rule: EndRule, name: bytes, payload: bytes, cut: bool) -> None:
        if name in rule.fails and self.error is None:
            self.error, self.error_event = payload, self.events
        if name in rule.ends:
            self.done = True
            self._ended_as(name)
        if name not in rule.ends | rule.tells:
            return
        # Of an event too long to hold only the tail is there: its usage goes unseen.
        said = {} if cut else _object(payload)
        self._take_reason(said.get("delta"))
        inner = said.get("message") or said.get("response") or said
        prompt, completion = _named_usage(inner.get("usage") if isinstance(inner, dict) else None)
        if prompt is not None:
            self.prompt_tokens, self.completion_tokens = prompt, completion

    def _ended_as(self, name: bytes) -> None:
        """Responses say in the name of the last event how they finished."""
        _, dot, reason = name.partition(b".")
        if dot:
            self.finish_reason = reason.decode()

    def _take_reason(self, delta: object) -> None:
        reason = delta.get("stop_reason") if isinstance(delta, dict) else None
        if isinstance(reason, str):
            self.finish_reason = reason


def _may_have(data: bytes, key: bytes) -> bool:
    """Whether ``key`` may stand for anything but null."""
    nulls = data.count(key + b":null") + data.count(key + b": null")
    return nulls != data.count(key)


def _name(block: bytes) -> bytes:
    """The name of an event, where its block begins with one."""
    first = block.partition(b"\n")[0]
    return first[6:].strip() if first.startswith(b"event:") else b""


def _payload(block: bytes) -> bytes:
    """The data of an event: its data lines without the field name, joined as the format says."""
    if block.startswith(b"data:") and b"\n" not in block:
        return block[5:].strip()
    lines = [line.strip() for line in block.split(b"\n")]
    data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    return b"\n".join(data) if data else block
