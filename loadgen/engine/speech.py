"""Holds one answer under way, and says what a surface must be able to write of it.

A surface (chat, messages, responses, …) is a ``Style``: it turns tokens into the events of its
own stream, or the whole answer into one body. Times don't occur here.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from loadgen.engine.bodies import Asked
from loadgen.engine.core import Ticket
from loadgen.engine.refusals import ApiError
from loadgen.engine.voice import Utterance, Voice
from loadgen.engine.wire_format import Reply, Usage

__all__ = ["Answer", "MakeStyle", "Speech", "Style"]


@dataclass(slots=True)
class Speech:
    """One choice under way: ``sent`` counts the tokens given to the caller."""

    index: int
    ticket: Ticket
    utterance: Utterance
    prompt_ids: Sequence[int]
    sent: int = 0

    def reason(self) -> str:
        """Why it ended; only meaningful once it has."""
        return "abort" if self.ticket.aborted else self.utterance.finish_reason


@dataclass(frozen=True, slots=True)
class Answer:
    """All choices of one request and what its answer needs.

    ``tells_cached``: the last usage says how many prompt tokens were cached.
    """

    asked: Asked
    reply: Reply
    voice: Voice
    prompts: Sequence[Sequence[int]]
    limits: Sequence[int]
    tells_cached: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    speeches: list[Speech] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(map(len, self.prompts))

    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(speech.ticket.finished for speech in self.speeches)

    def usage(self) -> Usage:
        """The counts so far."""
        return Usage(self.prompt_tokens, sum(speech.sent for speech in self.speeches))

    @property
    def cached_tokens(self) -> int:
        """Tokens of the last prompt that were cached: of several prompts vLLM tells those."""
        return self.speeches[-1].ticket.cached_tokens if self.speeches else 0

    def final_usage(self) -> Usage:
        """The counts at the end."""
        told = self.cached_tokens if self.tells_cached else None
        return replace(self.usage(), cached_tokens=told)

    def text(self, speech: Speech) -> str:
        """What a choice has said so far."""
        return self.voice.text(speech.utterance, speech.sent)

    def take_all(self) -> None:
        """Count every generated token as given to the caller."""
        for speech in self.speeches:
            speech.sent = speech.ticket.generated


class Style(Protocol):
    """How one surface words an answer. ``comments`` says whether it keeps a stream alive."""

    comments: bool

    def opening(self) -> list[bytes]:
        """Events that are sent at once, before anything is computed."""
        ...

    def first(self) -> list[bytes]:
        """Events that come with the first token of all."""
        ...

    def tokens(self, speech: Speech) -> Iterator[bytes]:
        """Events of a choice's tokens since the last call; an abort is told once."""
        ...

    def closing(self) -> bytes:
        """What ends the stream."""
        ...

    def failure(self, error: ApiError) -> bytes | None:
        """What ends a stream that fails; None where it just breaks off."""
        ...

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        ...


MakeStyle = Callable[[Answer], Style]
