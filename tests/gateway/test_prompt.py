from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import Outcome, Refused
from gateway.prompt import Countable, Media, chat, completion, requested_model
from gateway.template import ChatTemplate
from tests.gateway.minimal import TEMPLATE

NOW = datetime(2026, 7, 28, tzinfo=UTC)
PLAIN = ChatTemplate(TEMPLATE, {"bos_token": "<s>"}, lambda: NOW, allowed_kwargs=("thinking",))
HI = [{"role": "user", "content": "hi"}]


def rendered(body: dict[str, Any], template: ChatTemplate = PLAIN) -> str:
    (text,) = chat(body, template).texts
    return text


def test_a_chat_is_rendered_with_its_generation_prompt() -> None:
    assert rendered({"messages": HI}) == "<s><|user|>hi<|assistant|>"
    assert rendered({"messages": HI, "add_generation_prompt": False}) == "<s><|user|>hi"


def test_text_parts_are_joined_by_a_newline() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}]
    assert rendered({"messages": [{"role": "user", "content": parts}]}) == (
        "<s><|user|>a\nb\nc<|assistant|>"
    )


def test_a_template_that_takes_parts_gets_parts() -> None:
    source = "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}"
    parts = ChatTemplate(source, {}, lambda: NOW)
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": ["b", "c"]}]
    assert rendered({"messages": messages}, parts) == "(a)(b)(c)"


def test_missing_content_is_empty() -> None:
    message = {"role": "assistant", "content": None}
    assert rendered({"messages": [message]}) == "<s><|assistant|><|assistant|>"


def test_tool_call_arguments_become_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "<"}'}}
    bare = {"function": {"name": "g", "arguments": ""}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call, bare]}]
    assert '{"x": "<"}{}' in rendered({"messages": messages})


def test_tools_are_written_with_their_known_keys_and_the_first_ones_always() -> None:
    tool = {"function": {"strict": True, "name": "f", "y": 2}, "x": 1}
    assert rendered({"messages": HI, "tools": [tool]}) == (
        '<s><|user|>hi[{"type": "function", "function": {"name": "f", "description": null, '
        '"parameters": null, "strict": true}}]<|assistant|>'
    )


def test_empty_parts_are_dropped_before_texts_are_joined() -> None:
    parts = ["One", "", {"type": "text", "text": "three"}]
    assert rendered({"messages": [{"role": "user", "content": parts}]}) == (
        "<s><|user|>One\nthree<|assistant|>"
    )


def test_a_developer_becomes_the_one_system_message_where_the_template_knows_none() -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        *HI,
        {"role": "system", "content": "be kind"},
    ]
    assert (
        rendered({"messages": messages})
        == "<s><|system|>be brief\n\nbe kind<|user|>hi<|assistant|>"
    )
    knows = ChatTemplate(TEMPLATE + "{# 'developer' #}", {}, lambda: NOW)
    assert rendered({"messages": messages[:2]}, knows) == (
        "<|developer|>be brief<|user|>hi<|assistant|>"
    )


def test_a_system_text_loses_the_billing_line_of_a_well_known_client() -> None:
    billed = {"role": "system", "content": "x-anthropic-billing-header: cch=1\nreal"}
    assert rendered({"messages": [billed]}) == "<s><|system|>real<|assistant|>"
    user = {"role": "user", "content": "x-anthropic-billing-header: cch=1\nreal"}
    assert "cch" in rendered({"messages": [user]})


def test_arguments_that_are_no_object_become_an_empty_one_as_the_engine_has_it() -> None:
    calls = [{"function": {"arguments": given}} for given in ("{", "[1]", "7", "null", "")]
    message = {"role": "assistant", "tool_calls": calls}
    assert rendered({"messages": [message]}) == "<s><|assistant|>{}{}{}{}{}<|assistant|>"


def test_an_image_counts_by_the_models_estimate_and_is_refused_without_one() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"messages": [{"role": "user", "content": ["what is it?", image, image]}]}
    asked = chat(body, PLAIN, Media(image_tokens=300))
    assert (asked.media_tokens, asked.method) == (600, "estimate")
    with pytest.raises(Refused, match=r"content\[1\]"):
        chat(body, PLAIN, Media(audio_tokens=300))


@pytest.mark.parametrize(
    ("effort", "thinks"), [("none", "False"), ("low", "True"), ("auto", "True"), (None, "")]
)
def test_a_reasoning_effort_says_whether_to_think(effort: str | None, thinks: str) -> None:
    template = ChatTemplate("{{ enable_thinking }}", {}, lambda: NOW)
    assert rendered({"messages": HI, "reasoning_effort": effort}, template) == thinks


def test_best_of_takes_slots_like_n() -> None:
    assert completion({"prompt": ["a", "b"], "n": 2, "best_of": 5}).slots == 10


def test_allowed_template_arguments_and_reasoning_effort_reach_the_template() -> None:
    source = "{{ thinking }} {{ reasoning_effort }}{{ messages[0].content }}"
    template = ChatTemplate(source, {}, lambda: NOW, allowed_kwargs=("thinking",))
    body = {
        "messages": HI,
        "chat_template_kwargs": {"thinking": True},
        "reasoning_effort": "low",
    }
    assert rendered(body, template) == "True lowhi"


