"""Reads what a caller asks of the engine, and says no as vLLM does.

Fields that vLLM knows are checked as pydantic checks them there; unknown ones are ignored. A
refusal is an ``ApiError`` with vLLM's status, message, type and param.

Pure: no I/O, no clock.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, Field

from loadgen.engine.contradictions import (
    check_chat,
    check_completion,
    check_sampling,
    check_template,
)
from loadgen.engine.refusals import ApiError, bad_request, invalid, parse, refused, too_long

__all__ = [
    "Asked",
    "Prompt",
    "Sampling",
    "TokenId",
    "TokenizeAsked",
    "Truncation",
    "check_limits",
    "decode_json",
    "output_limit",
    "prompts_of",
    "read_chat",
    "read_completion",
    "read_detokenize",
    "read_tokenize",
]

TokenId = Annotated[int, Field(ge=0)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Prompt = str | list[TokenId]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How much to generate. ``max_tokens`` None means up to the context limit."""

    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    seed: int | None
    n: int
    limit_name: str = "max_tokens"


@dataclass(frozen=True, slots=True)
class Truncation:
    """How much of a prompt is kept: -1 what fits, None all; ``side`` is what is cut off."""

    tokens: int | None = None
    side: Literal["left", "right"] | None = None

    def cut(self, ids: Sequence[int], fits: int, side: str) -> Sequence[int]:
        """The kept ids of a prompt; ``side`` is the tokenizer's own."""
        kept = fits if self.tokens == -1 else self.tokens
        if kept is None or kept >= len(ids):
            return ids
        return ids[len(ids) - kept :] if (self.side or side) == "left" else ids[:kept]


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
    truncation: Truncation = Truncation()
    add_special_tokens: bool | None = None


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


class _Template(BaseModel):
    """What may be said about the chat template; a template of the caller's own is refused."""

    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None


class _Body(_Template):
    """Fields that chat and completions share, checked but never sampled from where unused."""

    messages: list[dict[str, Any]] | None = None
    prompt: list[TokenId] | list[list[TokenId]] | str | list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    n: int | None = 1
    seed: int | None = None
    priority: Int64 = 0
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = False
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    user: str | None = None


class _TokenizeBody(_Template):
    model: str | None = None
    prompt: str = ""
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = False


class _DetokenizeBody(BaseModel):
    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=2**63 - 1)]]


def decode_json(raw: bytes) -> Any:
    """Decode a body, None where there is none; raises ApiError naming the position of the fault."""
    if not raw:
        return None
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
        raise ApiError(400, "There was an error parsing the body", "") from error
    raise invalid([fault])


def read_chat(body: Any) -> Asked:
    """Read a chat completion body; raises ApiError."""
    check_chat(body)
    parsed = parse(_Body, body, required="messages")
    _refuse_template(parsed)
    if parsed.max_completion_tokens is None:
        return _asked(parsed, parsed.max_tokens, body, ())
    asked = _asked(parsed, parsed.max_completion_tokens, body, ())
    sampling = replace(asked.sampling, limit_name="max_completion_tokens")
    return replace(asked, sampling=sampling)


def read_completion(body: Any) -> Asked:
    """Read a plain completion body; raises ApiError. The limit is 16 tokens, as OpenAI's."""
    check_completion(body)
    parsed = parse(_Body, body)
    limit = 16 if parsed.max_tokens is None else parsed.max_tokens
    return _asked(parsed, limit, None, prompts_of(parsed.prompt))


def read_tokenize(body: Any) -> TokenizeAsked:
    """Read a /tokenize body with ``messages`` or ``prompt``; raises ApiError."""
    chat = isinstance(body, dict) and "messages" in body
    if isinstance(body, dict) and not chat and "prompt" not in body:
        said = {"msg": "Field required", "input": body}
        places = (("body", name) for name in ("prompt", "messages"))
        raise invalid([{"type": "missing", "loc": place, **said} for place in places])
    check_template(body)
    parsed = parse(_TokenizeBody, body, required="messages" if chat else "prompt")
    _refuse_template(parsed)
    special = parsed.add_special_tokens
    return TokenizeAsked(
        model=parsed.model,
        chat_body=body if chat else None,
        prompt=parsed.prompt,
        add_special_tokens=(not chat) if special is None else special,
        return_token_strs=bool(parsed.return_token_strs),
    )


def read_detokenize(body: Any) -> tuple[str | None, list[int]]:
    """Read a /detokenize body: the model's name and the ids; raises ApiError."""
    parsed = parse(_DetokenizeBody, body, required="tokens")
    return parsed.model, parsed.tokens


def check_limits(asked: Asked, max_model_len: int) -> None:
    """Refuse limits that no prompt could meet, as vLLM does before it encodes a text.

    Raises:
        ApiError: More tokens are asked for, or kept, than the context holds.
    """
    sampling, kept = asked.sampling, asked.truncation.tokens
    if (sampling.max_tokens or 0) > max_model_len:
        name, value = sampling.limit_name, sampling.max_tokens or 0
        raise refused(
            f"{name}={value} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            name,
            value,
        )
    if kept is not None and kept > max_model_len:
        raise refused(
            f"truncate_prompt_tokens={kept} cannot be greater than max_model_len = "
            f"{max_model_len}. Please request a smaller truncation size.",
            "truncate_prompt_tokens",
            kept,
        )


def output_limit(prompt_tokens: int, sampling: Sampling, max_model_len: int) -> int:
    """Tokens that may be generated after a prompt: the asked limit, clamped to the context.

    Clamping is silent, as in vLLM: the caller sees only fewer completion tokens.

    Raises:
        ApiError: The prompt leaves no room, or the limits contradict each other.
    """
    if prompt_tokens > max_model_len:
        raise too_long(max_model_len + 1, max_model_len)
    room = max_model_len - prompt_tokens
    limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
    if limit < 1:
        raise refused(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    if sampling.min_tokens < 0:
        raise bad_request(
            f"min_tokens must be greater than or equal to 0, got {sampling.min_tokens}."
        )
    if sampling.min_tokens > limit:
        raise bad_request(
            f"min_tokens must be less than or equal to max_tokens={limit}, "
            f"got {sampling.min_tokens}."
        )
    return limit


def _refuse_template(parsed: _Template) -> None:
    own = (parsed.chat_template_kwargs or {}).get("chat_template")
    if parsed.chat_template is not None or own is not None:
        raise bad_request(
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template."
        )


def _asked(parsed: _Body, max_tokens: int | None, body: Any, prompts: tuple[Prompt, ...]) -> Asked:
    check_sampling(parsed.temperature, parsed.top_p)
    options = parsed.stream_options or _StreamOptions()
    n = 1 if parsed.n is None else parsed.n
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.")
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
        truncation=Truncation(parsed.truncate_prompt_tokens, parsed.truncation_side),
        add_special_tokens=parsed.add_special_tokens,
    )


def prompts_of(prompt: Any) -> tuple[Prompt, ...]:
    """The prompts of a body: one text, one list of ids, or a list of either.

    Raises:
        ApiError: A list of ids is empty.
    """
    many = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    if prompt == []:
        raise bad_request("You must pass at least one prompt")
    prompts = tuple(prompt) if many else (prompt,)
    if any(isinstance(each, list) and not each for each in prompts):
        raise bad_request("The decoder prompt cannot be empty")
    return prompts
