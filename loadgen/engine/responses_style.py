"""Words answers as OpenAI's responses surface does: one message item, numbered events."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from loadgen.engine.refusals import ApiError
from loadgen.engine.responses_body import ResponsesAsked
from loadgen.engine.speech import Answer, Speech
from loadgen.engine.wire_format import Usage

__all__ = ["ResponsesStyle"]

# What an answer repeats of its request as it came, with what stands there if it did not.
ECHOED: dict[str, Any] = {
    "instructions": None,
    "metadata": None,
    "max_tool_calls": None,
    "previous_response_id": None,
    "prompt": None,
    "reasoning": None,
    "text": None,
    "user": None,
}
ECHOED_OR_DEFAULT: dict[str, Any] = {
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "background": False,
    "service_tier": "auto",
    "truncation": "disabled",
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
TOOL_DEFAULTS = dict.fromkeys(
    ("strict", "allowed_callers", "async", "defer_loading", "description", "output_schema")
)
STATUSES = {"length": "incomplete"}


class ResponsesStyle:
    """Opens before anything is computed; ends with ``response.completed``, without an end mark.

    An error in its midst has no event: the stream breaks off, as vLLM's does.
    """

    comments = False

    def __init__(self, answer: Answer, asked: ResponsesAsked, body: Mapping[str, Any]) -> None:
        self._answer = answer
        self._asked = asked
        self._body = body
        self._number = 0
        self._item_id = "msg_" + answer.reply.request_id.removeprefix("resp_")
        self._open = False

    def opening(self) -> list[bytes]:
        """Two events that say only that the request was taken."""
        response = self._response("in_progress", [], None)
        return [
            self._event("response.created", {"response": response}),
            self._event("response.in_progress", {"response": response}),
        ]

    def first(self) -> list[bytes]:
        """Nothing: the item opens with the first text."""
        return []

    def tokens(self, speech: Speech) -> Iterator[bytes]:
        """One event for each token with text; the first opens the item and its part."""
        voice = self._answer.voice
        for _ in range(speech.ticket.take()):
            text = voice.encoded(speech.utterance, speech.sent)
            speech.sent += 1
            if text == b'""':
                continue
            if not self._open:
                self._open = True
                yield from self._item_opening()
            yield self._delta(text)

    def closing(self) -> bytes:
        """The end of the item, and the whole response."""
        events = self._item_closing() if self._open else []
        events.append(self._event("response.completed", {"response": self._final()}))
        return b"".join(events)

    def failure(self, error: ApiError) -> None:
        """Nothing can be said."""
        del error

    def whole(self) -> bytes:
        """The response as one body."""
        return orjson.dumps(self._final())

    def _item_opening(self) -> list[bytes]:
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return [
            self._event(
                "response.output_item.added",
                {"item": self._item([], "in_progress"), "output_index": 0},
            ),
            self._event("response.content_part.added", {**self._place(), "part": part}),
        ]

    def _item_closing(self) -> list[bytes]:
        text = self._answer.text(self._answer.speeches[0])
        item = {"item": self._item([_part(text)], "completed"), "output_index": 0}
        return [
            self._event(
                "response.output_text.done", {**self._place(), "logprobs": [], "text": text}
            ),
            self._event("response.content_part.done", {**self._place(), "part": _part(text)}),
            self._event("response.output_item.done", item),
        ]

    def _delta(self, text: bytes) -> bytes:
        event = (
            b'event: response.output_text.delta\ndata: {"content_index":0,"delta":%b,'
            b'"item_id":"%b","logprobs":[],"output_index":0,"sequence_number":%d,'
            b'"type":"response.output_text.delta"}\n\n'
        ) % (text, self._item_id.encode(), self._number)
        self._number += 1
        return event

    def _event(self, kind: str, data: dict[str, Any]) -> bytes:
        data = {**data, "sequence_number": self._number, "type": kind}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))

    def _place(self) -> dict[str, Any]:
        return {"content_index": 0, "item_id": self._item_id, "output_index": 0}

    def _item(self, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def _final(self) -> dict[str, Any]:
        answer = self._answer
        speech = answer.speeches[0]
        text = answer.text(speech)
        output = [self._item([_part(text)] if text else [], "completed")]
        usage = answer.usage()
        status = STATUSES.get(speech.reason(), "completed")
        return self._response(status, output, _usage_body(usage, answer.cached_tokens))

    def _response(
        self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        body, reply = self._body, self._answer.reply
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        plain = {
            name: default if body.get(name) is None else body[name]
            for name, default in {**ECHOED, **ECHOED_OR_DEFAULT}.items()
        }
        return {
            "id": reply.request_id,
            "created_at": reply.created,
            "incomplete_details": reason,
            "model": reply.model,
            "object": "response",
            "output": output,
            **plain,
            "tool_choice": self._asked.tool_choice,
            "tools": [{**TOOL_DEFAULTS, **tool} for tool in self._asked.tools],
            "max_output_tokens": self._answer.limits[0],
            "status": status,
            "top_logprobs": None,
            "usage": usage,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _usage_body(usage: Usage, cached_tokens: int) -> dict[str, Any]:
    prompt_tokens, completion_tokens = usage.prompt_tokens, usage.completion_tokens
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": cached_tokens,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [prompt_tokens],
            "cached_tokens_per_turn": [cached_tokens],
        },
        "output_tokens": completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [completion_tokens],
            "tool_output_tokens_per_turn": [0],
        },
        "total_tokens": prompt_tokens + completion_tokens,
    }
