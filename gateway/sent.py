"""Reads a request's headers once, so that each stage finds what it asks for without a search.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence

__all__ = ["Sent", "by_name"]

Sent = Mapping[bytes, bytes | None]


def by_name(headers: Sequence[tuple[bytes, bytes]]) -> Sent:
    """Headers by their names in lower case; ``None`` for one that was sent more than once."""
    found: dict[bytes, bytes | None] = dict(headers)
    if len(found) == len(headers) and b"".join(found).islower():
        return found
    # In one pass: a head of 64 KiB holds nine thousand names, before anybody is known.
    found.clear()
    for name, value in headers:
        lower = name.lower()
        found[lower] = None if lower in found else value
    return found
