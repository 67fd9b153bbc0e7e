"""The stage between a body and its flow: what it asks, how many tokens exactly, which size class.

While a prompt is counted it is charged, provisionally, to every flow that its bytes permit; where
all of those are full it is refused before the work of counting. What asks only for the count goes
to no flow: the counting's own bounds hold. Rendering and counting of large bodies happen in
threads.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from gateway import classify, schema
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
# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_COUNT_TOKENS = Surface.COUNT_TOKENS
_NOT_TOLD_BY_BYTES = frozenset((Surface.TRANSCRIPTIONS, Surface.SCORE, Surface.RERANK))


class _Model(NamedTuple):
    """What counting needs of one model, put together once."""

    facts: ModelFacts
    counter: Counter
    surfaces: frozenset[Surface]
    max_model_len: int
    told_by_bytes: bool


class CountingStage:
    """Counts prompts with the models' own tokenizers and templates.

    Args:
        settings: which models and size classes there are.
        pool: where large bodies are counted.
        counters: the models' tokenizers.
        templates: the models' chat templates.
        turnstile: where what is being counted is charged.
    """

    def __init__(
        self,
        settings: Settings,
        pool: CountingPool,
        counters: Mapping[str, Counter],
        templates: Mapping[str, ChatTemplate],
        turnstile: Turnstile,
    ) -> None:
        self.pool, self.counters, self.turnstile = pool, counters, turnstile
        self._models = {
            name: _model(section, counters[name], templates[name])
            for name, section in settings.document.model.items()
        }
        self._bounds = tuple((s.name, s.max_prompt_tokens) for s in settings.sizes)
        # Of each size class but the first, the tokens above which a prompt is in it.
        self._sizes = tuple(name for name, _ in self._bounds)
        self._above = tuple(most for _, most in self._bounds[:-1])

    async def classify(
        self, visit: Visit, principal: Principal, surface: Surface, body: Mapping[str, Any]
    ) -> Countable:
        """Read what a body asks, count its prompt exactly and note the size class.

        Raises:
            Refused: ``bad_request``, ``prompt_too_long``, a full queue, or ``ingress_full``; the
                size class is noted before if only one is possible.
        """
        name = visit.model or ""
        model, size_bytes = self._models[name], visit.body_bytes
        if surface not in model.surfaces:
            raise Refused(Outcome.BAD_REQUEST, f"{name} does not serve {surface}.", param="model")
        # The bytes of a file or an image say nothing about its tokens, and a query counts often.
        told = model.told_by_bytes and surface not in _NOT_TOLD_BY_BYTES
        permitted = self._permitted(size_bytes if told else 1 << 62)
        visit.size_class = permitted[0] if len(permitted) == 1 else None
        offered = permitted if surface is not _COUNT_TOKENS else ()
        groups = [(name, size, principal.service_class) for size in offered]
        started_s = visit.marks.clock()
        if self.pool.at_once(size_bytes):
            self.turnstile.refuse_if_full(groups, size_bytes)
            asked, counted = self._read_and_count(surface, model, body)
        else:
            asked, counted = await self._in_a_thread(
                groups,
                principal.key_id,
                size_bytes,
                lambda: self._read_and_count(surface, model, body),
            )
        visit.classify_s = visit.marks.clock() - started_s
        visit.classify_method = asked.method or (model.counter.method if asked.texts else "ids")
        visit.prompt_tokens = counted.tokens
        # What generates nothing may fill the context.
        context = model.max_model_len + (0 if SURFACES[surface].generates else 1)
        visit.size_class = classify.classify(counted.tokens, counted.largest, self._bounds, context)
        return asked

    async def _in_a_thread(
        self,
        groups: Sequence[tuple[str, str, str]],
        key_id: str,
        size_bytes: int,
        work: Callable[[], tuple[Countable, Counted]],
    ) -> tuple[Countable, Counted]:
        """Other requests come meanwhile: until it is counted, it is charged wherever it may go."""
        self.turnstile.begin_counting(groups, size_bytes)
        try:
            return await self.pool.work(size_bytes, work, key_id)
        finally:
            self.turnstile.end_counting(groups, size_bytes)

    def _read_and_count(
        self, surface: Surface, model: _Model, body: Mapping[str, Any]
    ) -> tuple[Countable, Counted]:
        """What is asked, and the exact sum of its prompts' tokens and the largest prompt's."""
        asked = countable(surface, body, model.facts)
        cap = _cap(asked, model.max_model_len)
        return asked, count_prompts(model.counter, asked, cap, self._bounds[-1][1])

    def _permitted(self, size_bytes: int) -> tuple[str, ...]:
        """Size classes that so many bytes allow: a token has at least one byte."""
        return self._sizes[: bisect_right(self._above, size_bytes + SPECIALS) + 1]


def _model(section: schema.Model, counter: Counter, template: ChatTemplate) -> _Model:
    media = Media(section.image_tokens, section.audio_tokens)
    return _Model(
        ModelFacts(template, media, section.transcription_tokens),
        counter,
        frozenset(section.surfaces),
        section.max_model_len,
        not (section.image_tokens or section.audio_tokens),
    )


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
    shared = 0
    if asked.shared:
        shared = counter.count(asked.shared, add_special_tokens=specials, stop_above=limit).tokens
    tokens = largest = 0
    if asked.given_tokens:
        given = [size if cap is None else min(size, cap) for size in asked.given_tokens]
        tokens, largest = sum(given), max(given)
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
    return crc32(start, crc32(principal.key_id.encode()))
