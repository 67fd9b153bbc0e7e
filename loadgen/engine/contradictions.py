"""Says no to fields of a body that contradict each other, as vLLM's own validators do.

These look at the body as received, before its fields are checked one by one.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from typing import Any

from loadgen.engine.refusals import bad_request, invalid, refused

__all__ = ["check_chat", "check_completion", "check_sampling", "check_template"]

# vLLM reports a message without a role once for each kind of message; the first names the place.
FIRST_KIND = "ChatCompletionDeveloperMessageParam"
OTHER_SURFACES = ("input_text", "output_text")


def check_chat(body: Any) -> None:
    """Refuse a chat body that contradicts itself.

    Raises:
        ApiError: Status 400, with vLLM's words.
    """
    if isinstance(body, dict):
        check_template(body)
        _check_tools(body)
        _check_stream(body)
        _check_items(body)
        _check_parts(body)


def check_completion(body: Any) -> None:
    """Refuse a completion body that contradicts itself, or has nothing to go on from.

    Raises:
        ApiError: Status 400, with vLLM's words.
    """
    if not isinstance(body, dict):
        return
    if body.get("prompt") in (None, ""):
        raise refused("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    _check_stream(body)


def check_template(body: Any) -> None:
    """Refuse a chat that is to be continued and to be answered.

    Raises:
        ApiError: Status 400, with vLLM's words.
    """
    both = ("continue_final_message", "add_generation_prompt")
    if isinstance(body, dict) and all(body.get(name) for name in both):
        raise bad_request(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        )


def check_sampling(temperature: float | None, top_p: float | None) -> None:
    """Refuse what nothing can be sampled with.

    Raises:
        ApiError: Status 400, with vLLM's words.
    """
    if temperature is not None and temperature < 0:
        message = f"temperature must be non-negative, got {temperature}."
        raise refused(message, "temperature", temperature)
    if top_p is not None and not 0 < top_p <= 1:
        raise refused(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)


def _check_stream(body: Mapping[str, Any]) -> None:
    if body.get("stream_options") and not body.get("stream"):
        message = "Stream options can only be defined when `stream=True`."
        raise refused(message, "stream_options")


def _check_tools(body: Mapping[str, Any]) -> None:
    if body.get("tools") == []:
        raise refused(
            "`tools` must not be an empty array. Either provide at least one tool or omit the "
            "field entirely.",
            "tools",
        )
    choice = body.get("tool_choice")
    if choice in (None, "none"):
        return
    if body.get("tools") is None:
        raise refused("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if choice not in ("auto", "required") and not isinstance(choice, dict):
        raise refused(
            f"Invalid value for `tool_choice`: {choice}! Only named tools, "
            '"none", "auto" or "required" are supported.',
            "tool_choice",
        )


def _check_items(body: Mapping[str, Any]) -> None:
    """Refuse messages without a role and tools without a function."""
    wanted = {"messages": ("role", (FIRST_KIND, "role")), "tools": ("function", ("function",))}
    for name, (key, below) in wanted.items():
        items = body.get(name)
        for at, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict) and key not in item:
                fault = {"type": "missing", "loc": ("body", name, at, *below)}
                raise invalid([{**fault, "msg": "Field required", "input": item}])


def _check_parts(body: Mapping[str, Any]) -> None:
    """Refuse content whose first part is no typed one: vLLM looks at that one alone."""
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list) or not content:
            continue
        first = content[0]
        if not isinstance(first, dict) or first.get("type") in OTHER_SURFACES:
            raise bad_request(
                "validation error: the first content part must be an object of a chat"
            )
