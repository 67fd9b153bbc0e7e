"""Makes bodies of many shapes from a seeded source of chance."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from gateway.domain import Surface

__all__ = ["BODIES"]

TEXTS = ("", "a", "Übung ☃", "line\nline", " pad ", "<|x|>", '{"q": "\\"}', "x-anthropic-billing")
ARGUMENTS = ("", "{}", '{"a": 1}', "[1]", "nope", '{"a": {"b": [null, 1.5]}}', "null", "7")
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}


def text(chance: Random) -> str:
    return chance.choice(TEXTS)


def some(chance: Random, make: Callable[[Random], Any], most: int = 3, least: int = 0) -> list[Any]:
    return [make(chance) for _ in range(chance.randint(least, most))]


def maybe(chance: Random, body: dict[str, Any], key: str, *values: Any) -> None:
    if chance.random() < 0.4:
        body[key] = chance.choice(values)


# -- chat ------------------------------------------------------------------------------------


def chat_part(chance: Random) -> Any:
    kind = chance.choice(("text", "input_text", "output_text", "refusal", "plain", "thinking"))
    found = text(chance)
    if kind == "plain":
        return found
    key = kind if kind in {"refusal", "thinking"} else "text"
    return {"type": kind, key: found}


def chat_call(chance: Random) -> dict[str, Any]:
    function = {"name": "f", "arguments": chance.choice(ARGUMENTS)}
    return {"id": chance.choice(("1", "call_2")), "type": "function", "function": function}


def chat_message(chance: Random) -> dict[str, Any]:
    role = chance.choice(("user", "assistant", "system", "tool", "developer"))
    content: Any = text(chance) if chance.random() < 0.6 else some(chance, chat_part, 3, 1)
    message: dict[str, Any] = {"role": role, "content": content}
    if role == "system" and chance.random() < 0.2:
        message["content"] = chance.choice(
            ("x-anthropic-billing-header: 1\nrest", "x-anthropic-billing-header: 1")
        )
    if role == "assistant":
        maybe(chance, message, "reasoning", text(chance))
        maybe(chance, message, "tool_calls", some(chance, chat_call))
        if "tool_calls" in message and chance.random() < 0.5:
            message["content"] = None
    if role == "tool":
        message["tool_call_id"] = "1"
    maybe(chance, message, "name", "ann")
    return message


def chat_tool(chance: Random) -> dict[str, Any]:
    function: dict[str, Any] = {"name": "f"}
    maybe(chance, function, "description", text(chance))
    maybe(chance, function, "parameters", SCHEMA, {})
    maybe(chance, function, "strict", True, False)
    maybe(chance, function, "unknown", 1)
    maybe(chance, function, "defer_loading", True)
    tool: dict[str, Any] = {"type": "function", "function": function}
    maybe(chance, tool, "defer_loading", True, False)
    maybe(chance, tool, "unknown", {"a": 1})
    return tool


def chat_options(chance: Random, body: dict[str, Any]) -> None:
    maybe(chance, body, "tools", some(chance, chat_tool, 2))
    maybe(chance, body, "reasoning_effort", "none", "low", "high", "medium")
    maybe(chance, body, "chat_template_kwargs", {"thinking": True}, {"enable_thinking": False}, {})


def chat(chance: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "messages": some(chance, chat_message, 4, 1)}
    chat_options(chance, body)
    maybe(chance, body, "add_generation_prompt", True, False)
    maybe(chance, body, "documents", [{"title": "a", "text": "b"}])
    return body


# -- messages --------------------------------------------------------------------------------


def block(chance: Random, role: str) -> dict[str, Any]:
    kinds = ["text", "text", "thinking", "redacted_thinking"]
    kinds += ["tool_result", "tool_result"] if role == "user" else ["tool_use", "tool_use"]
    match chance.choice(kinds):
        case "thinking":
            return {"type": "thinking", "thinking": text(chance), "signature": "s"}
        case "redacted_thinking":
            return {"type": "redacted_thinking", "data": "x"}
        case "tool_use":
            given = chance.choice(({}, {"a": "ü"}, {"b": [1, {"c": None}]}))
            return {"type": "tool_use", "id": "t1", "name": "f", "input": given}
        case "tool_result":
            content: Any = text(chance)
            if chance.random() < 0.5:
                content = some(chance, lambda c: {"type": "text", "text": text(c)})
            found = {"type": "tool_result", "tool_use_id": "t1", "content": content}
            maybe(chance, found, "is_error", True)
            return found
    return {"type": "text", "text": text(chance)}


def message(chance: Random) -> dict[str, Any]:
    role = chance.choice(("user", "user", "assistant", "assistant", "system"))
    if chance.random() < 0.4:
        return {"role": role, "content": text(chance)}
    if role == "system":
        return {"role": role, "content": system_blocks(chance)}
    return {"role": role, "content": some(chance, lambda c: block(c, role))}


def system_blocks(chance: Random) -> list[dict[str, Any]]:
    texts = (*TEXTS, "x-anthropic-billing-header: 2\nkept?")
    return some(chance, lambda c: {"type": "text", "text": c.choice(texts)})


def messages_tool(chance: Random) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": "f", "input_schema": chance.choice((SCHEMA, {}, {"a": 1}))}
    maybe(chance, tool, "description", text(chance))
    maybe(chance, tool, "strict", True, False)
    maybe(chance, tool, "defer_loading", True)
    maybe(chance, tool, "cache_control", {"type": "ephemeral"})
    return tool


def messages(chance: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "max_tokens": 2048}
    body["messages"] = some(chance, message, 4, 1)
    maybe(
        chance,
        body,
        "system",
        text(chance),
        "x-anthropic-billing-header: 3\nrest",
        system_blocks(chance),
    )
    maybe(chance, body, "tools", some(chance, messages_tool, 2))
    maybe(chance, body, "tool_choice", {"type": "auto"}, {"type": "none"}, {"type": "any"})
    maybe(
        chance,
        body,
        "thinking",
        {"type": "disabled"},
        {"type": "adaptive"},
        {"type": "enabled", "budget_tokens": 1024},
    )
    maybe(chance, body, "output_config", {"effort": "low"}, {"effort": "max"}, {})
    maybe(chance, body, "chat_template_kwargs", {"thinking": True}, {"enable_thinking": False})
    maybe(chance, body, "metadata", {"user_id": "u"})
    return body


# -- responses -------------------------------------------------------------------------------


def item(chance: Random) -> dict[str, Any]:
    kinds = ("message", "assistant", "function_call", "function_call_output", "reasoning")
    match chance.choice(kinds):
        case "message":
            return written(chance)
        case "assistant":
            return spoken(chance)
        case "function_call":
            call = {"type": "function_call", "call_id": "c1", "name": "f"}
            return {**call, "arguments": chance.choice(ARGUMENTS)}
        case "function_call_output":
            output: Any = text(chance)
            if chance.random() < 0.3:
                output = [{"type": "input_text", "text": text(chance)}]
            return {"type": "function_call_output", "call_id": "c1", "output": output}
    found: dict[str, Any] = {"type": "reasoning", "summary": []}
    if chance.random() < 0.5:
        found["summary"] = [{"type": "summary_text", "text": text(chance)}]
    maybe(chance, found, "content", [{"type": "reasoning_text", "text": text(chance)}])
    return found


def written(chance: Random) -> dict[str, Any]:
    content: Any = text(chance)
    if chance.random() < 0.5:
        content = some(chance, lambda c: {"type": "input_text", "text": text(c)}, 3, 1)
    found = {"role": chance.choice(("user", "user", "system", "developer")), "content": content}
    maybe(chance, found, "type", "message")
    return found


def spoken(chance: Random) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": text(chance)}
    if chance.random() < 0.5:
        found["content"] = [{"type": "output_text", "text": text(chance)}]
        found["type"] = "message"
        maybe(chance, found, "status", "completed", "incomplete", "in_progress")
    return found


def responses_tool(chance: Random) -> dict[str, Any]:
    tool: dict[str, Any] = {"type": "function", "name": "f", "parameters": SCHEMA}
    tool["strict"] = chance.choice((True, False, None))
    maybe(chance, tool, "description", text(chance))
    return tool


def responses(chance: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "input": text(chance)}
    if chance.random() < 0.8:
        body["input"] = some(chance, item, 5, 1)
    maybe(chance, body, "instructions", text(chance))
    maybe(chance, body, "tools", some(chance, responses_tool, 2))
    maybe(chance, body, "tool_choice", "auto", "none")
    maybe(chance, body, "reasoning", {"effort": "low"}, {"effort": "none"}, {})
    maybe(chance, body, "chat_template_kwargs", {"thinking": True}, {"enable_thinking": False})
    maybe(chance, body, "store", True, False)
    return body


BODIES: Mapping[Surface, Callable[[Random], dict[str, Any]]] = {
    Surface.CHAT: chat,
    Surface.MESSAGES: messages,
    Surface.RESPONSES: responses,
}
