"""The stage between a body and its flow: what it asks, how many tokens exactly, which size class.

While a prompt is counted it is charged, provisionally, to every flow that its bytes permit; where
all of those are full it is refused before the work of counting.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway import classify, prompt
from gateway.config import Settings
from gateway.domain import Principal, Surface
from gateway.prompt import Countable
from gateway.template import ChatTemplate
from gateway.tokenizer import Counter, Counting
from gateway.turnstile import Turnstile
from gateway.visit import Visit

__all__ = ["CountingStage", "affinity"]

AFFINITY_CHARS = 2048
# What a tokenizer may put around a text beyond one token per byte.
SPECIALS = 64


@dataclass(frozen=True, slots=True)
class CountingStage:
    """Counts prompts with the models' own tokenizers and templates."""

    settings: Settings
    counting: Counting
    counters: Mapping[str, Counter]
    templates: Mapping[str, ChatTemplate]
    turnstile: Turnstile

    def read(self, surface: Surface, model: str, body: Mapping[str, Any]) -> Countable:
        """What a body asks of the engine; raises ``Refused`` (``bad_request``)."""
        if surface is Surface.CHAT:
            return prompt.chat(body, self.templates[model])
        return prompt.completion(body)

    async def size_class(self, visit: Visit, principal: Principal, asked: Countable) -> str:
        """Count the prompt exactly and name its size class; notes count, time and method.

        Raises:
            Refused: ``prompt_too_long``, a full queue, or ``ingress_full``; the size class is
                noted before if only one is possible.
        """
        model = visit.model or ""
        started_s = visit.marks.clock()
        size_bytes = sum(len(text.encode()) for text in asked.texts)
        permitted = self._permitted(size_bytes + sum(asked.given_tokens))
        visit.size_class = permitted[0] if len(permitted) == 1 else None
        groups = [(model, name, principal.service_class) for name in permitted]
        self.turnstile.begin_counting(groups, size_bytes)
        try:
            tokens, largest = await self._count(self.counters[model], asked)
        finally:
            self.turnstile.end_counting(groups, size_bytes)
        visit.prompt_tokens = tokens
        visit.classify_s = visit.marks.clock() - started_s
        visit.classify_method = self.counters[model].method if asked.texts else "ids"
        bounds = [(s.name, s.max_prompt_tokens) for s in self.settings.sizes]
        context = self.settings.document.model[model].max_model_len
        return classify.classify(tokens, largest, bounds, context)

    async def _count(self, counter: Counter, asked: Countable) -> tuple[int, int]:
        """The sum of all prompts' tokens, and the largest prompt's."""
        given = sum(asked.given_tokens)
        counted = await self.counting.count(
            counter,
            asked.texts,
            add_special_tokens=asked.add_special_tokens,
            stop_above=max(0, self.settings.sizes[-1].max_prompt_tokens - given),
        )
        return counted.tokens + given, max((counted.largest, *asked.given_tokens))

    def _permitted(self, size_bytes: int) -> list[str]:
        """Size classes that so many bytes allow: a token has at least one byte."""
        names, lower = [], 0
        for size in self.settings.sizes:
            if lower <= size_bytes + SPECIALS:
                names.append(size.name)
            lower = size.max_prompt_tokens
        return names


def affinity(asked: Countable, principal: Principal) -> int:
    """A hash of the prompt's beginning and the caller: equal ones prefer the same engine."""
    if not asked.texts:
        return 0
    start = asked.texts[0][:AFFINITY_CHARS].encode()
    digest = hashlib.blake2b(start, digest_size=8, key=principal.key_id.encode()).digest()
    return int.from_bytes(digest, "big")
