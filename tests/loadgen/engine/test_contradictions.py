"""Fields of a body that contradict each other are refused in vLLM's words."""

from typing import Any

import pytest

from loadgen.engine.contradictions import (
    check_chat,
    check_completion,
    check_sampling,
    check_template,
)
from loadgen.engine.refusals import ApiError

HELLO = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "look"}}


def param(check: Any, *given: Any) -> tuple[str, str | None]:
    """The kind of a refusal and the parameter it names."""
    with pytest.raises(ApiError) as caught:
        check(*given)
    assert caught.value.status == 400
    return caught.value.kind, caught.value.param


@pytest.mark.parametrize(
    ("body", "kind", "named"),
    [
        ({"stream_options": {"include_usage": True}}, "BadRequestError", "stream_options"),
        ({"tools": []}, "BadRequestError", "tools"),
        ({"tool_choice": "auto"}, "BadRequestError", "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "BadRequestError", "tool_choice"),
        ({"tools": [{"type": "function"}]}, "Bad Request", "body.tools.0.function"),
        (
            {"messages": [*HELLO, {"content": "x"}]},
            "Bad Request",
            "body.messages.1.ChatCompletionDeveloperMessageParam.role",
        ),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "BadRequestError", None),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]},
            "BadRequestError",
            None,
        ),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "BadRequestError",
            None,
        ),
    ],
)
def test_a_chat_that_contradicts_itself_is_refused(
    body: dict[str, Any], kind: str, named: str | None
) -> None:
    assert param(check_chat, {"messages": HELLO, **body}) == (kind, named)


@pytest.mark.parametrize("choice", [None, "none", "auto", "required", {"type": "function"}])
def test_every_choice_of_tools_that_vllm_knows_is_taken(choice: object) -> None:
    check_chat({"messages": HELLO, "tools": [TOOL], "tool_choice": choice})


def test_of_the_parts_of_a_content_only_the_first_is_looked_at() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}]
    check_chat({"messages": [{"role": "user", "content": parts}]})
    check_chat({"messages": [{"role": "user", "content": []}]})


def test_no_choice_needs_no_tools() -> None:
    check_chat({"messages": HELLO, "tool_choice": "none", "tools": None})


@pytest.mark.parametrize("prompt", [None, ""])
def test_a_completion_needs_something_to_go_on_from(prompt: object) -> None:
    assert param(check_completion, {"prompt": prompt}) == ("BadRequestError", "prompt")
    check_completion({"prompt": " "})


def test_a_chat_is_continued_or_answered() -> None:
    check_template({"continue_final_message": True, "add_generation_prompt": False})
    check_template({"continue_final_message": True})


@pytest.mark.parametrize(
    ("temperature", "top_p", "named"),
    [(-0.1, None, "temperature"), (None, 0.0, "top_p"), (1.0, 1.01, "top_p")],
)
def test_what_nothing_can_be_sampled_with_is_refused(
    temperature: float | None, top_p: float | None, named: str
) -> None:
    assert param(check_sampling, temperature, top_p) == ("BadRequestError", named)
    check_sampling(0.0, 1.0)


@pytest.mark.parametrize("body", [None, [], 7, "x"])
def test_what_is_no_object_is_left_to_the_reader(body: object) -> None:
    check_chat(body)
    check_completion(body)
    check_template(body)
