"""Decides what text an engine would make of a request, and what else of it counts.

Follows vLLM 0.32: messages are normalised as its chat parser does (text parts joined by a
newline where the template takes strings, tool-call arguments as objects, tool definitions with
their defaults), then rendered as transformers renders them. Field types are checked strictly,
because the engine's lax reading of ``"n": "2"`` must not differ from this one's. What would
change the prompt's length in ways the gateway can't follow (a template of the caller's,
truncation, images) is refused. Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.domain import Outcome, Refused
from gateway.sanitize import parse
from gateway.template import ChatTemplate, TemplateError

__all__ = ["Countable", "chat", "completion", "requested_model"]

# More sequences than any engine runs at once by default.
MAX_PROMPTS = 1024
_TEXT_PARTS = frozenset(("text", "input_text", "output_text"))
_PASSED_ON = ("tool_call_id", "name", "reasoning", "reasoning_content")
# vLLM's own default for completions; chat has none.
_COMPLETION_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Countable:
    """What a request asks of an engine, before its tokens are counted.

    ``texts`` are to be tokenised, ``given_tokens`` are the sizes of prompts that came as token
    ids. ``max_tokens`` ``None``: the caller set no bound on the output.
    """

    texts: tuple[str, ...]
    add_special_tokens: bool
    given_tokens: tuple[int, ...] = ()
    n: int = 1
    max_tokens: int | None = None
    stream: bool = False

    @property
    def prompts(self) -> int:
        """How many prompts the request holds."""
        return len(self.texts) + len(self.given_tokens)

    @property
    def slots(self) -> int:
        """How many sequences the engine will run for it."""
        return self.n * self.prompts


def requested_model(body: Mapping[str, Any]) -> str:
    """The model name in ``body``; raises ``Refused`` (``bad_request``) where there is none."""
    name = body.get("model")
    if not isinstance(name, str) or not name:
        raise _bad("model", "must be the name of a model")
    return name


def chat(body: Mapping[str, Any], template: ChatTemplate) -> Countable:
    """What a chat completion request asks.

    Raises:
        Refused: ``bad_request`` naming the field at fault.
    """
    _reject_present(body, "chat_template", "prompt_embeds", "truncate_prompt_tokens")
    generation = _flag(body, "add_generation_prompt", default=True)
    continues = _flag(body, "continue_final_message", default=False)
    if generation and continues:
        raise _bad("continue_final_message", "needs add_generation_prompt to be false")
    variables = {
        "tools": _tools(body.get("tools")),
        "documents": _documents(body.get("documents")),
        "add_generation_prompt": generation,
        **_template_kwargs(body, template),
    }
    messages = _messages(body.get("messages"), as_parts=template.takes_parts)
    try:
        text = template.render(messages, variables, continue_final_message=continues)
    except TemplateError as error:
        raise _bad("messages", f"the model's chat template refuses them: {error}") from error
    limit = _count(body, "max_completion_tokens", least=1)
    return Countable(
        texts=(text,),
        add_special_tokens=_flag(body, "add_special_tokens", default=False),
        n=_count(body, "n", least=1) or 1,
        max_tokens=_count(body, "max_tokens", least=1) if limit is None else limit,
        stream=_flag(body, "stream", default=False),
    )


def completion(body: Mapping[str, Any]) -> Countable:
    """What a plain completion request asks; raises as ``chat`` does."""
    _reject_present(body, "prompt_embeds", "truncate_prompt_tokens")
    texts, given = _prompts(body.get("prompt"))
    limit = _count(body, "max_tokens", least=0)
    return Countable(
        texts=texts,
        given_tokens=given,
        add_special_tokens=_flag(body, "add_special_tokens", default=True),
        n=_count(body, "n", least=1) or 1,
        max_tokens=_COMPLETION_MAX_TOKENS if limit is None else limit,
        stream=_flag(body, "stream", default=False),
    )


def _bad(param: str, reason: str) -> Refused:
    return Refused(Outcome.BAD_REQUEST, f"{param}: {reason}.", param=param)


def _reject_present(body: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if body.get(key) is not None:
            raise _bad(key, "is not supported here")


def _flag(body: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _bad(key, "must be true or false")
    return value


def _count(body: Mapping[str, Any], key: str, *, least: int) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise _bad(key, f"must be a whole number of at least {least}")
    return value


def _messages(value: object, *, as_parts: bool) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise _bad("messages", "must be a list of at least one message")
    return [_message(item, f"messages[{at}]", as_parts) for at, item in enumerate(value)]


def _message(value: object, at: str, as_parts: bool) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise _bad(at, "must be an object with a role")
    texts = _texts(value.get("content"), at)
    content = [{"type": "text", "text": t} for t in texts] if as_parts else "\n".join(texts)
    message = {"role": value["role"], "content": content}
    for key in _PASSED_ON:
        if isinstance(value.get(key), str):
            message[key] = value[key]
    calls = value.get("tool_calls")
    if calls is not None and value["role"] == "assistant":
        message["tool_calls"] = _tool_calls(calls, f"{at}.tool_calls")
    return message


def _texts(content: object, at: str) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise _bad(f"{at}.content", "must be a string or a list of parts")
    return [_part(part, f"{at}.content[{number}]") for number, part in enumerate(content)]


def _part(part: object, at: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    key = "text" if isinstance(kind, str) and kind in _TEXT_PARTS else "refusal"
    text = part.get(key) if isinstance(part, dict) else None
    if not isinstance(text, str) or (key == "refusal" and kind != "refusal"):
        raise _bad(at, "must be a text part; other kinds are not served")
    return text


def _tool_calls(calls: object, at: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise _bad(at, "must be a list")
    return [_tool_call(call, f"{at}[{number}]") for number, call in enumerate(calls)]


def _tool_call(call: object, at: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise _bad(at, "must be an object with a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments:
        try:
            arguments = parse(arguments.encode())
        except ValueError as error:
            raise _bad(f"{at}.function.arguments", f"is not JSON: {error}") from error
    return {**call, "function": {**function, "arguments": arguments or {}}}


def _tools(value: object) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise _bad("tools", "must be a list")
    return [_tool(tool, f"tools[{number}]") for number, tool in enumerate(value)]


def _tool(tool: object, at: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict):
        raise _bad(at, "must be an object with a function")
    if not isinstance(function.get("name"), str):
        raise _bad(f"{at}.function.name", "must be a string")
    # The engine's model of a tool writes these first, in this order, absent ones as null.
    known = {key: function.get(key) for key in ("name", "description", "parameters")}
    first = {"type": tool.get("type", "function"), "function": {**known, **function}}
    return {**first, **{key: item for key, item in tool.items() if key not in first}}


def _documents(value: object) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _bad("documents", "must be a list of objects")
    return value


def _template_kwargs(body: Mapping[str, Any], template: ChatTemplate) -> dict[str, Any]:
    given = body.get("chat_template_kwargs")
    if given is not None and not isinstance(given, dict):
        raise _bad("chat_template_kwargs", "must be an object")
    kwargs = dict(given or {})
    for key in kwargs:
        if key not in template.allowed_kwargs:
            raise _bad("chat_template_kwargs", f"the key {key[:64]!r} is not allowed")
    effort = body.get("reasoning_effort")
    if effort is not None:
        if not isinstance(effort, str):
            raise _bad("reasoning_effort", "must be a string")
        kwargs["reasoning_effort"] = effort
    return kwargs


def _prompts(value: object) -> tuple[tuple[str, ...], tuple[int, ...]]:
    if isinstance(value, str):
        return (value,), ()
    if not isinstance(value, list) or not value:
        raise _bad("prompt", "must be a string, a list of strings, or lists of token ids")
    if len(value) > MAX_PROMPTS and not isinstance(value[0], int):
        raise _bad("prompt", f"at most {MAX_PROMPTS} prompts may be sent at once")
    if all(isinstance(item, str) for item in value):
        return tuple(value), ()
    if _is_token_ids(value):
        return (), (len(value),)
    if all(isinstance(item, list) and item and _is_token_ids(item) for item in value):
        return (), tuple(len(item) for item in value)
    raise _bad("prompt", "must be a string, a list of strings, or lists of token ids")


def _is_token_ids(value: Sequence[object]) -> bool:
    return all(type(item) is int and item >= 0 for item in value)
