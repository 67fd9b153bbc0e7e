"""Reads OpenAI's responses, and turns them into the chat body that vLLM makes of them.

Items of the input become messages; reasoning, calls and texts of one assistant turn that follow
each other become one message. Of an assistant's content only the first part counts. Tools other
than functions are never shown to the model.

Pure: no I/O, no clock.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from loadgen.engine.bodies import Asked, Sampling, Truncation
from loadgen.engine.refusals import ApiError, parse

__all__ = ["ResponsesAsked", "read_responses"]

NO_STORE = (
    "This vLLM engine does not support `store=True` and therefore does not support the background "
    "mode. To enable these features, set the environment variable "
    "`VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."
)
UNFINISHED = ("in_progress", "incomplete")
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


class _Reasoning(BaseModel):
    effort: str | None = None


class _Body(BaseModel):
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    model: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    reasoning: _Reasoning | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    store: bool | None = True
    background: bool | None = False
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: Any = "auto"
    truncation: Literal["auto", "disabled"] | None = "disabled"
    request_id: str | None = None
    priority: Int64 = 0
    seed: Int64 | None = None
    ignore_eos: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _stored_to_run_on(self) -> "_Body":
        if self.background and not self.store:
            raise ValueError("background can only be used when `store` is true")
        return self


@dataclass(frozen=True, slots=True)
class ResponsesAsked:
    """One request: what the engine needs, the caller's id for it, and what it asks back for."""

    asked: Asked
    request_id: str | None
    previous_id: str | None
    tools: tuple[dict[str, Any], ...]
    tool_choice: Any


def read_responses(body: Any) -> ResponsesAsked:
    """Read a /v1/responses body.

    Raises:
        ApiError: It does not fit, holds an item that can't be read, or wants to run on alone.
    """
    parsed = parse(_Body, body)
    if parsed.background:
        raise ApiError(400, NO_STORE, "invalid_request_error", "background")
    asked = Asked(
        model=parsed.model,
        chat_body=_chat_body(parsed),
        prompts=(),
        sampling=Sampling(
            parsed.max_output_tokens, 0, parsed.ignore_eos, parsed.seed, 1, "max_output_tokens"
        ),
        priority=parsed.priority,
        stream=bool(parsed.stream),
        include_usage=True,
        continuous_usage=False,
        return_token_ids=False,
        truncation=Truncation(None if parsed.truncation == "disabled" else -1),
    )
    choice = parsed.tool_choice if parsed.tools else "none"
    tools = tuple(parsed.tools)
    return ResponsesAsked(asked, parsed.request_id, parsed.previous_response_id, tools, choice)


def _chat_body(parsed: _Body) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if parsed.instructions:
        messages.append({"role": "system", "content": parsed.instructions})
    if isinstance(parsed.input, str):
        messages.append({"role": "user", "content": parsed.input})
    else:
        _add_items(parsed.input, messages)
    unfinished = _continues(parsed.input)
    body: dict[str, Any] = {
        "messages": messages,
        "add_generation_prompt": not unfinished,
        "continue_final_message": unfinished,
    }
    functions = [each for tool in parsed.tools for each in _functions(tool)]
    if parsed.tools:
        body["tools"] = functions
    if parsed.chat_template_kwargs:
        body["chat_template_kwargs"] = parsed.chat_template_kwargs
    if parsed.reasoning is not None and parsed.reasoning.effort is not None:
        body["reasoning_effort"] = parsed.reasoning.effort
    return body


def _add_items(items: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    """Append the items; one that belongs to the assistant turn before it is merged there."""
    first = len(messages)
    for item in items:
        message = _message(item)
        last = messages[-1] if len(messages) > first else {}
        both_assistant = last.get("role") == message.get("role") == "assistant"
        if not (both_assistant and _merged(message, last)):
            messages.append(message)


def _message(item: dict[str, Any]) -> dict[str, Any]:
    kind, role = item.get("type"), item.get("role")
    if kind == "function_call":
        return {"role": "assistant", "tool_calls": [_call(item)]}
    if kind == "reasoning":
        return {"role": "assistant", "reasoning": _thought(item)}
    if kind == "function_call_output":
        output = item.get("output")
        return {"role": "tool", "content": output, "tool_call_id": item.get("call_id")}
    if role == "assistant":
        return {"role": "assistant", "content": _first_text(item.get("content"))}
    if isinstance(role, str):
        return item
    raise _refused_item(kind)


def _merged(message: dict[str, Any], last: dict[str, Any]) -> bool:
    """Put a part of an assistant turn into the one before it, where that lacks it."""
    if "tool_calls" in message:
        last.setdefault("tool_calls", []).extend(message["tool_calls"])
        return True
    name = "reasoning" if "reasoning" in message else "content"
    if last.get(name) is not None:
        return False
    last[name] = message[name]
    return True


def _call(item: dict[str, Any]) -> dict[str, Any]:
    name = str(item.get("name"))
    if item.get("namespace"):
        name = f"{item['namespace']}__{name}"
    function = {"name": name, "arguments": item.get("arguments")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _thought(item: dict[str, Any]) -> str:
    if item.get("encrypted_content"):
        message = "Encrypted content is not supported. (parameter=input)"
        raise ApiError(400, message, "BadRequestError", "input")
    parts = item.get("content") or item.get("summary") or [{"text": ""}]
    return str(parts[0].get("text", ""))


def _first_text(content: object) -> str | None:
    if isinstance(content, list):
        content = content[0].get("text") if content and isinstance(content[0], dict) else None
    return content if isinstance(content, str) else None


def _refused_item(kind: object) -> ApiError:
    message = f"Unsupported input item type: {kind} (parameter=input)"
    return ApiError(400, message, "BadRequestError", "input")


def _continues(items: str | list[dict[str, Any]]) -> bool:
    """Whether the last message is to be continued rather than answered."""
    if isinstance(items, str) or not items:
        return False
    last = items[-1]
    kinds = ("message", "reasoning")
    return last.get("type", "message") in kinds and last.get("status") in UNFINISHED


def _functions(tool: dict[str, Any]) -> list[dict[str, Any]]:
    """The functions of a tool as the template sees them."""
    if tool.get("type") == "namespace":
        inner = [each for each in tool.get("tools") or () if each.get("type") == "function"]
        named = [{**each, "name": f"{tool.get('name')}__{each.get('name')}"} for each in inner]
        return [function for each in named for function in _functions(each)]
    if tool.get("type") != "function":
        return []
    names = ("name", "description", "parameters", "strict", "defer_loading")
    return [{"type": "function", "function": {name: tool.get(name) for name in names}}]
