"""Decides what chat an engine makes of a request to the responses surface.

Follows vLLM 0.32 for models whose prompts a chat template renders: instructions come first,
items become messages, and an item that goes on with the assistant's turn (a call, a thought)
joins the assistant's message before it. Nothing is stored here or there, so whatever refers to
an earlier response is refused, as are tools that the engine would run by itself.
Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from typing import Any

from gateway.fields import bad, flag, objects, reject_present, text, whole_number

__all__ = ["as_chat"]

_STATEFUL = ("previous_response_id", "conversation", "prompt", "previous_input_messages")
_ROLES = frozenset(("user", "system", "developer"))
_UNFINISHED = frozenset(("in_progress", "incomplete"))

Message = dict[str, Any]


def as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat completion body that the engine makes of ``body``.

    Raises:
        Refused: ``bad_request`` naming the field at fault.
    """
    reject_present(body, *_STATEFUL)
    if flag(body, "background", default=False):
        raise bad("background", "is not served here: nothing is stored")
    messages: list[Message] = []
    if instructions := text(body, "instructions"):
        messages.append({"role": "system", "content": instructions})
    given = body.get("input")
    continues = False
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list) and given:
        for number, item in enumerate(objects(given, "input")):
            _take(item, f"input[{number}]", messages)
        continues = _continues(given[-1], f"input[{len(given) - 1}]")
    else:
        raise bad("input", "must be a string or a list of at least one item")
    return {
        "messages": messages,
        "tools": _tools(body.get("tools")),
        "reasoning_effort": _effort(body.get("reasoning")),
        "chat_template_kwargs": body.get("chat_template_kwargs"),
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
        "max_tokens": whole_number(body, "max_output_tokens", least=1),
        "truncate_prompt_tokens": _truncation(body),
        "stream": body.get("stream"),
    }


def _take(item: Mapping[str, Any], at: str, messages: list[Message]) -> None:
    """Append what ``item`` says to ``messages``, or join it to the last of them."""
    match item.get("type", "message"):
        case "message":
            _message(item, at, messages)
        case "function_call":
            call = _call(item, at)
            last = _last_assistant(messages)
            if last is None:
                messages.append({"role": "assistant", "tool_calls": [call]})
            else:
                last.setdefault("tool_calls", []).append(call)
        case "function_call_output":
            if not isinstance(item.get("output"), str | list):
                raise bad(f"{at}.output", "must be a string or a list of parts")
            call_id = _needed(item, "call_id", at)
            messages.append({"role": "tool", "content": item["output"], "tool_call_id": call_id})
        case "reasoning":
            _join("reasoning", _reasoning(item, at), messages)
        case _:
            raise bad(at, "is a kind of item that is not served here")


def _last_assistant(messages: list[Message]) -> Message | None:
    return messages[-1] if messages and messages[-1]["role"] == "assistant" else None


def _join(key: str, value: str, messages: list[Message]) -> None:
    """Give the assistant's last message ``key`` if it has none yet, else begin another."""
    last = _last_assistant(messages)
    if last is not None and last.get(key) is None:
        last[key] = value
    else:
        messages.append({"role": "assistant", key: value})


def _message(item: Mapping[str, Any], at: str, messages: list[Message]) -> None:
    role, content = text(item, "role", at), item.get("content")
    if role in _ROLES:
        if not isinstance(content, str | list):
            raise bad(f"{at}.content", "must be a string or a list of parts")
        messages.append({"role": role, "content": content})
    elif role == "assistant":
        _join("content", content if isinstance(content, str) else _said(content, at), messages)
    else:
        raise bad(f"{at}.role", "must be user, assistant, system or developer")


def _said(content: object, at: str) -> str:
    """What an assistant's message with parts says: the engine takes exactly one."""
    parts = objects(content, f"{at}.content")
    if len(parts) != 1 or parts[0].get("type") != "output_text":
        raise bad(f"{at}.content", "must be a string or one output_text part")
    return _needed(parts[0], "text", f"{at}.content[0]")


def _call(item: Mapping[str, Any], at: str) -> dict[str, Any]:
    if item.get("namespace") is not None:
        raise bad(f"{at}.namespace", "is not supported here")
    function = {key: _needed(item, key, at) for key in ("name", "arguments")}
    return {"id": _needed(item, "call_id", at), "function": function, "type": "function"}


def _reasoning(item: Mapping[str, Any], at: str) -> str:
    if item.get("encrypted_content"):
        raise bad(f"{at}.encrypted_content", "is not supported here")
    for key in ("content", "summary"):
        parts = objects(item.get(key), f"{at}.{key}")
        if parts:
            return _needed(parts[0], "text", f"{at}.{key}[0]")
    return ""


def _needed(item: Mapping[str, Any], key: str, at: str) -> str:
    found = text(item, key, at)
    if found is None:
        raise bad(f"{at}.{key}", "must be a string")
    return found


def _continues(item: Mapping[str, Any], at: str) -> bool:
    """Whether the last item is an assistant's message that is to be gone on with."""
    kind, status = item.get("type", "message"), text(item, "status", at)
    if status not in _UNFINISHED or kind not in {"message", "reasoning"}:
        return False
    whole = kind == "message" and item.get("role") == "assistant"
    if not whole or "type" not in item or isinstance(item.get("content"), str):
        raise bad(f"{at}.status", "only a typed assistant message with parts can be unfinished")
    return True


def _tools(value: object) -> list[dict[str, Any]] | None:
    tools = objects(value, "tools")
    for number, tool in enumerate(tools):
        if tool.get("type") != "function":
            raise bad(f"tools[{number}]", "only tools of type function are served here")
    made = [
        {"type": "function", "function": {key: tool[key] for key in tool if key != "type"}}
        for tool in tools
    ]
    return made or None


def _effort(reasoning: object) -> str | None:
    if not isinstance(reasoning, dict | None):
        raise bad("reasoning", "must be an object")
    return text(reasoning or {}, "effort", "reasoning")


def _truncation(body: Mapping[str, Any]) -> int | None:
    """``-1``, as much as fits, where the engine is to cut the prompt."""
    mode = text(body, "truncation") if "truncation" in body else "disabled"
    if mode not in {"auto", "disabled", None}:
        raise bad("truncation", "must be auto or disabled")
    return None if mode == "disabled" else -1
