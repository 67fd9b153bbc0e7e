"""The chat body made of Anthropic's messages. Expectations are what vLLM 0.32 makes of them."""

from typing import Any

import pytest

from loadgen.engine.messages_body import read_count, read_messages
from loadgen.engine.refusals import ApiError

BASE: dict[str, Any] = {"model": "m", "max_tokens": 5}


def chat(messages: list[dict[str, Any]], *, system_first: bool = False, **more: Any) -> Any:
    body = {**BASE, "messages": messages, **more}
    return read_messages(body, system_first=system_first).chat_body


def said(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_system_blocks_are_joined_and_stand_first() -> None:
    body = chat([{"role": "user", "content": "a"}], system=[words("S"), words("T")])
    assert body["messages"] == [
        {"role": "system", "content": "ST"},
        {"role": "user", "content": "a"},
    ]


def test_a_header_that_differs_in_every_request_is_dropped_from_blocks_but_not_from_a_text() -> (
    None
):
    billing = "x-anthropic-billing-header: 1"
    turn = [{"role": "user", "content": "a"}]
    assert chat(turn, system=[words(billing), words("S")])["messages"][0]["content"] == "S"
    assert chat(turn, system=billing)["messages"][0]["content"] == billing
    assert chat([*turn, said(words(billing), role="system")])["messages"] == turn


def test_a_later_system_message_moves_to_the_front_where_the_template_wants_it() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "system", "content": "S"}]
    assert chat(turns)["messages"] == turns
    moved = chat(turns, system_first=True)["messages"]
    assert [message["role"] for message in moved] == ["system", "user"]


def test_tool_results_come_before_the_rest_of_their_turn() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [words("r"), words("s")]}
    assert chat([said(words("a"), result)])["messages"] == [
        {"role": "tool", "tool_call_id": "t", "content": "r\ns"},
        {"role": "user", "content": "a"},
    ]
    assert len(chat([said(result)])["messages"]) == 1


def test_an_assistants_turn_keeps_its_thoughts_and_calls_in_one_message() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    (message,) = chat([said(thought, words("b"), call, role="assistant")])["messages"]
    assert message == {
        "role": "assistant",
        "reasoning": "hm",
        "content": "b",
        "tool_calls": [
            {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        ],
    }


def test_tools_become_functions_whose_parameters_are_an_object() -> None:
    tools = [{"name": "f", "input_schema": {"properties": {}}}]
    (tool,) = chat([{"role": "user", "content": "a"}], tools=tools)["tools"]
    assert tool["function"]["parameters"] == {"properties": {}, "type": "object"}


def test_switching_thinking_off_wins_over_an_effort() -> None:
    turn = [{"role": "user", "content": "a"}]
    assert chat(turn, output_config={"effort": "low"})["reasoning_effort"] == "low"
    off = chat(turn, output_config={"effort": "low"}, thinking={"type": "disabled"})
    assert off["reasoning_effort"] == "none"


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"model": ""},
        {"messages": [{"role": "tool", "content": "a"}]},
        {"messages": [said({"type": "document"})]},
        {"tool_choice": {"type": "tool"}},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 1500},
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    body = {**BASE, "messages": [{"role": "user", "content": "a"}], **wrong}
    with pytest.raises(ApiError, match="validation error"):
        read_messages(body, system_first=False)


def test_counting_needs_no_limit() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    assert read_count(body, system_first=False) == ("m", {"messages": body["messages"]})
