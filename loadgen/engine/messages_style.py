"""Words answers as vLLM's Anthropic surface does: messages, their stream and their errors."""

from collections.abc import Iterator
from typing import Any

import orjson

from loadgen.engine.refusals import ApiError
from loadgen.engine.speech import Answer, Speech

__all__ = ["MessagesStyle", "messages_error"]

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta",'
DELTA_HEAD = DELTA + b'"delta":{"type":"text_delta","text":'
DELTA_TAIL = b'},"index":0}\n\n'
# vLLM reads its own chat stream to make this one; an error in it fails there as a chunk would
# that lacks its fields, and what kind of error it was is lost.
UNREADABLE = (
    "2 validation errors for ChatCompletionStreamResponse\n"
    "model\n  Field required [type=missing, input_type=dict]\n"
    "choices\n  Field required [type=missing, input_type=dict]"
)


class MessagesStyle:
    """One text block; the stream ends with ``message_stop`` and has no end mark."""

    comments = False

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._open = False

    def opening(self) -> list[bytes]:
        """Nothing: vLLM begins with the first token."""
        return []

    def first(self) -> list[bytes]:
        """The start of the message."""
        message: dict[str, Any] = {
            "id": self._answer.reply.request_id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._answer.reply.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }
        return [_event({"type": "message_start", "message": message})]

    def tokens(self, speech: Speech) -> Iterator[bytes]:
        """One event for each token with text; the first opens the block."""
        voice = self._answer.voice
        for _ in range(speech.ticket.take()):
            text = voice.encoded(speech.utterance, speech.sent)
            speech.sent += 1
            if text == b'""':
                continue
            if not self._open:
                self._open = True
                block = {"type": "text", "text": ""}
                yield _event({"type": "content_block_start", "content_block": block, "index": 0})
            yield DELTA_HEAD + text + DELTA_TAIL

    def closing(self) -> bytes:
        """The end of the block, why it ended, and the end of the message."""
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        events = [
            _event({"type": "message_delta", "delta": delta, "usage": self._usage()}),
            _event({"type": "message_stop"}),
        ]
        if self._open:
            events.insert(0, _event({"type": "content_block_stop", "index": 0}))
        return b"".join(events)

    def failure(self, error: ApiError) -> bytes:
        """An error event that tells neither status nor cause."""
        del error
        fault = {"type": "internal_error", "message": UNREADABLE}
        return _event({"type": "error", "error": fault})

    def whole(self) -> bytes:
        """The message as one body; fields that are null are left out."""
        answer = self._answer
        body: dict[str, Any] = {
            "id": answer.reply.request_id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": answer.text(answer.speeches[0])}],
            "model": answer.reply.model,
        }
        if self._stop_reason():
            body["stop_reason"] = self._stop_reason()
        return orjson.dumps(body | {"usage": self._usage()})

    def _stop_reason(self) -> str | None:
        return STOP_REASONS.get(self._answer.speeches[0].reason())

    def _usage(self) -> dict[str, int]:
        usage = self._answer.usage()
        return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}


def messages_error(error: ApiError) -> bytes:
    """A refusal in Anthropic's shape, with vLLM's own type."""
    fault = {"type": error.kind, "message": error.message}
    return orjson.dumps({"type": "error", "error": fault})


def _event(data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), orjson.dumps(data))
