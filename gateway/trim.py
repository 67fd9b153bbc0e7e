"""Takes out of a stream's events what its caller must not see.

Pure: no I/O, no clock.
"""

import re

from gateway.domain import Surface
from gateway.sse import END_RULES, StreamScanner

__all__ = ["before_mark", "without_usage"]

_EVENT_END = re.compile(rb"\n\r?\n")
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')


def before_mark(data: bytes, surface: Surface) -> bytes:
    """The events of ``data`` that come before the stream's end mark."""
    start = 0
    for found in _EVENT_END.finditer(data):
        alone = StreamScanner(END_RULES[surface])
        alone.feed(data[start : found.end()])
        if alone.done:
            return data[:start]
        start = found.end()
    return data


def without_usage(data: bytes) -> bytes:
    """``data`` less events that bear usage and no choices: JSON keys can't be a model's text."""
    start, kept = 0, []
    for found in _EVENT_END.finditer(data):
        event = data[start : found.end()]
        if not (_NO_CHOICES.search(event) and _USAGE.search(event)):
            kept.append(event)
        start = found.end()
    return b"".join([*kept, data[start:]])
