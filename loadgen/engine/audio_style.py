"""Words transcriptions as vLLM does: one text, or chunks of it ended by ``[DONE]``."""

from collections.abc import Iterator
from math import ceil
from typing import Any

import orjson

from loadgen.engine.refusals import ApiError
from loadgen.engine.speech import Answer, Speech
from loadgen.engine.wire_format import DONE, error_event

__all__ = ["AudioStyle"]


class AudioStyle:
    """The texts of all clips of a recording, one after the other; ``duration_s`` is its length."""

    comments = False

    def __init__(self, answer: Answer, duration_s: float) -> None:
        self._answer = answer
        self._duration_s = duration_s
        reply = answer.reply
        self._envelope: dict[str, Any] = {
            "id": reply.request_id,
            "object": "transcription.chunk",
            "created": reply.created,
            "model": reply.model,
        }

    def opening(self) -> list[bytes]:
        """Nothing."""
        return []

    def first(self) -> list[bytes]:
        """Nothing: there is no role."""
        return []

    def tokens(self, speech: Speech) -> Iterator[bytes]:
        """One event for each token, once all clips before this one have been told."""
        if any(not earlier.ticket.finished for earlier in self._answer.speeches[: speech.index]):
            return
        ticket, voice = speech.ticket, self._answer.voice
        for left in range(ticket.take() - 1, -1, -1):
            text = voice.encoded(speech.utterance, speech.sent)
            speech.sent += 1
            choice: dict[str, Any] = {"delta": {"content": orjson.loads(text)}}
            if ticket.finished and not left and not ticket.aborted:
                choice |= {"finish_reason": speech.reason(), "stop_reason": None}
            yield self._chunk([choice])
        if ticket.aborted and not ticket.told:
            ticket.told = True
            choice = {"delta": {"content": ""}, "finish_reason": "abort", "stop_reason": None}
            yield self._chunk([choice])

    def closing(self) -> bytes:
        """The usage, where asked for, and the end mark."""
        if not self._answer.asked.include_usage:
            return DONE
        return self._chunk([], usage=self._answer.usage().as_dict()) + DONE

    def failure(self, error: ApiError) -> bytes:
        """An error event and the end mark."""
        return error_event(error.status, error.message, error.kind)

    def whole(self) -> bytes:
        """The text with the seconds it is charged for."""
        text = " ".join(self._answer.text(speech).strip() for speech in self._answer.speeches)
        usage = {"type": "duration", "seconds": ceil(self._duration_s)}
        return orjson.dumps({"text": text, "usage": usage})

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + orjson.dumps({**self._envelope, "choices": choices, **more}) + b"\n\n"
