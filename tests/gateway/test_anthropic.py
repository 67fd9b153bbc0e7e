"""Messages in Anthropic's form become the chat that the engine makes of them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.anthropic import as_chat
from gateway.domain import Outcome, Refused
from gateway.template import ChatTemplate
from tests.gateway.minimal import TEMPLATE

NOW = datetime(2026, 7, 28, tzinfo=UTC)
PLAIN = ChatTemplate(TEMPLATE, {}, lambda: NOW)
STRICT = ChatTemplate(
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('late') }}{% endif %}{{ m.content }}{% endfor %}",
    {},
    lambda: NOW,
)
HI = [{"role": "user", "content": "hi"}]


def converted(template: ChatTemplate = PLAIN, **body: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = as_chat({"messages": HI, **body}, template)["messages"]
    return messages


def test_system_blocks_are_joined_into_one_message_before_the_others() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert converted(system=blocks) == [{"role": "system", "content": "ab"}, *HI]
    assert converted(system="a") == [{"role": "system", "content": "a"}, *HI]
    assert converted(system="") == converted(system=[]) == HI


def test_a_system_message_among_the_others_stays_unless_the_template_refuses_it() -> None:
    messages = [*HI, {"role": "system", "content": "now"}]
    assert converted(messages=messages, system="a")[-1] == {"role": "system", "content": "now"}
    merged = converted(STRICT, messages=messages, system="a")
    assert merged == [{"role": "system", "content": "anow"}, *HI]


def test_the_results_of_tools_are_messages_of_their_own_before_the_text_beside_them() -> None:
    blocks = [
        {"type": "text", "text": "and?"},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "21"}]},
    ]
    assert converted(messages=[{"role": "user", "content": blocks}]) == [
        {"role": "tool", "tool_call_id": "t", "content": "21"},
        {"role": "user", "content": "and?"},
    ]
    assert converted(messages=[{"role": "user", "content": blocks[1:]}]) == [
        {"role": "tool", "tool_call_id": "t", "content": "21"}
    ]


def test_thoughts_calls_and_texts_of_a_turn_are_one_message() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "ü"}},
    ]
    (message,) = converted(messages=[{"role": "assistant", "content": blocks}])
    assert message["reasoning"] == "hm"
    assert message["content"] == "so"
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":"ü"}'}


def test_tools_become_functions_with_an_object_as_their_schema() -> None:
    tools = [{"name": "f", "input_schema": {"properties": {}}, "description": "d"}]
    (tool,) = as_chat({"messages": HI, "tools": tools}, PLAIN)["tools"]
    assert tool["function"]["parameters"] == {"properties": {}, "type": "object"}


@pytest.mark.parametrize(
    ("source", "effort"),
    [
        ("{% if enable_thinking is defined and not enable_thinking %}q{% endif %}", "none"),
        ("{{ messages[0].content }}", "low"),
        ("{% if reasoning_effort == 'none' %}{{ raise_exception('x') }}{% endif %}hi", "low"),
    ],
)
def test_thinking_that_is_off_is_the_effort_that_the_template_tells_apart(
    source: str, effort: str
) -> None:
    template = ChatTemplate(source, {}, lambda: NOW)
    body = {"messages": HI, "thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}
    assert as_chat(body, template)["reasoning_effort"] == effort
    body["thinking"] = {"type": "adaptive"}
    assert as_chat(body, template)["reasoning_effort"] == "max"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": 7}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content"),
    ({"system": 7}, "system"),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
    ({"thinking": {"type": "maybe"}}, "thinking.type"),
    ({"thinking": True}, "thinking"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
]
BLOCKS: list[tuple[str, dict[str, Any], str]] = [
    ("user", {"type": "document"}, ""),
    ("user", {"type": "tool_reference", "tool_name": "f"}, ""),
    ("system", {"type": "tool_addition"}, ""),
    ("assistant", {"type": "tool_result", "content": "x"}, ""),
    ("assistant", {"type": "tool_use", "name": "f", "input": {}}, ".id"),
    ("assistant", {"type": "tool_use", "id": "t", "input": "x"}, ".input"),
    ("user", {"type": "text", "text": 7}, ".text"),
    ("user", {"type": "image"}, ".source"),
    ("user", {"type": "tool_result", "content": [{"type": "search_result"}]}, ".content[0]"),
]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *BAD,
        *(
            ({"messages": [{"role": role, "content": [block]}]}, f"messages[0].content[0]{at}")
            for role, block, at in BLOCKS
        ),
    ],
)
def test_what_can_not_be_followed_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        as_chat({"messages": HI, **body}, PLAIN)
    assert (refused.value.outcome, refused.value.param) == (Outcome.BAD_REQUEST, param)
