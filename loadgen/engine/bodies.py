"""Reads what a caller asks of the engine, and says no as vLLM does.

Fields that vLLM knows are checked as pydantic checks them there; unknown ones are ignored. A
refusal is an ``ApiError`` with vLLM's status, message, type and param.

Pure: no I/O, no clock.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError

__all__ = [
    "ApiError",
    "Asked",
    "Sampling",
    "TokenizeAsked",
    "decode_json",
    "output_limit",
    "read_chat",
    "read_completion",
    "read_tokenize",
]

MAX_REPORTED_ERRORS = 10
MAX_ERROR_CHARS = 1000
MAX_INPUT_CHARS = 200

TokenId = Annotated[int, Field(ge=0)]
Prompt = str | list[TokenId]
Model = TypeVar("Model", bound=BaseModel)


class ApiError(Exception):
    """A refusal in vLLM's shape; ``kind`` is the error's ``type``."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


@dataclass(frozen=True, slots=True)
class Sampling:
    """How much to generate. ``max_tokens`` None means up to the context limit."""

    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    seed: int | None
    n: int


@dataclass(frozen=True, slots=True)
class Asked:
    """One generation request: a chat body (as received) or plain prompts, and how to answer."""

    model: str | None
    chat_body: Mapping[str, Any] | None
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    priority: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool


@dataclass(frozen=True, slots=True)
class TokenizeAsked:
    """One /tokenize request: a chat body, or a plain prompt."""

    model: str | None
    chat_body: Mapping[str, Any] | None
    prompt: str
    add_special_tokens: bool
    return_token_strs: bool


class _StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Body(BaseModel):
    """Fields that chat and completions share, checked but never sampled from where unused."""

    messages: list[dict[str, Any]] | None = None
    prompt: str | list[str] | list[TokenId] | list[list[TokenId]] | None = None
    tools: list[dict[str, Any]] | None = None
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    n: int | None = 1
    seed: int | None = None
    priority: int = 0
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    user: str | None = None


class _TokenizeBody(BaseModel):
    model: str | None = None
    prompt: str = ""
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False


def decode_json(raw: bytes) -> Any:
    """Decode a body; raises ApiError naming the position of the fault."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass  # the slower parser below also accepts NaN, and words its errors as vLLM's does
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        fault = {
            "type": "json_invalid",
            "loc": ("body", error.pos),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": error.msg},
        }
    except UnicodeDecodeError as error:
        raise ApiError(400, "There was an error parsing the body", "Bad Request") from error
    raise _invalid([fault])


def read_chat(body: Any) -> Asked:
    """Read a chat completion body; raises ApiError."""
    parsed = _parse(_Body, body, required="messages")
    limit = parsed.max_completion_tokens
    return _asked(parsed, parsed.max_tokens if limit is None else limit, body, ())


def read_completion(body: Any) -> Asked:
    """Read a plain completion body; raises ApiError. The limit is 16 tokens, as OpenAI's."""
    parsed = _parse(_Body, body, required="prompt")
    limit = 16 if parsed.max_tokens is None else parsed.max_tokens
    return _asked(parsed, limit, None, _prompts(parsed.prompt))


def read_tokenize(body: Any) -> TokenizeAsked:
    """Read a /tokenize body with ``messages`` or ``prompt``; raises ApiError."""
    chat = isinstance(body, dict) and "messages" in body
    parsed = _parse(_TokenizeBody, body, required="messages" if chat else "prompt")
    special = parsed.add_special_tokens
    return TokenizeAsked(
        model=parsed.model,
        chat_body=body if chat else None,
        prompt=parsed.prompt,
        add_special_tokens=(not chat) if special is None else special,
        return_token_strs=bool(parsed.return_token_strs),
    )


