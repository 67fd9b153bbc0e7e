"""The stage between a body and its flow: what it asks, how many tokens exactly, which size class.

While a prompt is counted it is charged, provisionally, to every flow that its bytes permit; where
all of those are full it is refused before the work of counting. Rendering and counting of large
bodies happen in threads.
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
from gateway.tokenizer import Counted, Counter, CountingPool
from gateway.turnstile import Turnstile
from gateway.visit import Visit

__all__ = ["CountingStage", "affinity"]

AFFINITY_CHARS = 2048
# What a tokenizer and a template may add beyond one token per byte of the body.
SPECIALS = 64


@dataclass(frozen=True, slots=True)
class CountingStage:
    """Counts prompts with the models' own tokenizers and templates."""

    settings: Settings
    pool: CountingPool
    counters: Mapping[str, Counter]
    templates: Mapping[str, ChatTemplate]
    turnstile: Turnstile

    async def classify(
        self, visit: Visit, principal: Principal, surface: Surface, body: Mapping[str, Any]
    ) -> Countable:
        """Read what a body asks, count its prompt exactly and note the size class.

        Raises:
            Refused: ``bad_request``, ``prompt_too_long``, a full queue, or ``ingress_full``; the
                size class is noted before if only one is possible.
        """
        model = visit.model or ""
        permitted = self._permitted(visit.body_bytes)
        visit.size_class = permitted[0] if len(permitted) == 1 else None
        groups = [(model, name, principal.service_class) for name in permitted]
        started_s = visit.marks.clock()
        self.turnstile.begin_counting(groups, visit.body_bytes)
        try:
            asked, counted = await self.pool.work(
                visit.body_bytes, lambda: self._read_and_count(surface, model, body)
            )
        finally:
            self.turnstile.end_counting(groups, visit.body_bytes)
        visit.classify_s = visit.marks.clock() - started_s
        visit.classify_method = self.counters[model].method if asked.texts else "ids"
        visit.prompt_tokens = counted.tokens
        bounds = [(s.name, s.max_prompt_tokens) for s in self.settings.sizes]
        context = self.settings.document.model[model].max_model_len
        visit.size_class = classify.classify(counted.tokens, counted.largest, bounds, context)
        return asked

    def _read_and_count(
        self, surface: Surface, model: str, body: Mapping[str, Any]
    ) -> tuple[Countable, Counted]:
        """What is asked, and the exact sum of its prompts' tokens and the largest prompt's."""
        if surface is Surface.CHAT:
            asked = prompt.chat(body, self.templates[model])
        else:
            asked = prompt.completion(body)
        given = sum(asked.given_tokens)
        counted = self.counters[model].count_all(
            asked.texts,
            add_special_tokens=asked.add_special_tokens,
            stop_above=max(0, self.settings.sizes[-1].max_prompt_tokens - given),
        )
        largest = max((counted.largest, *asked.given_tokens))
        return asked, Counted(counted.tokens + given, largest, counted.exact)

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
