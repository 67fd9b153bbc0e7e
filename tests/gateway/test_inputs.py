"""What of each surface's body is counted, and how many sequences it brings."""

import json
from collections.abc import Iterator
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


def countable_or_outcome(
    surface: Surface, body: dict[str, Any], facts: ModelFacts = FACTS
) -> Countable | Outcome:
    try:
        return countable(surface, body, facts)
    except Refused as refused:
        return refused.outcome


IMAGE = {"type": "image", "source": {"type": "base64"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
SCHEMA = {"type": "object", "properties": {"a": {}}}
TOOL = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
# Of each form, a body with all that is read of it, and what it says only in one of two ways.
WHOLE: list[tuple[str, dict[str, Any]]] = [
    (
        "chat",
        {
            "messages": [
                {"role": "developer", "content": "d", "tools": [{}]},
                {"role": "user", "content": [{"type": "text", "text": "t"}], "name": "n"},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
                {"role": "assistant", "reasoning": "r", "tool_calls": [CALL], "task": "t"},
                {"role": "tool", "content": "c", "tool_call_id": "c"},
            ],
            "tools": [{"type": "function", "function": TOOL, "defer_loading": True}],
            "documents": [{"text": "t"}],
            "chat_template_kwargs": {},
            "reasoning_effort": "low",
            "max_completion_tokens": 1,
            "max_tokens": 1,
            "n": 1,
            "stream": True,
            "truncate_prompt_tokens": 1,
            "add_generation_prompt": False,
            "continue_final_message": False,
        },
    ),
    ("completions", {"prompt": ["a"], "max_tokens": 1, "n": 1, "best_of": 1, "stream": True}),
    (
        "messages",
        {
            "system": [{"type": "text", "text": "t"}],
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "t"}]},
                {"role": "user", "content": [{"type": "text", "text": "t"}, IMAGE]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "t"},
                        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "c",
                            "content": [{"type": "text", "text": "t"}, IMAGE],
                        }
                    ],
                },
            ],
            "tools": [{"name": "f", "input_schema": SCHEMA, "description": "d"}],
            "thinking": {"type": "enabled"},
            "output_config": {"effort": "low"},
            "chat_template_kwargs": {},
            "max_tokens": 1,
            "stream": True,
        },
    ),
    (
        "responses",
        {
            "instructions": "i",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "t"}]},
                {
                    "type": "reasoning",
                    "content": [{"text": "t"}],
                    "summary": [{"text": "t"}],
                },
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "o"},
                {
                    "type": "message",
                    "role": "assistant",
                    "status": "incomplete",
                    "content": [{"type": "output_text", "text": "t"}],
                },
            ],
            "tools": [{"type": "function", **TOOL}],
            "reasoning": {"effort": "low"},
            "max_output_tokens": 1,
            "truncation": "auto",
            "background": False,
            "stream": True,
        },
    ),
    ("tokenize", {"prompt": "p", "add_special_tokens": True}),
    ("detokenize", {"tokens": [1]}),
    ("embeddings", {"input": ["a"], "truncate_prompt_tokens": 1}),
    ("rerank", {"query": "q", "documents": ["d"], "truncate_prompt_tokens": 1}),
    ("score", {"text_1": ["a"], "text_2": ["b"]}),
    ("transcriptions", {"file": b"f", "stream": "true", "max_completion_tokens": "1"}),
]
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 1 << 62, 1.5, "", "x", [], [[]], [{}], [None], {}),
    *({"type": {}}, {"type": "text"}, {"role": [], "content": {}}, '{"a": "\\ud800"}'),
)
PARTS = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
SORTS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% for t in tools or [] %}{{ t.function.parameters.properties|dictsort }}{% endfor %}"
)


def changed(value: Any) -> Iterator[Any]:
    """``value`` with each part of it in turn left out or made into something else."""
    inner = range(len(value)) if isinstance(value, list) else value
    for key in inner if isinstance(value, dict | list) else ():
        for junk in JUNK:
            yield _with(value, key, junk)
        yield (
            [*value[:key], *value[key + 1 :]]
            if isinstance(value, list)
            else {name: value[name] for name in value if name != key}
        )
        for child in changed(value[key]):
            yield _with(value, key, child)


def _with(value: Any, key: Any, child: Any) -> Any:
    if isinstance(value, dict):
        return {**value, key: child}
    return [*value[:key], child, *value[key + 1 :]]


@pytest.mark.parametrize("template", [TEMPLATE, PARTS, SORTS], ids=["texts", "parts", "sorts"])
@pytest.mark.parametrize(("surface", "body"), WHOLE, ids=[surface for surface, _ in WHOLE])
def test_a_body_with_any_part_of_another_kind_is_countable_text_or_a_bad_request(
    surface: str, body: dict[str, Any], template: str
) -> None:
    now = datetime(2026, 7, 1, tzinfo=UTC)
    compiled = ChatTemplate(template, {"bos_token": "<s>"}, lambda: now)
    facts = ModelFacts(compiled, Media(image_tokens=100), 1500)
    assert isinstance(countable_or_outcome(Surface(surface), body, facts), Countable)
    for other in changed(body):
        found = countable_or_outcome(Surface(surface), other, facts)
        if isinstance(found, Countable):
            assert "".join((found.shared, *found.texts)).encode() is not None
        else:
            assert found is Outcome.BAD_REQUEST


@pytest.mark.parametrize("half", ["\\ud800", "\\uDfff", "\\uDBFF x"])
@pytest.mark.parametrize("surface", ["chat", "tokenize", "responses", "embeddings"])
def test_half_a_surrogate_pair_in_a_calls_arguments_is_a_bad_request(
    surface: str, half: str
) -> None:
    function = {"name": "f", "arguments": f'{{"a": ["{half}"]}}'}
    call = {"id": "c", "type": "function", "function": function}
    body: dict[str, Any] = {"messages": [*HI, {"role": "assistant", "tool_calls": [call]}]}
    if surface == "responses":
        body = {"input": [{"type": "function_call", "call_id": "c", **function}]}
    with pytest.raises(Refused, match="arguments") as refused:
        asked(surface, **body)
    assert refused.value.outcome is Outcome.BAD_REQUEST


def test_an_escaped_pair_and_a_path_in_a_calls_arguments_are_text_like_any_other() -> None:
    said = {"smile": "\N{GRINNING FACE}", "path": "C:\\udata"}
    function = {"name": "f", "arguments": json.dumps(said)}
    call = {"id": "c", "type": "function", "function": function}
    found = asked("chat", messages=[*HI, {"role": "assistant", "tool_calls": [call]}])
    assert json.dumps(said, ensure_ascii=False) in found.texts[0]