def output_limit(prompt_tokens: int, sampling: Sampling, max_model_len: int) -> int:
    """Tokens that may be generated after a prompt: the asked limit, clamped to the context.

    Clamping is silent, as in vLLM: the caller sees only fewer completion tokens.

    Raises:
        ApiError: The prompt leaves no room, or the limits contradict each other.
    """
    if prompt_tokens > max_model_len:
        raise _refused(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains at least {max_model_len + 1} input tokens, which exceeds this limit even "
            "without any output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            max_model_len + 1,
        )
    room = max_model_len - prompt_tokens
    limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
    if limit < 1:
        raise _refused(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    if sampling.min_tokens < 0:
        raise _bad(f"min_tokens must be greater than or equal to 0, got {sampling.min_tokens}.")
    if sampling.min_tokens > limit:
        raise _bad(
            f"min_tokens must be less than or equal to max_tokens={limit}, "
            f"got {sampling.min_tokens}."
        )
    return limit


def _asked(parsed: _Body, max_tokens: int | None, body: Any, prompts: tuple[Prompt, ...]) -> Asked:
    options = parsed.stream_options or _StreamOptions()
    if parsed.stream_options and not parsed.stream:
        message = "Stream options can only be defined when `stream=True`."
        raise ApiError(400, message, "Bad Request", "stream_options")
    n = 1 if parsed.n is None else parsed.n
    if n < 1:
        raise _bad(f"n must be at least 1, got {n}.")
    sampling = Sampling(max_tokens, parsed.min_tokens, parsed.ignore_eos, parsed.seed, n)
    return Asked(
        model=parsed.model,
        chat_body=body,
        prompts=prompts,
        sampling=sampling,
        priority=parsed.priority,
        stream=bool(parsed.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(parsed.return_token_ids),
    )


def _prompts(prompt: Any) -> tuple[Prompt, ...]:
    """The prompts of a completion body: one text, one list of ids, or a list of either."""
    many = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    prompts = tuple(prompt) if many else (prompt,)
    if any(isinstance(each, list) and not each for each in prompts):
        raise _bad("The decoder prompt cannot be empty")
    return prompts


def _parse(kind: type[Model], body: Any, required: str) -> Model:
    if isinstance(body, dict) and body.get(required) is None:
        fault = {"type": "missing", "loc": ("body", required), "msg": "Field required"}
        raise _invalid([{**fault, "input": body}])
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        faults: list[Any] = error.errors(include_url=False)
        raise _invalid([{**each, "loc": ("body", *each["loc"])} for each in faults]) from None


def _invalid(faults: list[dict[str, Any]]) -> ApiError:
    """Word validation faults as vLLM's handler does, bounded in number and size."""
    label = "error" if len(faults) == 1 else "errors"
    lines = [f"{len(faults)} validation {label}:"]
    lines += [f"  {_fault_text(fault)}" for fault in faults[:MAX_REPORTED_ERRORS]]
    if len(faults) > MAX_REPORTED_ERRORS:
        more = len(faults) - MAX_REPORTED_ERRORS
        lines.append(f"  ...and {more} more {'error' if more == 1 else 'errors'}")
    return ApiError(400, "\n".join(lines), "Bad Request", _location(faults[0]))


def _location(fault: Mapping[str, Any]) -> str:
    """Where the fault is, without the names of union branches."""
    markers = ("str", "int", "dict", "constrained-int")
    parts = (str(part) for part in fault["loc"])
    return ".".join(part for part in parts if part not in markers and "[" not in part)


def _fault_text(fault: Mapping[str, Any]) -> str:
    shown = {**fault, "loc": _location(fault), "input": _input_text(fault.get("input"))}
    text = str(shown)
    return text if len(text) <= MAX_ERROR_CHARS else text[:MAX_ERROR_CHARS] + "...[truncated]"


def _input_text(value: object) -> object:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_INPUT_CHARS else text[:MAX_INPUT_CHARS] + "...[truncated]"


def _refused(message: str, param: str, value: int) -> ApiError:
    return ApiError(400, f"{message} (parameter={param}, value={value})", "BadRequestError", param)


def _bad(message: str) -> ApiError:
    return ApiError(400, message, "BadRequestError")
