"""The chat body made of a response's input. Expectations are what vLLM 0.32 makes of it."""

from typing import Any

import pytest

from loadgen.engine.refusals import ApiError
from loadgen.engine.responses_body import read_responses

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}


def chat(given: Any, **more: Any) -> Any:
    return read_responses({"input": given, **more}).asked.chat_body


def test_a_text_is_a_user_message_after_the_instructions() -> None:
    assert chat("a", instructions="S")["messages"] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
    ]


def test_thought_call_and_text_of_one_turn_become_one_message() -> None:
    said = {"type": "message", "role": "assistant", "content": [{"text": "b"}, {"text": "lost"}]}
    (message,) = chat([THOUGHT, CALL, said])["messages"]
    assert (message["reasoning"], message["content"]) == ("hm", "b")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_a_second_text_begins_a_message_of_its_own() -> None:
    items = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert chat(items)["messages"] == items


def test_a_calls_output_is_a_tool_message() -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "r"}
    assert chat([output])["messages"] == [{"role": "tool", "content": "r", "tool_call_id": "c"}]


def test_an_unfinished_last_message_is_continued() -> None:
    said = {"role": "assistant", "content": "a", "status": "incomplete"}
    body = chat([said])
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert chat([said, {"role": "user", "content": "b"}])["continue_final_message"] is False


def test_only_functions_are_shown_to_the_model() -> None:
    function = {"type": "function", "name": "f", "parameters": {}}
    inner = {"type": "namespace", "name": "n", "tools": [function, {"type": "custom"}]}
    tools = chat("a", tools=[function, inner, {"type": "web_search"}])["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["f", "n__f"]
    assert "tools" not in chat("a")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "Field required"),
        ({"input": [{"type": "item_reference"}]}, "Unsupported input item type: item_reference"),
        ({"input": [{**THOUGHT, "encrypted_content": "x"}]}, "Encrypted content"),
        ({"input": "a", "background": True}, "background mode"),
        ({"input": "a", "background": True, "store": False}, "`store` is true"),
    ],
)
def test_what_cannot_be_answered_is_refused(body: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError, match=words):
        read_responses(body)
