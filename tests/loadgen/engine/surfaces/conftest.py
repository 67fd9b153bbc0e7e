"""Talks to the surfaces of one engine: posts, streams taken apart."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from loadgen.engine.launch import EngineProcess

WAIT_S = 20.0
Post = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def post(shared: EngineProcess) -> Post:
    """Post a JSON body to the module's engine."""

    def posted(path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(shared.url + path, json=body, headers=named, timeout=WAIT_S)

    return posted


def events_of(text: str) -> list[Any]:
    """The data of a finished stream; [DONE] stays a text, an event's name must be its type."""
    events: list[Any] = []
    for block in text.split("\n\n")[:-1]:
        name, _, data = block.rpartition("data: ")
        event: Any = data if data == "[DONE]" else json.loads(data)
        assert name in ("", f"event: {event['type'] if name else ''}\n")
        events.append(event)
    return events
