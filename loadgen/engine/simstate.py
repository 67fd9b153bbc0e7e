"""Remembers what the last requests carried, for tests that look for what must not arrive.

Holds names, priorities and token counts, never a prompt.

Pure: no I/O, no clock.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

__all__ = ["WATCHED_HEADERS", "SeenRequests"]

WATCHED_HEADERS = (
    "x-vllm-priority",
    "x-data-parallel-rank",
    "x-session-id",
    "x-request-id",
)
KEPT = 256


class SeenRequests:
    """The last requests that reached the engine, oldest first."""

    def __init__(self) -> None:
        self.total = 0
        self._last: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def add(self, path: str, headers: Mapping[str, str], body: Any, priority: int) -> None:
        """Record one request; ``priority`` is the effective one."""
        fields: Mapping[str, Any] = body if isinstance(body, dict) else {}
        extra = fields.get("vllm_xargs")
        self.total += 1
        self._last.append(
            {
                "path": path,
                "priority": priority,
                "body_priority": fields.get("priority"),
                "headers": {name: headers[name] for name in WATCHED_HEADERS if name in headers},
                "header_names": sorted(headers),
                "body_keys": sorted(fields),
                "vllm_xargs_keys": sorted(extra) if isinstance(extra, dict) else [],
            }
        )

    def as_list(self) -> list[dict[str, Any]]:
        """The recorded requests, oldest first."""
        return list(self._last)
