"""Warms a started engine up until it answers alike, or says that it does not.

A round is a few prompts of each class, one after another, from the corpus's end, which no trace
uses. The engine is warm once the median time of a whole answer differs by at most a tenth from the
round before, in every class, twice running; a difference that this machine's own noise makes is
none. Times are recorded seconds.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import httpx
import orjson

from loadgen.corpus import Prompt, body_of
from loadgen.record import SERVICE_CLASS
from loadgen.stack import Endpoint

__all__ = ["ROUNDS", "Warmed", "agreed", "rounds_of", "warm_up"]

ROUNDS = 6
TOLERANCE = 0.10
AGREEMENTS = 2
NOISE_S = 0.02  # real seconds: what a busy machine adds to an answer now and then
ANSWER_S = 120.0

Medians = Mapping[str, float]
Round = Mapping[str, Sequence[Prompt]]


@dataclass(frozen=True, slots=True)
class Warmed:
    """How a warm-up went: the medians of each round in seconds, and why it failed, if it did."""

    rounds: tuple[Medians, ...]
    fault: str | None = None


def agreed(rounds: Sequence[Medians], noise_s: float = 0.0) -> bool:
    """Say whether the last rounds differ by no more than a tenth, or noise, from those before."""
    last = rounds[-AGREEMENTS - 1 :]
    if len(last) <= AGREEMENTS:
        return False
    return all(
        abs(two[name] - one[name]) <= max(TOLERANCE * one[name], noise_s)
        for one, two in pairwise(last)
        for name in one
    )


def rounds_of(prompts: Sequence[Prompt], kept: Mapping[str, int]) -> list[Round]:
    """Deal the kept prompts, the last of each class, out to the rounds."""
    dealt: list[dict[str, Sequence[Prompt]]] = [{} for _ in range(ROUNDS)]
    for name, count in kept.items():
        own = [p for p in prompts if p.size_class == name]
        spare, each = own[len(own) - count :], count // ROUNDS
        for n, one in enumerate(dealt):
            if each:
                one[name] = spare[n * each : (n + 1) * each]
    return [one for one in dealt if one]


async def _answer_s(client: httpx.AsyncClient, endpoint: Endpoint, prompt: Prompt) -> float:
    """Return the time of a whole answer.

    Raises:
        httpx.HTTPError: there was none.
    """
    forced = {"min_tokens": prompt.output_tokens, "ignore_eos": True, "temperature": 0}
    body: dict[str, Any] = {"model": endpoint.model, **body_of(prompt.text), **forced}
    body |= {"max_tokens": prompt.output_tokens, "stream": True}
    name = SERVICE_CLASS.get(prompt.size_class, prompt.size_class)
    key = endpoint.keys.get(name, next(iter(endpoint.keys.values()), None))
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    url = f"{endpoint.gateway_url}/v1/chat/completions"
    began_s = time.monotonic()
    answer = await client.post(url, content=orjson.dumps(body), headers=headers)
    answer.raise_for_status()
    return time.monotonic() - began_s


async def warm_up(
    endpoint: Endpoint,
    rounds: Sequence[Round],
    time_scale: float,
    tell: Callable[[Mapping[str, Any]], None],
) -> Warmed:
    """Send rounds until they agree.

    Args:
        endpoint: what the runs will be sent to.
        rounds: the prompts of each; none means that there is nothing to warm up with.
        time_scale: recorded seconds in a real one.
        tell: is shown each round.
    """
    done: list[Medians] = []
    async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_S) as client:
        for one in rounds:
            times: dict[str, float] = {}
            for name, prompts in one.items():
                try:
                    taken = [await _answer_s(client, endpoint, prompt) for prompt in prompts]
                except httpx.HTTPError as error:
                    return Warmed(tuple(done), f"warm-up: no answer ({_said(error)})")
                times[name] = round(median(taken) * time_scale, 4)
            done.append(times)
            tell({"event": "warm-up", "round": len(done), "of": len(rounds), "seconds": times})
            if agreed(done, NOISE_S * time_scale):
                return Warmed(tuple(done))
    fault = f"warm-up: {len(done)} rounds and no two agreements within {TOLERANCE:.0%}"
    return Warmed(tuple(done), fault if rounds else None)


def _said(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"status {error.response.status_code}: {error.response.text[:200]}"
    return type(error).__name__
