"""Reads Anthropic's messages, and turns them into the chat body that vLLM makes of them.

vLLM serves this form by converting it to chat completions: system texts are joined, tool results
become messages of their own before the turn that carried them, thinking becomes reasoning, tools
become functions. Blocks that change the tools in mid-conversation are refused here.

Pure: no I/O, no clock.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from loadgen.engine.bodies import Asked, Sampling
from loadgen.engine.refusals import parse

__all__ = ["read_count", "read_messages"]

# A header of one client that differs in every request; vLLM drops it for its prefix cache.
BILLING = "x-anthropic-billing-header"


class _Block(BaseModel):
    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
    ]
    text: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    thinking: str | None = None


class _Message(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(BaseModel):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    defer_loading: bool | None = None


class _ToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None

    @model_validator(mode="after")
    def _named(self) -> "_ToolChoice":
        if self.type == "tool" and not self.name:
            raise ValueError("tool_choice.name is required when type is 'tool'")
        return self


class _Thinking(BaseModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(default=None, ge=1024)


class _OutputConfig(BaseModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class _CountBody(BaseModel):
    """Fields that decide the prompt; both paths have them."""

    model: str
    messages: list[_Message]
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @field_validator("model")
    @classmethod
    def _has_model(cls, value: str) -> str:
        if not value:
            raise ValueError("Model is required")
        return value


class _MessagesBody(_CountBody):
    max_tokens: int
    stream: bool | None = False
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None

    @field_validator("max_tokens")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value <= 0:
            raise ValueError("max_tokens must be positive")
        return value

    @model_validator(mode="after")
    def _room_to_answer(self) -> "_MessagesBody":
        budget = self.thinking.budget_tokens if self.thinking else None
        if budget is not None and budget >= self.max_tokens:
            raise ValueError("thinking.budget_tokens must be less than max_tokens")
        return self


def read_messages(body: Any, *, system_first: bool) -> Asked:
    """Read a /v1/messages body; ``system_first`` as the template wants it. Raises ApiError.

    The body's own ``priority`` has no effect there: only the header's has.
    """
    parsed = parse(_MessagesBody, body)
    return Asked(
        model=parsed.model,
        chat_body=_chat_body(parsed, system_first=system_first),
        prompts=(),
        sampling=Sampling(parsed.max_tokens, 0, False, None, 1, "max_completion_tokens"),
        priority=0,
        stream=bool(parsed.stream),
        include_usage=True,
        continuous_usage=True,
        return_token_ids=False,
    )


def read_count(body: Any, *, system_first: bool) -> tuple[str, dict[str, Any]]:
    """Read a count_tokens body: the model's name and the chat body; raises ApiError."""
    parsed = parse(_CountBody, body)
    return parsed.model, _chat_body(parsed, system_first=system_first)


def _chat_body(parsed: _CountBody, *, system_first: bool) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    # Only blocks and messages are searched for that header, the plain system text is not.
    plain = isinstance(parsed.system, str)
    system = [str(parsed.system or "")] if plain else _system_texts(parsed.system)
    if system_first:
        inline = [message for message in parsed.messages if message.role == "system"]
        system += [text for message in inline for text in _system_texts(message.content)]
    if any(system):
        messages.append({"role": "system", "content": "".join(system)})
    for message in parsed.messages:
        if message.role != "system":
            messages += _converted(message)
        elif not system_first and (texts := _system_texts(message.content)):
            messages.append({"role": "system", "content": "".join(texts)})
    body: dict[str, Any] = {"messages": messages}
    if parsed.tools is not None:
        body["tools"] = [_function(tool) for tool in parsed.tools]
    if parsed.chat_template_kwargs:
        body["chat_template_kwargs"] = parsed.chat_template_kwargs
    effort = _effort(parsed)
    return body | ({"reasoning_effort": effort} if effort else {})


def _system_texts(content: str | list[_Block] | None) -> list[str]:
    if isinstance(content, str):
        texts = [content]
    else:
        texts = [block.text or "" for block in content or () if block.type == "text"]
    return [text for text in texts if text and not text.startswith(BILLING)]


def _converted(message: _Message) -> list[dict[str, Any]]:
    """One turn as chat messages: its tool results first, then what else it says."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[dict[str, Any]] = []
    said: dict[str, Any] = {"role": message.role}
    parts: list[dict[str, Any]] = []
    for block in message.content:
        if block.type == "tool_result" and message.role == "user":
            results += _tool_result(block)
        else:
            _add_block(block, said, parts)
    if len(parts) == 1 and parts[0]["type"] == "text":
        said["content"] = parts[0]["text"]
    elif parts:
        said["content"] = parts
    silent = message.role == "user" and "content" not in said
    return results if silent else [*results, said]


def _add_block(block: _Block, said: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    if block.type == "text" and block.text:
        parts.append({"type": "text", "text": block.text})
    elif block.type == "image" and block.source:
        parts.append(_image(block.source))
    elif block.type == "thinking" and block.thinking is not None:
        said["reasoning"] = said.get("reasoning", "") + block.thinking
    elif block.type == "tool_use":
        said.setdefault("tool_calls", []).append(_tool_call(block))
    elif block.type == "tool_result":
        result = str(block.content) if block.content else ""
        parts.append({"type": "text", "text": f"Tool result: {result}"})


def _tool_call(block: _Block) -> dict[str, Any]:
    function = {"name": block.name or "", "arguments": json.dumps(block.input or {})}
    return {"id": block.id or "call_0", "type": "function", "function": function}


def _tool_result(block: _Block) -> list[dict[str, Any]]:
    """A result as a tool message; its images follow in a user message."""
    content = block.content
    items = content if isinstance(content, list) else []
    text = content if isinstance(content, str) else ""
    if items:
        text = "\n".join(item.get("text", "") for item in items if item.get("type") == "text")
    messages: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": block.tool_use_id or "", "content": text}
    ]
    images = [_image(item.get("source") or {}) for item in items if item.get("type") == "image"]
    if images:
        messages.append({"role": "user", "content": images})
    return messages


def _image(source: dict[str, Any]) -> dict[str, Any]:
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _function(tool: _Tool) -> dict[str, Any]:
    schema = tool.input_schema if "type" in tool.input_schema else None
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": schema or {**tool.input_schema, "type": "object"},
        "strict": tool.strict,
        "defer_loading": tool.defer_loading,
    }
    return {"type": "function", "function": function}


def _effort(parsed: _CountBody) -> str | None:
    if parsed.thinking is not None and parsed.thinking.type == "disabled":
        return "none"
    return parsed.output_config.effort if parsed.output_config else None
