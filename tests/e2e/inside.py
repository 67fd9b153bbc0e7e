"""A gateway in the test's own process, on a real socket, with parts of it exchanged on purpose."""

import io
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.app import Gateway
from gateway.assembly import build
from gateway.config import load
from gateway.edge import EdgeLimits, uvicorn_config
from gateway.health import after_success
from gateway.journal import Journal
from gateway.listen import Listener, listening
from gateway.status import status
from tests.e2e.configs import Served, write_config
from tests.e2e.harness import Front

Change = Callable[[Gateway], Gateway]


@asynccontextmanager
async def inside(
    folder: Path,
    *engines: str,
    change: Change = lambda gateway: gateway,
    limits: Mapping[str, Any] | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    admission: str = "enforce",
    edge: EdgeLimits | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[tuple[Gateway, Front, Callable[[], list[dict[str, Any]]]]]:
    """Serve a changed gateway; yields it, its outside, and a function that ends its log.

    Nobody probes: every engine is taken to be up until a request finds otherwise.
    """
    path, keys = write_config(
        folder, {"simulated": Served(engines, admission)}, limits=limits or {}, **(changes or {})
    )
    log = io.BytesIO()
    journal = Journal(log)
    gateway = change(build(load(path), journal, clock))
    parts = gateway.parts
    for engine in engines:
        parts.prober._set(after_success(parts.prober.health[engine], clock()))
    closed: list[dict[str, Any]] = []

    def lines() -> list[dict[str, Any]]:
        if not closed:
            journal.close()
            found = (json.loads(line) for line in log.getvalue().splitlines())
            closed.extend(line for line in found if line["event"] != "engine_up")
        return closed

    limits_of_callers, refused = edge or EdgeLimits(), gateway.refused_at_edge
    listener = Listener(uvicorn_config(gateway, "127.0.0.1", 0, limits_of_callers, refused))
    try:
        async with listening(listener):
            yield gateway, Front(listener.url(), "", keys, path), lines
    finally:
        lines()
        parts.turnstile.close()
        gateway.setup.counting.pool.close()
        for client in parts.clients.values():
            client.close()


def assert_at_zero(gateway: Gateway) -> None:
    """Nothing is held, waits or runs."""
    state = status(gateway)
    assert state["running"] == 0
    assert (gateway.parts.intake.requests, gateway.parts.intake.bytes) == (0, 0)
    assert gateway.parts.turnstile.waiting == 0
    assert {(flow["depth"], flow["running"]) for flow in state["flows"]} == {(0, 0)}
    for engine in state["engines"]:
        assert (engine["slots"], engine["prefill_tokens"], engine["kv_tokens"]) == (0, 0, 0)
