"""Decides what chat an engine makes of a request in Anthropic's form.

Follows vLLM 0.32, which turns messages into a chat completion before it renders the template:
system blocks are joined, results of tools become messages of their own, thinking becomes
reasoning. What it would fill in by itself (an id from the clock) or resolve over the whole
conversation (tools added and removed on the way) is refused. Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.fields import BILLING, bad, objects, text
from gateway.template import ChatTemplate

__all__ = ["as_chat"]

_EFFORTS = frozenset(("low", "medium", "high", "xhigh", "max"))

Message = dict[str, Any]


def as_chat(body: Mapping[str, Any], template: ChatTemplate) -> dict[str, Any]:
    """The chat completion body that the engine makes of ``body``.

    Raises:
        Refused: ``bad_request`` naming the field at fault.
    """
    given = objects(body.get("messages"), "messages")
    merges = template.wants_system_first
    system = _system_texts(body.get("system"), "system")
    if merges:
        inline = enumerate(given)
        system += [_inline(m, f"messages[{n}]") for n, m in inline if m.get("role") == "system"]
    messages: list[Message] = []
    if any(system):
        messages.append({"role": "system", "content": "".join(system)})
    for number, message in enumerate(given):
        if message.get("role") != "system":
            _convert(message, f"messages[{number}]", messages)
        elif not merges and (found := _inline(message, f"messages[{number}]")):
            messages.append({"role": "system", "content": found})
    chat = {
        "messages": messages,
        "tools": _tools(body.get("tools")),
        "reasoning_effort": _effort(body, template),
    }
    passed = ("chat_template_kwargs", "max_tokens", "stream")
    return chat | {key: body[key] for key in passed if key in body}


def _system_texts(value: object, at: str) -> list[str]:
    if isinstance(value, str):
        return [value]
    texts = []
    for number, block in enumerate(objects(value, at)):
        where = f"{at}[{number}]"
        if block.get("type") != "text":
            raise bad(where, "must be a text block")
        found = text(block, "text", where) or ""
        if not found.startswith(BILLING):
            texts.append(found)
    return texts


def _inline(message: Mapping[str, Any], at: str) -> str:
    """The text of a system message among the others."""
    content = message.get("content")
    texts = _system_texts(content, f"{at}.content")
    if isinstance(content, str) and content.startswith(BILLING):
        return ""
    return "".join(texts)


def _convert(message: Mapping[str, Any], at: str, messages: list[Message]) -> None:
    role, content = text(message, "role", at), message.get("content")
    if role not in {"user", "assistant"}:
        raise bad(f"{at}.role", "must be user, assistant or system")
    if isinstance(content, str):
        messages.append({"role": role, "content": content})
        return
    if not isinstance(content, list):
        raise bad(f"{at}.content", "must be a string or a list of blocks")
    turn = _Turn()
    for number, block in enumerate(objects(content, f"{at}.content")):
        where = f"{at}.content[{number}]"
        # The results of tools come before what the user says beside them.
        if block.get("type") == "tool_result" and role == "user":
            messages += _result(block, where)
        else:
            turn.take(block, where)
    made = turn.message(role)
    if role == "assistant" or "content" in made:
        messages.append(made)


class _Turn:
    """What the blocks of one message come to."""

    __slots__ = ("_calls", "_parts", "_thoughts")

    def __init__(self) -> None:
        self._parts: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        self._thoughts: list[str] = []

    def take(self, block: Mapping[str, Any], at: str) -> None:
        match block.get("type"):
            case "text":
                if found := text(block, "text", at):
                    self._parts.append({"type": "text", "text": found})
            case "image":
                self._parts.append(_image(block, at))
            case "thinking":
                self._thoughts.append(text(block, "thinking", at) or "")
            case "redacted_thinking":
                pass  # opaque; the engine leaves it out as well
            case "tool_use":
                self._calls.append(_call(block, at))
            case _:
                raise bad(at, "is a kind of block that is not served here")

    def message(self, role: str) -> Message:
        made: Message = {"role": role}
        if self._thoughts:
            made["reasoning"] = "".join(self._thoughts)
        if self._calls:
            made["tool_calls"] = self._calls
        if len(self._parts) == 1 and self._parts[0]["type"] == "text":
            made["content"] = self._parts[0]["text"]
        elif self._parts:
            made["content"] = self._parts
        return made


def _image(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    if not isinstance(block.get("source"), dict):
        raise bad(f"{at}.source", "must be an object")
    return {"type": "image_url"}


def _call(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    if not isinstance(block.get("id"), str) or not block["id"]:
        raise bad(f"{at}.id", "must be a string")
    given = block.get("input")
    if not isinstance(given, dict | None):
        raise bad(f"{at}.input", "must be an object")
    arguments = orjson.dumps(given or {}).decode()
    function = {"name": text(block, "name", at) or "", "arguments": arguments}
    return {"id": block["id"], "type": "function", "function": function}


def _result(block: Mapping[str, Any], at: str) -> list[Message]:
    """A tool's result: a message of its own, and one more for the images in it."""
    content = block.get("content")
    texts, images = [], []
    if isinstance(content, str):
        texts = [content]
    else:
        for number, item in enumerate(objects(content, f"{at}.content")):
            where = f"{at}.content[{number}]"
            if item.get("type") == "text":
                texts.append(text(item, "text", where) or "")
            elif item.get("type") == "image":
                images.append(_image(item, where))
            else:
                raise bad(where, "must be a text or image block")
    call_id = text(block, "tool_use_id", at) or ""
    made: list[Message] = [{"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)}]
    return [*made, {"role": "user", "content": images}] if images else made


def _tools(value: object) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    return [_tool(tool, f"tools[{n}]") for n, tool in enumerate(objects(value, "tools"))]


def _tool(tool: Mapping[str, Any], at: str) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if not isinstance(tool.get("name"), str) or not isinstance(schema, dict):
        raise bad(at, "must have a name and an input_schema; built-in tools are not served")
    function = {
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": schema if "type" in schema else {**schema, "type": "object"},
        "strict": tool.get("strict"),
        "defer_loading": tool.get("defer_loading"),
    }
    return {"type": "function", "function": function}


def _effort(body: Mapping[str, Any], template: ChatTemplate) -> str | None:
    thinking = _object(body, "thinking")
    kind = text(thinking, "type", "thinking")
    if kind == "disabled":
        return template.disabled_effort
    if thinking and kind not in {"enabled", "adaptive"}:
        raise bad("thinking.type", "must be enabled, disabled or adaptive")
    effort = text(_object(body, "output_config"), "effort", "output_config")
    if effort is not None and effort not in _EFFORTS:
        raise bad("output_config.effort", f"must be one of {', '.join(sorted(_EFFORTS))}")
    return effort


def _object(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key)
    if not isinstance(value, dict | None):
        raise bad(key, "must be an object")
    return value or {}
