"""Runs prompts that end with their prefill: no token comes of them, but a result.

A caller that leaves cancels what is not computed yet. Times don't occur here.
"""

import asyncio
from collections.abc import Sequence

from loadgen.engine.core import Job
from loadgen.engine.exchange import Exchange
from loadgen.engine.generate import watched
from loadgen.engine.service import Service

__all__ = ["prefill"]


async def prefill(
    service: Service, exchange: Exchange, prompts: Sequence[Sequence[int]], priority: int
) -> bool:
    """Compute the prompts in the engine; False when the caller has left before the end.

    Raises:
        ApiError: The engine is full.
    """
    service.gate.admit(len(prompts))
    ready = asyncio.Event()
    longest = service.max_model_len
    tickets = [
        service.core.submit(_job(min(len(ids), longest - 1), priority), ready) for ids in prompts
    ]
    watcher = watched(exchange, ready)
    try:
        while not all(ticket.finished for ticket in tickets):
            await ready.wait()
            ready.clear()
            if watcher.done():
                return False
        return True
    finally:
        watcher.cancel()
        for ticket in tickets:
            service.core.cancel(ticket)


def _job(prompt_tokens: int, priority: int) -> Job:
    return Job(
        prompt_tokens=prompt_tokens,
        output_tokens=1,
        finish_reason="stop",
        max_tokens=1,
        priority=priority,
        pooled=True,
    )
