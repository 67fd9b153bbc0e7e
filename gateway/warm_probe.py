"""Asks an engine for one token of a prompt of each size class, and when it came.

The question goes straight to the engine, beside admission, so that it is about the engine and not
about a queue; one after another. Prompts are token
ids that every vocabulary has, another sequence each time, so that no cache answers them.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import orjson

from gateway.config import SizeClass
from gateway.endpoint import Endpoint
from gateway.engine_http import http_client
from gateway.rehearsal_facts import Probe

__all__ = ["Question", "engine_facts", "questions", "warm_probe"]

SHORT_TOKENS = 512
FIRST_ID, IDS = 100, 800
PATIENCE_S = 10.0
SIMULATED = "+simulated"  # ends the version of an engine of the bench


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt of one size class, and when its first token is due."""

    size_class: str
    prompt_tokens: int
    limit_s: float


def questions(sizes: Sequence[SizeClass], max_model_len: int, ratio: float = 1.0) -> list[Question]:
    """One for each size class: well inside it, as large as twice the class below.

    Args:
        sizes: ascending.
        max_model_len: of the model, in tokens.
        ratio: of a class's TTFT limit, within which the first token is due.
    """
    found, below = [], SHORT_TOKENS // 2
    for size in sizes:
        tokens = min(2 * below, size.max_prompt_tokens, max_model_len - 1)
        found.append(Question(size.name, tokens, ratio * size.ttft_limit_s))
        below = size.max_prompt_tokens
    return found


async def warm_probe(
    endpoint: Endpoint, model: str, asked: Sequence[Question], clock: Callable[[], float]
) -> list[Probe]:
    """Ask one engine all questions, one after another.

    Args:
        endpoint: of the engine.
        model: as the engine calls it.
        asked: from ``questions``.
        clock: in seconds.
    """
    return [await _asked(endpoint, model, one, clock) for one in asked]


async def _asked(
    endpoint: Endpoint, model: str, asked: Question, clock: Callable[[], float]
) -> Probe:
    probe = Probe(endpoint.url, asked.size_class, asked.prompt_tokens, asked.limit_s)
    began_s = clock()
    body = _body(model, asked.prompt_tokens, int(began_s * 1e6))
    headers = {"content-type": "application/json"}
    try:
        async with (
            asyncio.timeout(asked.limit_s + PATIENCE_S),
            http_client(endpoint, asked.limit_s + PATIENCE_S) as client,
            client.stream("POST", "/v1/completions", content=body, headers=headers) as answer,
        ):
            if answer.status_code != 200:
                return replace(probe, fault=f"it answers {answer.status_code}")
            async for part in answer.aiter_bytes():
                if part.startswith(b"data: {"):
                    return replace(probe, ttft_s=round(clock() - began_s, 6))
    except (httpx.HTTPError, TimeoutError) as error:
        return replace(probe, fault=str(error) or type(error).__name__)
    return replace(probe, fault="its answer has no event")


def _body(model: str, tokens: int, salt: int) -> bytes:
    ids = [FIRST_ID + (salt + n * 7919) % IDS for n in range(tokens)]
    return orjson.dumps({"model": model, "prompt": ids, "max_tokens": 1, "stream": True})


async def engine_facts(endpoint: Endpoint) -> dict[str, Any]:
    """The engine's version and models, and whether it is a simulated one; None: it does not say."""
    told: dict[str, Any] = {"engine": endpoint.url, "version": None, "models": None}
    try:
        async with http_client(endpoint, PATIENCE_S) as client:
            version = (await client.get("/version")).json().get("version")
            models = [row["id"] for row in (await client.get("/v1/models")).json()["data"]]
            told |= {"version": str(version), "models": models}
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
        told["fault"] = str(error) or type(error).__name__
    return {**told, "synthetic": str(told["version"]).endswith(SIMULATED)}
