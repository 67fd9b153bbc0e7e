"""What of each surface's body is counted, and how many sequences it brings."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import Outcome, Refused, Surface
from gateway.inputs import ModelFacts, countable
from gateway.prompt import Countable, Media
from gateway.template import ChatTemplate
from tests.gateway.minimal import TEMPLATE

FACTS = ModelFacts(
    ChatTemplate(TEMPLATE, {"bos_token": "<s>"}, lambda: datetime(2026, 7, 1, tzinfo=UTC)),
    Media(image_tokens=100),
    transcription_tokens=1500,
)
HI = [{"role": "user", "content": "hi"}]


def asked(surface: str, **body: Any) -> Countable:
    return countable(Surface(surface), body, FACTS)


@pytest.mark.parametrize("surface", ["embeddings", "classify", "pooling"])
def test_every_input_of_a_batch_is_a_sequence_without_output(surface: str) -> None:
    found = asked(surface, input=["a", "b", "c"])
    assert (found.slots, found.texts, found.max_tokens, found.stream) == (
        3,
        ("a", "b", "c"),
        0,
        False,
    )
    assert found.add_special_tokens
    assert asked(surface, input=[[1, 2], [3]]).given_tokens == (2, 1)
    assert asked(surface, input=[1, 2, 3]).slots == 1


def test_a_chat_to_be_embedded_has_no_generation_prompt_by_default() -> None:
    assert asked("embeddings", messages=HI).texts == ("<s><|user|>hi",)
    assert asked("embeddings", messages=HI, add_generation_prompt=True).texts == (
        "<s><|user|>hi<|assistant|>",
    )
    with pytest.raises(Refused):
        asked("embeddings", messages=HI, input="x")


def test_one_text_against_many_is_kept_once() -> None:
    found = asked("rerank", query="q", documents=["a", "b"])
    assert (found.shared, found.texts, found.slots) == ("q", ("a", "b"), 2)
    assert found.method == "estimate"
    assert asked("score", text_1="q", text_2=["a", "b"]) == found
    assert asked("score", queries=["q", "r"], documents=["a", "b"]).texts == ("qa", "rb")
    assert asked("score", data_1="", data_2=["a", "b"]).texts == ("a", "b")


@pytest.mark.parametrize(
    ("surface", "body"),
    [
        ("rerank", {"query": ["a", "b"], "documents": ["x"]}),
        ("rerank", {"query": "a", "documents": []}),
        ("rerank", {"query": "a", "documents": [{"content": []}]}),
        ("rerank", {"query": "a", "documents": ["x"] * 1025}),
        ("score", {"text_1": ["a", "b"], "text_2": ["x"]}),
        ("score", {"text_1": "a"}),
        ("score", {"text_1": "a", "text_2": "b", "queries": "a", "documents": "b"}),
        ("pooling", {"data": {"any": "thing"}}),
        ("embeddings", {"input": "x", "padding": "max_length"}),
        ("detokenize", {"tokens": "1"}),
        ("detokenize", {"tokens": [1, -1]}),
        ("detokenize", {"tokens": [1, True]}),
        ("tokenize", {}),
        ("tokenize", {"prompt": ["a"]}),
        ("tokenize", {"prompt": "a", "messages": HI}),
        ("messages", {"messages": HI}),
        ("messages", {"messages": HI, "max_tokens": 0}),
        ("transcriptions", {"max_completion_tokens": "-1"}),
        ("transcriptions", {"max_completion_tokens": "٣"}),
    ],
)
def test_a_body_of_another_form_is_refused(surface: str, body: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        asked(surface, **body)
    assert refused.value.outcome is Outcome.BAD_REQUEST


def test_a_text_to_be_tokenised_is_a_prompt_without_output() -> None:
    found = asked("tokenize", prompt="hi", n=5, stream=True)
    assert (found.texts, found.slots, found.max_tokens, found.stream) == (("hi",), 1, 0, False)
    assert asked("tokenize", messages=HI).texts == ("<s><|user|>hi<|assistant|>",)
    assert asked("detokenize", tokens=[1, 2, 3]).given_tokens == (3,)


def test_messages_responses_and_chat_of_the_same_words_are_the_same_prompt() -> None:
    chat = asked("chat", messages=HI, max_tokens=5, stream=True)
    assert asked("messages", messages=HI, max_tokens=5, stream=True) == chat
    assert asked("responses", input="hi", max_output_tokens=5, stream=True) == chat
    assert asked("count_tokens", messages=HI).texts == chat.texts


def test_a_file_counts_for_what_the_model_is_configured_to() -> None:
    found = asked("transcriptions", file=b"x", stream="true", max_completion_tokens="7")
    assert (found.given_tokens, found.method) == ((1500,), "configured")
    assert (found.stream, found.max_tokens, found.slots) == (True, 7, 1)
    with pytest.raises(Refused, match="does not transcribe"):
        countable(Surface.TRANSCRIPTIONS, {}, ModelFacts(FACTS.template))


def test_an_image_in_anthropics_form_counts_by_the_estimate() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    found = asked("messages", messages=[{"role": "user", "content": [image]}], max_tokens=1)
    assert (found.media_tokens, found.method) == (100, "estimate")


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "id", "input", "name", "output"]),
            inner | st.sampled_from(["user", "text", "tool_use", "message", "function_call"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)
KEYS = [
    *("messages", "input", "prompt", "tokens", "query", "documents", "text_1", "text_2", "system"),
    *("tools", "thinking", "max_tokens", "instructions", "truncation", "reasoning", "stream"),
]


@given(
    st.sampled_from([s for s in Surface if s is not Surface.MODELS]),
    st.dictionaries(st.sampled_from(KEYS), anything, max_size=6),
)
def test_any_body_on_any_surface_is_countable_or_a_bad_request(
    surface: Surface, body: dict[str, Any]
) -> None:
    found = countable_or_outcome(surface, body)
    assert found is Outcome.BAD_REQUEST or (isinstance(found, Countable) and found.slots >= 1)


def countable_or_outcome(surface: Surface, body: dict[str, Any]) -> Countable | Outcome:
    try:
        return countable(surface, body, FACTS)
    except Refused as refused:
        return refused.outcome
