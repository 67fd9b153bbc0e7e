"""Results of a pooling model."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.vectors import EMBEDDING_SIZE, Vectors, base64_float32

IDS = st.lists(st.integers(0, 200_000), min_size=1, max_size=20)


@given(IDS, st.integers(1, EMBEDDING_SIZE))
def test_a_vector_has_length_one_at_any_size_and_keeps_its_signs(
    ids: list[int], dimensions: int
) -> None:
    vector, whole = Vectors(0).embedding(ids, dimensions), Vectors(0).embedding(ids)
    assert len(vector) == dimensions
    assert sum(value * value for value in vector) == pytest.approx(1.0, abs=1e-5)
    assert [value > 0 for value in vector] == [value > 0 for value in whole[:dimensions]]


@given(IDS)
def test_the_same_seed_says_the_same_and_another_something_else(ids: list[int]) -> None:
    assert Vectors(1).embedding(ids) == Vectors(1).embedding(ids) != Vectors(2).embedding(ids)
    assert 0.0 < Vectors(1).score(ids) < 1.0
    assert sum(Vectors(1).probabilities(ids)) == pytest.approx(1.0)


def test_base64_is_little_endian_floats_of_32_bits() -> None:
    assert struct.unpack("<2f", base64.b64decode(base64_float32([0.5, -2.0]))) == (0.5, -2.0)
