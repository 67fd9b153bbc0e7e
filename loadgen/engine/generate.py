"""Answers one generation request: checks it, queues its sequences, streams or collects tokens.

The order of checks is vLLM's: the body, the model's name, native admission, the prompt's
length. A caller that leaves cancels its sequences, whatever state they are in.
"""

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from loadgen.engine.bodies import ApiError, Asked, Prompt, output_limit
from loadgen.engine.core import EngineCore, Job, Ticket
from loadgen.engine.exchange import Exchange
from loadgen.engine.faults import FaultPlan
from loadgen.engine.textmodel import TextError, TextModel
from loadgen.engine.voice import Utterance, Voice
from loadgen.engine.wire_format import (
    DONE,
    Choice,
    Reply,
    StreamWriter,
    Usage,
    error_event,
    unary_body,
)

__all__ = ["Faults", "Generator", "Limits", "new_reply"]

BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
BROKEN = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass(frozen=True, slots=True)
class Limits:
    """Native admission: None where unlimited."""

    queued_requests: int | None = None
    queued_tokens: int | None = None


@dataclass(slots=True)
class Faults:
    """The planned faults and how many data events and streams have gone out so far."""

    plan: FaultPlan
    events: int = 0
    streams: int = 0


@dataclass(slots=True)
class _Sequence:
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
class _Answer:
    """All sequences of one request and what its answer needs."""

    asked: Asked
    reply: Reply
    ready: asyncio.Event
    sequences: list[_Sequence]
    prompt_tokens: int

    def finished(self) -> bool:
        return all(seq.ticket.finished for seq in self.sequences)

    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, sum(seq.sent for seq in self.sequences))