def test_a_continued_message_ends_the_prompt() -> None:
    messages = [*HI, {"role": "assistant", "content": "well"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    assert rendered(body) == "<s><|user|>hi<|assistant|>well"


def test_chat_texts_carry_their_own_special_tokens_and_plain_prompts_do_not() -> None:
    assert chat({"messages": HI}, PLAIN).add_special_tokens is False
    assert completion({"prompt": "x"}).add_special_tokens is True
    assert completion({"prompt": "x", "add_special_tokens": False}).add_special_tokens is False


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": None}, None),
    ],
)
def test_the_bound_on_output_is_read(body: dict[str, Any], limit: int | None) -> None:
    assert chat({"messages": HI, **body}, PLAIN).max_tokens == limit


def test_completions_have_the_engines_default_bound_on_output() -> None:
    assert completion({"prompt": "x"}).max_tokens == 16
    assert completion({"prompt": "x", "max_tokens": 0}).max_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "texts", "given_tokens", "slots"),
    [
        ("a", ("a",), (), 2),
        (["a", "b", ""], ("a", "b", ""), (), 6),
        ([1, 2, 3], (), (3,), 2),
        ([[1], [2, 3]], (), (1, 2), 4),
    ],
)
def test_every_form_of_prompt_is_taken(
    prompt: object, texts: tuple[str, ...], given_tokens: tuple[int, ...], slots: int
) -> None:
    got = completion({"prompt": prompt, "n": 2, "stream": True})
    assert (got.texts, got.given_tokens, got.slots) == (texts, given_tokens, slots)
    assert got.stream is True


BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [7]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0]"),
    ({"messages": [*HI, {"role": "user", "content": 7}]}, "messages[1].content"),
    ({"messages": [{"role": "u", "content": [7]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "u", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0]",
    ),
    (
        {"messages": [{"role": "u", "content": [{"type": [], "text": "x"}]}]},
        "messages[0].content[0]",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "x", "function": {}}]}]},
        "messages[0].tool_calls[0]",
    ),
    ({"messages": [{"role": "assistant", "reasoning": 7}]}, "messages[0].reasoning"),
    ({"tools": [{"function": {"name": "f", "parameters": "x"}}]}, "tools[0].function.parameters"),
    ({"tools": [{"type": "x", "function": {"name": "f"}}]}, "tools[0]"),
    ({"messages": HI * 9000}, "messages"),
    ({"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
    ({"tools": {}}, "tools"),
    ({"tools": [{}]}, "tools[0]"),
    ({"tools": [{"function": {}}]}, "tools[0].function.name"),
    ({"documents": "x"}, "documents"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"add_generation_prompt": "true"}, "add_generation_prompt"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"reasoning_effort": 1}, "reasoning_effort"),
    ({"n": 0}, "n"),
    ({"n": "2"}, "n"),
    ({"n": 2.0}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"stream": 1}, "stream"),
    ({"stream": "yes"}, "stream"),
]


@pytest.mark.parametrize(("body", "param"), BAD_CHATS)
def test_a_bad_field_of_a_chat_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        chat({"messages": HI, **body}, PLAIN)
    assert refused.value.outcome is Outcome.BAD_REQUEST
    assert refused.value.param == param
    assert param in refused.value.message


@pytest.mark.parametrize(
    "prompt",
    [None, [], {}, 7, ["a", 1], [1, "a"], [1.5], [-1], [True], [[]], [[1], []], [[1], "a"]],
)
def test_a_prompt_of_another_form_is_refused(prompt: object) -> None:
    with pytest.raises(Refused) as refused:
        completion({"prompt": prompt})
    assert refused.value.param == "prompt"


def test_prompt_embeddings_are_refused() -> None:
    with pytest.raises(Refused):
        completion({"prompt": "x", "prompt_embeds": "AAAA"})


@pytest.mark.parametrize("model", [None, "", 7, ["m"]])
def test_a_model_must_be_named(model: object) -> None:
    assert requested_model({"model": "m"}) == "m"
    with pytest.raises(Refused) as refused:
        requested_model({"model": model})
    assert refused.value.param == "model"


def test_what_the_template_itself_refuses_is_the_callers_fault() -> None:
    strict = ChatTemplate("{{ raise_exception('roles must alternate') }}", {}, lambda: NOW)
    with pytest.raises(Refused, match="roles must alternate"):
        chat({"messages": HI}, strict)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "function", "name", "arguments"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
FIELDS = [
    *("messages", "prompt", "tools", "documents", "n", "max_tokens", "stream"),
    *("chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
]


@given(st.dictionaries(st.sampled_from(FIELDS), anything, max_size=6))
def test_any_body_is_either_countable_or_a_bad_request(body: dict[str, Any]) -> None:
    for read in (lambda: chat(body, PLAIN), lambda: completion(body)):
        got = countable_or_outcome(read)
        assert got is Outcome.BAD_REQUEST or (isinstance(got, Countable) and got.slots >= 1)


def countable_or_outcome(read: Callable[[], Countable]) -> Countable | Outcome:
    try:
        return read()
    except Refused as refused:
        return refused.outcome


def test_more_prompts_than_any_engine_runs_at_once_are_refused_unread() -> None:
    with pytest.raises(Refused, match="at most 1024"):
        completion({"prompt": [""] * 1025})
    with pytest.raises(Refused, match="at most 1024"):
        completion({"prompt": [[1]] * 1025})
    assert completion({"prompt": [7] * 5000}).given_tokens == (5000,)
