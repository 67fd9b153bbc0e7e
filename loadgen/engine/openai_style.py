"""Words answers as the OpenAI surfaces do: chat completions and completions."""

from collections.abc import Iterator

from loadgen.engine.refusals import ApiError
from loadgen.engine.speech import Answer, Speech
from loadgen.engine.wire_format import (
    DONE,
    Choice,
    StreamWriter,
    Usage,
    error_event,
    unary_body,
)

__all__ = ["OpenAIStyle"]


class OpenAIStyle:
    """One event per token; a chat stream opens with the role, both end with ``[DONE]``."""

    comments = True

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        asked = answer.asked
        choices = len(answer.prompts) * asked.sampling.n
        self._writers = [StreamWriter(answer.reply, index) for index in range(choices)]
        self._plain = not (asked.return_token_ids or asked.continuous_usage)

    def opening(self) -> list[bytes]:
        """Nothing: the head alone opens the stream."""
        return []

    def first(self) -> list[bytes]:
        """The role of each choice, for chat."""
        asked, prompts = self._answer.asked, self._answer.prompts
        if not self._answer.reply.chat:
            return []
        usage = Usage(self._answer.prompt_tokens, 0) if asked.continuous_usage else None
        ids = prompts[0] if asked.return_token_ids else None
        return [writer.role(usage=usage, prompt_ids=ids) for writer in self._writers]

    def tokens(self, speech: Speech) -> Iterator[bytes]:
        """One event for each token; the last one says why the choice ended."""
        writer, ticket, voice = self._writers[speech.index], speech.ticket, self._answer.voice
        for left in range(ticket.take() - 1, -1, -1):
            at = speech.sent
            speech.sent += 1
            text = voice.encoded(speech.utterance, at)
            last = ticket.finished and not left and not ticket.aborted
            if self._plain and not last:
                yield writer.token(text)
            else:
                yield self._full(speech, at, text, last=last)
        if ticket.aborted and not ticket.told:
            ticket.told = True
            yield writer.token_with(b'""', finish_reason="abort")

    def closing(self) -> bytes:
        """The usage, where asked for, and the end mark."""
        if not self._answer.asked.include_usage:
            return DONE
        return self._writers[0].usage(self._answer.final_usage()) + DONE

    def failure(self, error: ApiError) -> bytes:
        """An error event and the end mark."""
        return error_event(error.status, error.message, error.kind)

    def whole(self) -> bytes:
        """The body with all choices."""
        choices = [self._choice(speech) for speech in self._answer.speeches]
        return unary_body(self._answer.reply, choices, self._answer.final_usage())

    def _full(self, speech: Speech, at: int, text: bytes, *, last: bool) -> bytes:
        asked, answer = self._answer.asked, self._answer
        token_id = answer.voice.token_id(speech.utterance, at)
        return self._writers[speech.index].token_with(
            text,
            finish_reason=speech.reason() if last else None,
            token_ids=[token_id] if asked.return_token_ids else None,
            prompt_ids=speech.prompt_ids if asked.return_token_ids and at == 0 else None,
            usage=answer.usage() if asked.continuous_usage else None,
            stamp=last and not asked.include_usage,
        )

    def _choice(self, speech: Speech) -> Choice:
        answer, ids = self._answer, None
        if answer.asked.return_token_ids:
            ids = [answer.voice.token_id(speech.utterance, at) for at in range(speech.sent)]
        return Choice(
            index=speech.index,
            text=answer.text(speech),
            finish_reason=speech.reason(),
            token_ids=ids,
            prompt_token_ids=speech.prompt_ids if answer.asked.return_token_ids else None,
        )