class Generator:
    """Serves generation requests of one engine.

    ``executor`` runs the tokenizer: encoding a long prompt takes milliseconds that no stream
    should wait for.
    """

    def __init__(
        self,
        core: EngineCore,
        text: TextModel,
        voice: Voice,
        limits: Limits,
        faults: Faults,
        executor: Executor,
    ) -> None:
        self._core = core
        self._text = text
        self._voice = voice
        self._limits = limits
        self._faults = faults
        self._executor = executor

    async def serve(self, exchange: Exchange, asked: Asked, reply: Reply) -> None:
        """Answer a checked request; raises ApiError for what must be refused before a status."""
        self._admit(asked)
        prompts = [await self._prompt_ids(asked, prompt) for prompt in _prompts(asked)]
        if asked.stream and self._faults.streams < self._faults.plan.busy_event:
            self._faults.streams += 1
            await exchange.open_stream()
            await exchange.close_stream(error_event(503, BUSY, "Service Unavailable"))
            return
        answer = self._start(asked, reply, prompts)
        watcher = asyncio.ensure_future(_watch(exchange, answer.ready))
        try:
            send = self._stream if asked.stream else self._collect
            await send(exchange, answer, watcher.done)
        finally:
            watcher.cancel()
            for seq in answer.sequences:
                self._core.cancel(seq.ticket)

    def _admit(self, asked: Asked) -> None:
        limits, core = self._limits, self._core
        wanted = len(asked.prompts or (0,)) * asked.sampling.n
        if limits.queued_requests is not None and core.unfinished + wanted > limits.queued_requests:
            core.metrics.rejected("max_num_queued_reqs")
            raise ApiError(503, BUSY, "Service Unavailable")
        if limits.queued_tokens is not None and core.prefill_tokens_queued >= limits.queued_tokens:
            core.metrics.rejected("max_num_queued_tokens")
            raise ApiError(503, BUSY, "Service Unavailable")

    async def _prompt_ids(self, asked: Asked, prompt: Prompt | None) -> Sequence[int]:
        if isinstance(prompt, list):
            return prompt
        loop = asyncio.get_running_loop()
        try:
            if asked.chat_body is not None:
                return await loop.run_in_executor(
                    self._executor, self._text.chat_ids, asked.chat_body
                )
            return await loop.run_in_executor(self._executor, self._text.text_ids, prompt or "")
        except TextError as error:
            raise ApiError(400, str(error), "BadRequestError") from error

    def _start(self, asked: Asked, reply: Reply, prompts: Sequence[Sequence[int]]) -> _Answer:
        """Queue every choice of every prompt; checks all prompts before queueing any."""
        longest = self._core.scheduler.config.max_model_len
        limits = [output_limit(len(ids), asked.sampling, longest) for ids in prompts]
        if not all(prompts):
            raise ApiError(400, "The decoder prompt cannot be empty", "BadRequestError")
        ready = asyncio.Event()
        sequences: list[_Sequence] = []
        for ids, limit in zip(prompts, limits, strict=True):
            for _ in range(asked.sampling.n):
                index = len(sequences)
                utterance = self._voice.plan(ids, asked.sampling, limit, index)
                job = _job(asked, ids, utterance, limit)
                sequences.append(_Sequence(index, self._core.submit(job, ready), utterance, ids))
        return _Answer(asked, reply, ready, sequences, sum(map(len, prompts)))

    async def _collect(self, exchange: Exchange, answer: _Answer, gone: Callable[[], bool]) -> None:
        while not answer.finished():
            await answer.ready.wait()
            answer.ready.clear()
            if gone():
                return
        for seq in answer.sequences:
            seq.sent = seq.ticket.generated
        choices = [self._choice(seq, answer.asked) for seq in answer.sequences]
        await exchange.answer(200, unary_body(answer.reply, choices, answer.usage()))

    def _choice(self, seq: _Sequence, asked: Asked) -> Choice:
        ids = None
        if asked.return_token_ids:
            ids = [self._voice.token_id(seq.utterance, at) for at in range(seq.sent)]
        return Choice(
            index=seq.index,
            text=self._voice.text(seq.utterance, seq.sent),
            finish_reason=seq.reason(),
            token_ids=ids,
            prompt_token_ids=seq.prompt_ids if asked.return_token_ids else None,
        )

    async def _stream(self, exchange: Exchange, answer: _Answer, gone: Callable[[], bool]) -> None:
        await exchange.open_stream()
        writers = [StreamWriter(answer.reply, seq.index) for seq in answer.sequences]
        opened = not answer.reply.chat
        while not answer.finished():
            await answer.ready.wait()
            answer.ready.clear()
            if gone():
                return
            events: list[bytes] = []
            if not opened:
                opened = True
                events += [_role(writer, answer) for writer in writers]
            for seq, writer in zip(answer.sequences, writers, strict=True):
                events += self._events(seq, writer, answer)
            if not await self._write(exchange, answer, events):
                return
        end = DONE
        if answer.asked.include_usage:
            end = writers[0].usage(answer.usage()) + DONE
        await exchange.close_stream(end)

    def _events(self, seq: _Sequence, writer: StreamWriter, answer: _Answer) -> Iterator[bytes]:
        """One event for each token since the last call; the last one says why it ended."""
        asked, ticket = answer.asked, seq.ticket
        plain = not (asked.return_token_ids or asked.continuous_usage)
        pending = ticket.take()
        for left in range(pending - 1, -1, -1):
            at = seq.sent
            seq.sent += 1
            text = self._voice.encoded(seq.utterance, at)
            last = ticket.finished and not left and not ticket.aborted
            if plain and not last:
                yield writer.token(text)
                continue
            yield writer.token_with(
                text,
                finish_reason=seq.reason() if last else None,
                token_ids=[self._voice.token_id(seq.utterance, at)]
                if asked.return_token_ids
                else None,
                usage=answer.usage() if asked.continuous_usage else None,
                stamp=last and not asked.include_usage,
            )
        if ticket.aborted and not ticket.told:
            ticket.told = True
            yield writer.token_with(b'""', finish_reason="abort")

    async def _write(self, exchange: Exchange, answer: _Answer, events: list[bytes]) -> bool:
        """Send events; False when a fault ended the stream."""
        if not self._faults.plan.counts_events:
            if events:
                await exchange.write(b"".join(events))
            return True
        for event in events:
            if not await self._write_faulty(exchange, event):
                return False
        return True

    async def _write_faulty(self, exchange: Exchange, event: bytes) -> bool:
        plan, faults = self._faults.plan, self._faults
        if plan.error_event_after is not None and faults.events == plan.error_event_after:
            faults.events += 1
            await exchange.close_stream(error_event(500, BROKEN, "InternalServerError"))
            return False
        if self._core.halted:
            await exchange.left()
            return False
        await exchange.write(event)
        faults.events += 1
        if plan.kill_after is not None and faults.events >= plan.kill_after:
            os._exit(137)
        if plan.hang_after is not None and faults.events >= plan.hang_after:
            self._core.halt()
        return True


def new_reply(asked: Asked, model: str, request_id: str | None, now_s: float, mark: str) -> Reply:
    """The envelope of an answer; a caller's request id becomes part of its id."""
    chat = asked.chat_body is not None
    name = request_id or uuid.uuid4().hex
    prefix = "chatcmpl" if chat else "cmpl"
    return Reply(chat, f"{prefix}-{name}", int(now_s), asked.model or model, mark)


def _prompts(asked: Asked) -> Sequence[Prompt | None]:
    return asked.prompts if asked.chat_body is None else (None,)


def _job(asked: Asked, ids: Sequence[int], utterance: Utterance, limit: int) -> Job:
    return Job(
        prompt_tokens=len(ids),
        output_tokens=utterance.tokens,
        finish_reason=utterance.finish_reason,
        max_tokens=limit,
        priority=asked.priority,
        n=asked.sampling.n,
    )


def _role(writer: StreamWriter, answer: _Answer) -> bytes:
    asked = answer.asked
    return writer.role(
        usage=Usage(answer.prompt_tokens, 0) if asked.continuous_usage else None,
        prompt_ids=answer.sequences[0].prompt_ids if asked.return_token_ids else None,
    )


async def _watch(exchange: Exchange, ready: asyncio.Event) -> None:
    """End when the caller has left, and wake whoever waits for tokens."""
    await exchange.left()
    ready.set()
