"""Writes the bodies and stream events that a vLLM server sends.

A stream writes one event per token, thousands in a second, so everything that does not change
from token to token is encoded once per choice and joined around the token's text.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

__all__ = [
    "DONE",
    "Choice",
    "Reply",
    "StreamWriter",
    "Usage",
    "error_body",
    "error_event",
    "models_body",
    "unary_body",
]

DONE = b"data: [DONE]\n\n"
# Parts of a usage that vLLM writes as null where it leaves them out of a stream's last event.
UNTOLD = {"prompt_tokens_details": None, "completion_tokens_details": None}


@dataclass(frozen=True, slots=True)
class Reply:
    """What all chunks of one answer share; ``created`` in seconds since 1970."""

    chat: bool
    request_id: str
    created: int
    model: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer; ``cached_tokens`` only where the engine tells them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The counts in vLLM's order."""
        details = (
            {}
            if self.cached_tokens is None
            else {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}}
        )
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            **details,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished choice of a unary answer; ``token_ids`` only where asked for."""

    index: int
    text: str
    finish_reason: str
    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None


class StreamWriter:
    """Events of one streamed choice. Immutable after construction."""

    __slots__ = ("_head", "_index", "_plain_tail", "_reply")

    def __init__(self, reply: Reply, index: int) -> None:
        self._reply = reply
        self._index = index
        kind = "chat.completion.chunk" if reply.chat else "text_completion"
        envelope = orjson.dumps(
            {"id": reply.request_id, "object": kind, "created": reply.created, "model": reply.model}
        )
        field = b'"delta":{"content":' if reply.chat else b'"text":'
        self._head = b'data: %b,"choices":[{"index":%d,%b' % (envelope[:-1], index, field)
        self._plain_tail = self._tail(None, None) + b"]}\n\n"

    def token(self, text_json: bytes) -> bytes:
        """The event of one token; ``text_json`` is its text as a JSON string."""
        return self._head + text_json + self._plain_tail

    def token_with(
        self,
        text_json: bytes,
        *,
        finish_reason: str | None = None,
        token_ids: Sequence[int] | None = None,
        prompt_ids: Sequence[int] | None = None,
        usage: Usage | None = None,
        stamp: bool = False,
    ) -> bytes:
        """The event of a last token, or of one that carries its ids or the usage so far.

        ``prompt_ids`` are told by completions alone, with the first token. ``stamp`` adds the
        fingerprint: vLLM does so on a last chunk that no usage chunk follows.
        """
        tail = self._tail(finish_reason, token_ids, prompt_ids) + b"]"
        if usage is not None:
            tail += b',"usage":' + orjson.dumps(self._so_far(usage))
        if stamp:
            tail += b',"system_fingerprint":' + orjson.dumps(self._reply.fingerprint)
        return self._head + text_json + tail + b"}\n\n"

    def role(self, usage: Usage | None = None, prompt_ids: Sequence[int] | None = None) -> bytes:
        """The role-only event that opens a chat choice, sent with the first token."""
        choice = {
            "index": self._index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        chunk = _envelope(self._reply, "chat.completion.chunk", [choice])
        chunk |= {"prompt_token_ids": prompt_ids, "prompt_text": None}
        if usage is not None:
            chunk["usage"] = self._so_far(usage)
        return _event(chunk)

    def usage(self, usage: Usage) -> bytes:
        """The event without choices that ends a stream with ``include_usage``."""
        kind = "chat.completion.chunk" if self._reply.chat else "text_completion"
        chunk = _envelope(self._reply, kind, [])
        return _event(
            chunk | {"usage": usage.as_dict(), "system_fingerprint": self._reply.fingerprint}
        )

    def _so_far(self, usage: Usage) -> dict[str, Any]:
        details = {"completion_tokens_details": None} if self._reply.chat else {}
        return {**usage.as_dict(), **details}

    def _tail(
        self,
        finish_reason: str | None,
        token_ids: Sequence[int] | None,
        prompt_ids: Sequence[int] | None = None,
    ) -> bytes:
        reason = orjson.dumps(finish_reason)
        ids = orjson.dumps(token_ids)
        if self._reply.chat:
            stop = b'"stop_reason":null,' if finish_reason else b""
            return b'},"logprobs":null,"finish_reason":%b,%b"token_ids":%b}' % (reason, stop, ids)
        return (
            b',"logprobs":null,"finish_reason":%b,"stop_reason":null,'
            b'"prompt_token_ids":%b,"token_ids":%b}' % (reason, orjson.dumps(prompt_ids), ids)
        )


def unary_body(reply: Reply, choices: Sequence[Choice], usage: Usage) -> bytes:
    """The whole answer of a request that does not stream."""
    kind = "chat.completion" if reply.chat else "text_completion"
    shape = _chat_choice if reply.chat else _text_choice
    body = _envelope(reply, kind, [shape(choice) for choice in choices])
    body |= {
        "service_tier": None,
        "system_fingerprint": reply.fingerprint,
        "usage": {**UNTOLD, **usage.as_dict()},
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }
    if reply.chat:
        ids = choices[0].prompt_token_ids if choices else None
        body |= {"prompt_logprobs": None, "prompt_token_ids": ids, "prompt_text": None}
    return orjson.dumps(body)


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """An error in OpenAI's shape, as vLLM words it."""
    return orjson.dumps(_error(status, message, kind, param))


def error_event(status: int, message: str, kind: str) -> bytes:
    """An error inside a stream whose status was already sent, and the end of that stream."""
    return _event(_error(status, message, kind, None)) + DONE


def models_body(
    model: str, max_model_len: int, created: int, adapters: Mapping[str, str] | None = None
) -> bytes:
    """The list of the served model and its adapters (name to path)."""
    cards = [_card(model, model, created, max_model_len=max_model_len)]
    cards += [_card(name, path, created, parent=model) for name, path in (adapters or {}).items()]
    return orjson.dumps({"object": "list", "data": cards})


def _card(
    name: str,
    root: str,
    created: int,
    *,
    parent: str | None = None,
    max_model_len: int | None = None,
) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission],
    }


def _chat_choice(choice: Choice) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": choice.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": choice.index,
        "message": message,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": None,
        "token_ids": choice.token_ids,
        "routed_experts": None,
    }


def _text_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": None,
        "token_ids": choice.token_ids,
        "prompt_logprobs": None,
        "prompt_token_ids": choice.prompt_token_ids,
        "routed_experts": None,
    }


def _envelope(reply: Reply, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": reply.request_id,
        "object": kind,
        "created": reply.created,
        "model": reply.model,
        "choices": choices,
    }


def _error(status: int, message: str, kind: str, param: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
