"""Decides what a simulated engine says: how long, in which words, and why it ends.

The same seed, prompt and choice give the same answer. A request that ignores the end of text
gets exactly its limit; any other gets a natural length, exponential with a mean of 128 tokens,
cut at the limit. The last token of a natural end is the end-of-text token and has no text.

Pure: no I/O, no clock.
"""

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from zlib import crc32

from loadgen.engine.bodies import Sampling

__all__ = ["Utterance", "Voice"]

MEAN_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Utterance:
    """One planned answer: its length, its end, and its walk through the word table."""

    tokens: int
    finish_reason: str
    start: int
    stride: int


class Voice:
    """A table of words of the vocabulary, and the plans made over it. Immutable."""

    def __init__(self, token_ids: Sequence[int], texts: Sequence[str], seed: int) -> None:
        self._token_ids = tuple(token_ids)
        self._texts = tuple(texts)
        self._encoded = tuple(json.dumps(text).encode() for text in texts)
        self._seed = seed

    def plan(
        self, prompt_ids: Sequence[int], sampling: Sampling, limit: int, choice: int
    ) -> Utterance:
        """Plan a choice of at most ``limit`` tokens."""
        prompt = crc32(array("Q", prompt_ids).tobytes())
        rng = Random(f"{self._seed}/{sampling.seed}/{prompt}/{choice}")
        natural = 1 + int(rng.expovariate(1 / MEAN_TOKENS))
        tokens = limit if sampling.ignore_eos else min(limit, max(natural, sampling.min_tokens))
        start, stride = rng.randrange(len(self._texts)), rng.randrange(1, len(self._texts) + 1)
        reason = "length" if tokens == limit else "stop"
        return Utterance(tokens, reason, start, stride)

    def encoded(self, utterance: Utterance, position: int) -> bytes:
        """The text of one token as a JSON string."""
        if self._ends(utterance, position):
            return b'""'
        return self._encoded[self._at(utterance, position)]

    def token_id(self, utterance: Utterance, position: int) -> int:
        """The id of one token."""
        return self._token_ids[self._at(utterance, position)]

    def text(self, utterance: Utterance, count: int) -> str:
        """The first ``count`` tokens as one text."""
        return "".join(
            self._texts[self._at(utterance, position)]
            for position in range(count)
            if not self._ends(utterance, position)
        )

    def _at(self, utterance: Utterance, position: int) -> int:
        return (utterance.start + position * utterance.stride) % len(self._texts)

    def _ends(self, utterance: Utterance, position: int) -> bool:
        return utterance.finish_reason == "stop" and position == utterance.tokens - 1
