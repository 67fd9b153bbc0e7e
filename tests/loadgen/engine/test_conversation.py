"""What a chat template sees. Expectations are what vLLM 0.32 shows it."""

from typing import Any

import pytest

from loadgen.engine.conversation import TextError, conversation_of, effort_of, tools_of


def seen(*messages: dict[str, Any], developers: bool = True) -> list[dict[str, Any]]:
    return conversation_of(messages, developers=developers)


def test_parts_are_joined_by_a_newline_and_empty_ones_left_out() -> None:
    parts = [{"type": "text", "text": text} for text in ("One", "", "three")]
    assert seen({"role": "user", "content": parts})[0]["content"] == "One\nthree"


def test_a_line_that_differs_in_every_request_is_dropped_from_system_texts_only() -> None:
    text = "x-anthropic-billing-header: 1\nS"
    part = {"type": "text", "text": text}
    contents = [
        message["content"]
        for message in seen(
            {"role": "system", "content": text},
            {"role": "system", "content": [part]},
            {"role": "user", "content": text},
        )
    ]
    assert contents == ["S", "S", text]


def test_a_template_without_developers_gets_one_system_message_in_front() -> None:
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "developer", "content": "D"},
    ]
    assert seen(*turns) == turns
    merged = [{"role": "system", "content": "S\n\nD"}, {"role": "user", "content": "a"}]
    assert seen(*turns, developers=False) == merged
    assert seen(*turns[:2], developers=False) == turns[:2]


def test_of_a_call_and_a_tool_only_what_vllm_knows_remains() -> None:
    call = {"id": "c", "x": 1, "function": {"name": "f", "arguments": '{"a": 1}', "y": 2}}
    (message,) = seen({"role": "assistant", "content": None, "tool_calls": [call]})
    function = {"arguments": {"a": 1}, "name": "f"}
    assert message["tool_calls"] == [{"id": "c", "function": function, "type": "function"}]
    tools = tools_of([{"type": "function", "function": {"name": "f", "z": 1}}])
    known = {"name": "f", "description": None, "parameters": None}
    assert tools == [{"type": "function", "function": known}]
    assert tools_of(None) is None


def test_an_effort_switches_thinking_unless_the_caller_did() -> None:
    assert effort_of({"reasoning_effort": "none"})["enable_thinking"] is False
    assert effort_of({"reasoning_effort": "low"})["enable_thinking"] is True
    own = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
    assert effort_of(own) == {"reasoning_effort": "low"}
    assert effort_of({"reasoning_effort": "auto"}) == effort_of({}) == {}


@pytest.mark.parametrize(
    "message",
    [{"content": "a"}, "a", {"role": "user", "content": [{"type": "image_url"}]}],
)
def test_what_has_no_text_is_refused(message: Any) -> None:
    with pytest.raises(TextError):
        conversation_of([message], developers=True)
