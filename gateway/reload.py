"""Decides what a reload may change, and names what it changes.

A configuration that takes over from another must leave alone what the process can't exchange
while it serves: where it listens, and what was handed to parts that live as long as the process.
Pure: no I/O, no clock.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway import schema
from gateway.auth import Keyring
from gateway.consistency import Fault

__all__ = ["changed_callers", "changed_keys", "fixed_faults"]

_FIXED = (
    ("server", "host"),
    ("server", "port"),
    ("server", "max_connections"),
    ("server", "max_connections_per_address"),
    ("server", "header_timeout_s"),
    ("server", "header_bytes"),
    ("admin", "host"),
    ("admin", "port"),
    ("state", "directory"),
    ("scheduling", "quantum"),
    ("scheduling", "beta"),
    ("tracing", "enabled"),
    ("tracing", "otlp_endpoint"),
    ("tracing", "service_name"),
    ("tracing", "max_waiting"),
)
MAX_NAMED = 50


def fixed_faults(before: schema.Document, after: schema.Document) -> Iterator[Fault]:
    """The keys that differ and can't be changed without a restart."""
    for section, key in _FIXED:
        old, new = (getattr(getattr(d, section), key) for d in (before, after))
        if old != new:
            yield f"{section}.{key}", f"needs a restart: it is {old!r} and would become {new!r}"
    for section in ("server", "admin"):
        old_tls, new_tls = (getattr(d, section).tls for d in (before, after))
        if (old_tls is None) != (new_tls is None):
            word = "off" if new_tls is None else "on"
            yield f"{section}.tls", f"needs a restart: TLS can't be turned {word} at run time"
        elif old_tls is not None and _asks(old_tls) != _asks(new_tls):
            yield (
                f"{section}.tls.client_ca_file",
                "needs a restart: whether callers need certificates can't change at run time",
            )


def _asks(tls: schema.Tls) -> bool:
    return tls.client_ca_file is not None


def changed_callers(before: Keyring, after: Keyring) -> list[str]:
    """What differs of two keyrings, by key id: ``key.ID`` came, went or grants something else."""
    old, new = before.entries, after.entries
    found = [f"key.{name}" for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return [*found, "revoked"] if before.revoked != after.revoked else found


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The dotted keys under which two effective configurations differ, in order."""
    found = list(_differences(before, after, ""))
    more = len(found) - MAX_NAMED
    return [*found[:MAX_NAMED], f"and {more} more"] if more > 0 else found


def _differences(before: Any, after: Any, at: str) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from _differences(before.get(key), after.get(key), f"{at}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True), 1):
            yield from _differences(old, new, f"{at}[{number}]")
    elif before != after:
        yield at.removeprefix(".")
