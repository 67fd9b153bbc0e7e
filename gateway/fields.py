"""Reads one field of a body, of the type it must have, or refuses it by name.

Types are checked strictly, because an engine's lax reading of ``"n": "2"`` must not differ from
this one's. Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from typing import Any

from gateway.domain import Outcome, Refused

__all__ = ["BILLING", "bad", "flag", "objects", "reject_present", "text", "whole_number"]

# Claude Code begins a system text with a line of its own, new with each request; vLLM drops it.
BILLING = "x-anthropic-billing-header"


def bad(param: str, reason: str) -> Refused:
    """The refusal of the field ``param``; ``reason`` reads on after its name."""
    return Refused(Outcome.BAD_REQUEST, f"{param}: {reason}.", param=param)


def reject_present(body: Mapping[str, Any], *keys: str) -> None:
    """Raises ``Refused`` where one of ``keys`` has a value."""
    for key in keys:
        if body.get(key) is not None:
            raise bad(key, "is not supported here")


def flag(body: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """A field that is true or false; absent or null: ``default``."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad(key, "must be true or false")
    return value


def whole_number(body: Mapping[str, Any], key: str, *, least: int) -> int | None:
    """A whole number of at least ``least``, or ``None`` where it is absent or null."""
    value = body.get(key)
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise bad(key, f"must be a whole number of at least {least}")
    return value


def text(body: Mapping[str, Any], key: str, at: str = "") -> str | None:
    """A string, or ``None`` where it is absent or null; ``at`` is where ``body`` stands."""
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise bad(f"{at}.{key}" if at else key, "must be a string")
    return value


def objects(value: object, at: str) -> list[dict[str, Any]]:
    """A list of objects, which stands at ``at``; absent or null: an empty one."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise bad(at, "must be a list of objects")
    return value
