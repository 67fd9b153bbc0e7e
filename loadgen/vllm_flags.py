"""Turns a cell's arguments into the words of a `vllm serve` command line, and reads its help.

Arguments are named with underscores. Pure: no I/O, no clock.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["command_line", "flags_in", "help_in", "unknown_flags"]

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def _words(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return []
    if value is True:
        return [flag]
    if value is False:
        return [f"--no-{flag[2:]}"]
    if isinstance(value, Mapping):
        return [flag, json.dumps(value, sort_keys=True)]
    if isinstance(value, list | tuple):
        return [flag, *map(str, value)]
    return [flag, str(value)]


def command_line(args: Mapping[str, Any]) -> list[str]:
    """Return the words: true is a bare flag, false its `--no-` form, null is left out."""
    return [word for name, value in args.items() for word in _words(name, value)]


def flags_in(text: str) -> frozenset[str]:
    """Return every flag that a help text names."""
    return frozenset(FLAG.findall(text))


def help_in(printed: str) -> str:
    """Return the help of all that was printed: without the log lines, which hold the time."""
    lines = printed.splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if line.startswith("usage:")), 0)
    return "".join(lines[first:])


def unknown_flags(words: Iterable[str], known: frozenset[str]) -> list[str]:
    """Return the flags among the words that are not known."""
    return [word for word in words if word.startswith("--") and word not in known]
