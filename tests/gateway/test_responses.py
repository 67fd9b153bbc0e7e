"""Items of the responses surface become the chat that the engine makes of them."""

from typing import Any

import pytest

from gateway.domain import Outcome, Refused
from gateway.responses import as_chat

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
MADE = {"id": "c", "function": {"name": "f", "arguments": "{}"}, "type": "function"}
HI = {"role": "user", "content": "hi"}


def converted(*items: dict[str, Any], **body: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = as_chat({"input": list(items), **body})["messages"]
    return messages


def said(text: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "content": parts, **more}


def thought(text: str) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
    }


def test_a_string_is_what_the_user_says_after_the_instructions() -> None:
    assert as_chat({"input": "hi", "instructions": "be brief"})["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]


def test_a_call_and_a_thought_join_the_assistants_message_before_them() -> None:
    assert converted(HI, thought("hm"), CALL, CALL, said("so")) == [
        HI,
        {"role": "assistant", "reasoning": "hm", "tool_calls": [MADE, MADE], "content": "so"},
    ]
    assert converted(said("a"), said("b"), thought("c")) == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "c"},
    ]


def test_the_output_of_a_call_is_a_message_of_the_tool() -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "21"}
    assert converted(CALL, output)[1] == {"role": "tool", "content": "21", "tool_call_id": "c"}


def test_an_unfinished_message_of_the_assistant_is_gone_on_with() -> None:
    chat = as_chat({"input": [HI, said("wel", status="incomplete")]})
    assert (chat["add_generation_prompt"], chat["continue_final_message"]) == (False, True)
    chat = as_chat({"input": [HI, said("well", status="completed")]})
    assert (chat["add_generation_prompt"], chat["continue_final_message"]) == (True, False)


@pytest.mark.parametrize(
    ("said_so", "cut"),
    [({}, None), ({"truncation": "disabled"}, None), ({"truncation": "auto"}, -1)],
)
def test_truncation_asks_for_as_much_as_fits(said_so: dict[str, Any], cut: int | None) -> None:
    assert as_chat({"input": "hi", **said_so})["truncate_prompt_tokens"] == cut


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": [7]}, "input"),
    ({"input": [{"type": "web_search_call"}]}, "input[0]"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
    ({"input": [{"role": "assistant", "content": []}]}, "input[0].content"),
    ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
    ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id"),
    ({"input": [{**CALL, "namespace": "n"}]}, "input[0].namespace"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    ({"input": [{**HI, "status": "incomplete"}]}, "input[0].status"),
    ({"previous_response_id": "r"}, "previous_response_id"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"background": True}, "background"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"tools": [{"type": "mcp", "server_url": "http://x"}]}, "tools[0]"),
    ({"reasoning": 7}, "reasoning"),
    ({"truncation": "some"}, "truncation"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"instructions": 7}, "instructions"),
]


@pytest.mark.parametrize(("body", "param"), BAD)
def test_what_can_not_be_followed_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        as_chat({"input": "hi", **body})
    assert (refused.value.outcome, refused.value.param) == (Outcome.BAD_REQUEST, param)
