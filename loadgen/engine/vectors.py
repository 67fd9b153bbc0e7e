"""Decides what a simulated pooling model says: vectors, class probabilities, scores.

The same seed and prompt give the same result, in any batch. Vectors have length one.

Pure: no I/O, no clock.
"""

from array import array
from base64 import b64encode
from collections.abc import Sequence
from math import exp, sqrt
from random import Random
from sys import byteorder
from zlib import crc32

__all__ = ["EMBEDDING_SIZE", "LABELS", "Vectors", "base64_float32"]

EMBEDDING_SIZE = 384
LABELS = ("LABEL_0", "LABEL_1")


class Vectors:
    """The results of one engine. Immutable."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def embedding(self, ids: Sequence[int], dimensions: int | None = None) -> list[float]:
        """A vector of the prompt, cut to its first dimensions and stretched to length one."""
        # Four random bytes each, read as integers of both signs: many times faster than gauss().
        raw = array("i", self._random(ids).randbytes(4 * EMBEDDING_SIZE))
        values = raw[: dimensions or EMBEDDING_SIZE]
        length = sqrt(sum(value * value for value in values)) or 1.0
        return array("f", [value / length for value in values]).tolist()

    def probabilities(self, ids: Sequence[int]) -> list[float]:
        """One probability for each label; their sum is one."""
        score = self.score(ids)
        return [1.0 - score, score]

    def score(self, ids: Sequence[int]) -> float:
        """The relevance of a pair, between 0 and 1."""
        return 1.0 / (1.0 + exp(-self._random(ids).uniform(-6.0, 6.0)))

    def _random(self, ids: Sequence[int]) -> Random:
        return Random(f"{self._seed}/{crc32(array('Q', ids).tobytes())}")


def base64_float32(vector: Sequence[float]) -> str:
    """A vector as base64 of little-endian 32-bit floats, as OpenAI's clients read it."""
    packed = array("f", vector)
    if byteorder == "big":
        packed.byteswap()
    return b64encode(packed.tobytes()).decode()
