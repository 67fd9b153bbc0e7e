"""Decides under which trace a request runs: its caller's, continued, or a new one (W3C level 1).

The engine gets our own span as its parent. A ``traceparent`` that is repeated or malformed begins
a new trace; a ``tracestate`` goes on only with the trace it belongs to, and only within bounds.
Pure: no I/O, no clock.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from gateway.domain import Header, Headers

__all__ = ["TraceContext", "continued", "trace_id"]

MAX_STATE_BYTES = 512
MAX_STATE_MEMBERS = 32
SAMPLED = 1
_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEY = rb"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_MEMBER = re.compile(_KEY + rb"=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_NAMES = frozenset({b"traceparent", b"tracestate"})


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace of one request. Ids are lower-case hex; ``parent_id`` is the caller's span."""

    trace_id: str
    span_id: str
    parent_id: str | None = None
    flags: int = SAMPLED
    state: bytes | None = None

    @property
    def sampled(self) -> bool:
        """Whether spans of this trace are kept."""
        return bool(self.flags & SAMPLED)

    def onward(self, headers: Headers) -> list[Header]:
        """``headers`` with this context in place of any other."""
        passed = [(name, value) for name, value in headers if name not in _NAMES]
        parent = f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"
        passed.append((b"traceparent", parent.encode()))
        return passed if self.state is None else [*passed, (b"tracestate", self.state)]


def continued(
    headers: Headers, fresh: Callable[[int], str], *, sample: bool = True
) -> TraceContext:
    """The context of a request with these headers.

    Args:
        headers: the caller's, names in lower case.
        fresh: makes an id of so many random bytes, in hex.
        sample: whether a trace that begins here is kept.
    """
    parents = [value for name, value in headers if name == b"traceparent"]
    match = _parent(parents[0]) if len(parents) == 1 else None
    if match is None:
        return TraceContext(fresh(16), fresh(8), flags=SAMPLED if sample else 0)
    return TraceContext(
        match[2].decode(),
        fresh(8),
        match[3].decode(),
        int(match[4], 16) & SAMPLED,
        _state([value for name, value in headers if name == b"tracestate"]),
    )


def trace_id(parent: bytes | None) -> str | None:
    """The trace id in the value of a request's one ``traceparent``, where it is sound."""
    match = None if parent is None else _parent(parent)
    return match[2].decode() if match else None


def _parent(value: bytes) -> re.Match[bytes] | None:
    match = _PARENT.fullmatch(value.strip())
    if match is None:
        return None
    version, more = match[1], match[5]
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    return match if match[2].strip(b"0") and match[3].strip(b"0") else None


def _state(values: list[bytes]) -> bytes | None:
    members = [member.strip() for value in values for member in value.split(b",")]
    members = [member for member in members if member]
    keys = {member.partition(b"=")[0] for member in members}
    joined = b",".join(members)
    sound = (
        0 < len(members) == len(keys) <= MAX_STATE_MEMBERS
        and len(joined) <= MAX_STATE_BYTES
        and all(_MEMBER.fullmatch(member) for member in members)
    )
    return joined if sound else None
