"""The stage between a body and its flow: what it asks, how many tokens exactly, which size class.

While a prompt is counted it is charged, provisionally, to every flow that its bytes permit; where
all of those are full it is refused before the work of counting. Rendering and counting of large
bodies happen in threads.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway import classify
from gateway.config import Settings
from gateway.domain import Outcome, Principal, Refused, Surface
from gateway.inputs import ModelFacts, countable
from gateway.prompt import Countable, Media
from gateway.surfaces import SURFACES
from gateway.template import ChatTemplate
from gateway.tokenizer import Counted, Counter, CountingPool
from gateway.turnstile import Turnstile
from gateway.visit import Visit

__all__ = ["CountingStage", "affinity", "count_prompts"]

AFFINITY_CHARS = 2048
# What a tokenizer and a template may add beyond one token per byte of the body.
SPECIALS = 64
_NOT_TOLD_BY_BYTES = frozenset((Surface.TRANSCRIPTIONS, Surface.SCORE, Surface.RERANK))


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
        served = self.settings.document.model[model]
        if surface not in served.surfaces:
            raise Refused(Outcome.BAD_REQUEST, f"{model} does not serve {surface}.", param="model")
        # The bytes of a file or an image say nothing about its tokens, and a query counts often.
        told_by_bytes = surface not in _NOT_TOLD_BY_BYTES and not (
            served.image_tokens or served.audio_tokens
        )
        permitted = self._permitted(visit.body_bytes if told_by_bytes else 1 << 62)
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
        exact = self.counters[model].method if asked.texts else "ids"
        visit.classify_method = asked.method or exact
        visit.prompt_tokens = counted.tokens
        bounds = [(s.name, s.max_prompt_tokens) for s in self.settings.sizes]
        # What generates nothing may fill the context.
        context = served.max_model_len + (0 if SURFACES[surface].generates else 1)
        visit.size_class = classify.classify(counted.tokens, counted.largest, bounds, context)
        return asked

    def _read_and_count(
        self, surface: Surface, model: str, body: Mapping[str, Any]
    ) -> tuple[Countable, Counted]:
        """What is asked, and the exact sum of its prompts' tokens and the largest prompt's."""
        served = self.settings.document.model[model]
        facts = ModelFacts(
            self.templates[model],
            Media(served.image_tokens, served.audio_tokens),
            served.transcription_tokens,
        )
        asked = countable(surface, body, facts)
        cap = _cap(asked, served.max_model_len)
        limit = self.settings.sizes[-1].max_prompt_tokens
        return asked, count_prompts(self.counters[model], asked, cap, limit)

    def _permitted(self, size_bytes: int) -> list[str]:
        """Size classes that so many bytes allow: a token has at least one byte."""
        names, lower = [], 0
        for size in self.settings.sizes:
            if lower <= size_bytes + SPECIALS:
                names.append(size.name)
            lower = size.max_prompt_tokens
        return names


def _cap(asked: Countable, max_model_len: int) -> int | None:
    """How many tokens of a prompt the engine keeps; ``-1`` asks for as many as the model takes."""
    if asked.at_most is None:
        return None
    if asked.at_most == 0 or asked.at_most > max_model_len:
        reason = f"must be -1 or from 1 to {max_model_len}"
        message = f"truncate_prompt_tokens: {reason}."
        raise Refused(Outcome.BAD_REQUEST, message, param="truncate_prompt_tokens")
    # The engine leaves room for one token where it is told that some are wanted.
    most = max_model_len - 1 if asked.max_tokens else max_model_len
    return most if asked.at_most < 0 else asked.at_most


def count_prompts(counter: Counter, asked: Countable, cap: int | None, limit: int) -> Counted:
    """The sum of the prompts' tokens, and the largest's; stops once the sum exceeds ``limit``.

    No prompt counts for more than ``cap``, because the engine cuts it there.
    """
    specials = asked.add_special_tokens
    before = counter.count(asked.shared, add_special_tokens=specials, stop_above=limit).tokens
    shared = before if asked.shared else 0
    given = [size if cap is None else min(size, cap) for size in asked.given_tokens]
    tokens, largest = sum(given), max(given, default=0)
    for text in asked.texts:
        if tokens > limit:
            return Counted(tokens, largest, exact=False)
        enough = max(limit - tokens, cap or 0)
        one = counter.count(text, add_special_tokens=specials, stop_above=enough).tokens + shared
        one = one if cap is None else min(one, cap)
        tokens, largest = tokens + one, max(largest, one)
    return Counted(tokens + asked.media_tokens, largest + asked.media_tokens)


def affinity(asked: Countable, principal: Principal) -> int:
    """A hash of the prompt's beginning and the caller: equal ones prefer the same engine."""
    if not asked.texts:
        return 0
    start = asked.texts[0][:AFFINITY_CHARS].encode()
    digest = hashlib.blake2b(start, digest_size=8, key=principal.key_id.encode()).digest()
    return int.from_bytes(digest, "big")
