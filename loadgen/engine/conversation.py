"""Turns a chat body into what a chat template sees of it, as vLLM 0.32 does.

For templates of "string" content format: text parts are joined by a newline, tool definitions are
written with their defaults, tool-call arguments become objects, unknown fields are dropped.

Pure: no I/O, no clock.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["TextError", "conversation_of", "effort_of", "tools_of"]

TEXT_PARTS = ("text", "input_text", "output_text")
# A header line of one client that differs in every request; vLLM drops it for its prefix cache.
BILLING = "x-anthropic-billing-header"


class TextError(ValueError):
    """A body that the chat template or the engine can't turn into text."""


def conversation_of(messages: Iterable[object], *, developers: bool) -> list[dict[str, Any]]:
    """The messages; ``developers`` says whether the template knows that role.

    Raises:
        TextError: A message holds what this engine can't read.
    """
    seen = [_message(message) for message in messages]
    if not seen:
        raise TextError(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    if developers or not any(message["role"] == "developer" for message in seen):
        return seen
    for message in seen:
        if message["role"] == "developer":
            message["role"] = "system"
    return _system_first(seen)


def tools_of(tools: Iterable[object] | None) -> list[dict[str, Any]] | None:
    """The tools, or None where there are none to speak of.

    Raises:
        TextError: A tool is no function with a name.
    """
    return None if tools is None else [_tool(tool) for tool in tools]


def effort_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The reasoning effort as templates read it; asking for one switches thinking on or off."""
    effort = body.get("reasoning_effort")
    if effort in (None, "auto"):
        return {}
    if "enable_thinking" in (body.get("chat_template_kwargs") or {}):
        return {"reasoning_effort": effort}
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def _system_first(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All system messages as one in front, unless there is only one and it stands there."""
    system = [message for message in messages if message["role"] == "system"]
    if len(system) == 1 and messages[0] is system[0]:
        return messages
    others = [message for message in messages if message["role"] != "system"]
    texts = [message["content"] for message in system if message["content"]]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _message(message: object) -> dict[str, Any]:
    """One message as the template sees it: text content, parsed tool-call arguments."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TextError("every message must be an object with a role")
    role, content = message["role"], message.get("content")
    if role == "system":
        content = _without_billing(content)
    seen: dict[str, Any] = {"role": role, "content": _content(content)}
    if role == "assistant":
        if message.get("tool_calls"):
            seen["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
        if message.get("reasoning") is not None:
            seen["reasoning"] = seen["reasoning_content"] = message["reasoning"]
    if role == "tool" and "tool_call_id" in message:
        seen["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        seen["name"] = message["name"]
    return seen


def _without_billing(content: object) -> object:
    if isinstance(content, str):
        return content.partition("\n")[2] if content.startswith(BILLING) else content
    if not isinstance(content, list):
        return content
    return [_stripped(part) for part in content]


def _stripped(part: object) -> object:
    if isinstance(part, str):
        return _without_billing(part)
    if isinstance(part, Mapping) and part.get("type") == "text":
        return {**part, "text": _without_billing(part.get("text"))}
    return part


def _content(content: object) -> str:
    """The text of a content: its parts joined, the empty ones left out."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TextError("message content must be a text or a list of parts")
    return "\n".join(text for text in map(_part, content) if text)


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind not in TEXT_PARTS or not isinstance(text, str):
        raise TextError(f"content part of type {kind!r} is not supported: only text parts are")
    return text


def _tool_call(call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise TextError("assistant tool_calls must be of type 'function' and hold a function")
    named = {"arguments": _arguments(function.get("arguments")), "name": function.get("name")}
    return {"id": call.get("id"), "function": named, "type": "function"}


def _arguments(arguments: object) -> dict[str, Any]:
    """Arguments as an object; vLLM turns unreadable ones into an empty object, not an error."""
    parsed = arguments
    if isinstance(arguments, str) and arguments:
        try:
            parsed = json.loads(arguments)
        except json.JSONDecodeError:
            parsed = {}
    return parsed if isinstance(parsed, dict) else {}


def _tool(tool: object) -> dict[str, Any]:
    """One tool as vLLM dumps it: absent description and parameters are written as null."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping):
        raise TextError("every tool must be an object with a function")
    if not isinstance(function.get("name"), str):
        raise TextError("every tool's function must have a name")
    dumped: dict[str, Any] = {
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters"),
    }
    optional = ("strict", "defer_loading")
    dumped |= {name: function[name] for name in optional if function.get(name) is not None}
    return {"type": "function", "function": dumped}
