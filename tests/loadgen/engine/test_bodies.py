"""What a body asks, and the bounds of what a refusal repeats of it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.bodies import (
    Sampling,
    decode_json,
    output_limit,
    read_chat,
    read_completion,
    read_tokenize,
)
from loadgen.engine.refusals import ApiError

PLAIN = Sampling(max_tokens=None, min_tokens=0, ignore_eos=False, seed=None, n=1)


def test_a_chat_limit_prefers_the_newer_name_and_has_no_default() -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    assert read_chat(body).sampling.max_tokens is None
    assert read_chat({**body, "max_tokens": 5}).sampling.max_tokens == 5
    both = {**body, "max_tokens": 5, "max_completion_tokens": 7}
    assert read_chat(both).sampling.max_tokens == 7


def test_a_completion_defaults_to_sixteen_tokens() -> None:
    assert read_completion({"prompt": "x"}).sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ([1, 2],)), ([[1], [2]], ([1], [2]))],
)
def test_all_four_shapes_of_prompts_are_read(prompt: object, expected: tuple[object, ...]) -> None:
    assert read_completion({"prompt": prompt}).prompts == expected


def test_continuous_usage_needs_usage_at_all() -> None:
    options = {"continuous_usage_stats": True}
    asked = read_completion({"prompt": "x", "stream": True, "stream_options": options})
    assert (asked.include_usage, asked.continuous_usage) == (False, False)


def test_special_tokens_are_added_to_a_prompt_and_not_to_a_chat_unless_asked() -> None:
    assert read_tokenize({"prompt": "x"}).add_special_tokens
    assert not read_tokenize({"messages": []}).add_special_tokens
    assert read_tokenize({"messages": [], "add_special_tokens": True}).add_special_tokens


def test_the_limit_is_the_asked_one_or_the_room_that_is_left() -> None:
    assert output_limit(10, PLAIN, 100) == 90
    assert output_limit(10, Sampling(5, 0, False, None, 1), 100) == 5
    assert output_limit(98, Sampling(5, 0, False, None, 1), 100) == 2
    with pytest.raises(ApiError, match="min_tokens must be less"):
        output_limit(98, Sampling(5, 5, False, None, 1), 100)
    with pytest.raises(ApiError, match="greater than or equal to 0"):
        output_limit(10, Sampling(5, -1, False, None, 1), 100)


def test_a_refusal_never_repeats_a_long_input() -> None:
    with pytest.raises(ApiError) as caught:
        read_completion({"prompt": "x", "seed": "y" * 100_000})
    assert len(caught.value.message) < 1000
    many = {"prompt": [[1, "a"]] * 5000}
    with pytest.raises(ApiError) as caught:
        read_completion(many)
    assert len(caught.value.message) < 11_000
    assert "more errors" in caught.value.message


def status_of(read: Callable[[Any], object], given: object) -> int:
    """200, or the status of a refusal; any other exception fails the test."""
    try:
        read(given)
    except ApiError as error:
        json.dumps(error.message)
        return error.status
    return 200


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(raw: bytes) -> None:
    assert status_of(decode_json, raw) in (200, 400)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "messages",
        "prompt",
        "n",
        "max_tokens",
        "stream",
        "stream_options",
        "priority",
        "tools",
        "seed",
    ]
)


@given(st.dictionaries(FIELDS, JSON) | JSON)
def test_any_json_is_read_or_refused_with_400(body: object) -> None:
    for read in (read_chat, read_completion, read_tokenize):
        assert status_of(read, body) in (200, 400)
