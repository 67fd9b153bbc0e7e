"""Answers one generation request: checks it, queues its sequences, streams or collects tokens.

The order of checks is vLLM's: the body, the model's name, native admission, the prompt's
length. A caller that leaves cancels its sequences, whatever state they are in. Times are real
seconds.
"""

import asyncio
import os
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from loadgen.engine.bodies import Asked, Prompt, check_limits, output_limit
from loadgen.engine.core import Job
from loadgen.engine.exchange import Exchange
from loadgen.engine.gate import BUSY, Gate
from loadgen.engine.prefix_cache import block_keys
from loadgen.engine.refusals import ApiError, bad_request
from loadgen.engine.speech import Answer, MakeStyle, Speech, Style
from loadgen.engine.textmodel import TextError, TextModel
from loadgen.engine.voice import Utterance, Voice
from loadgen.engine.wire_format import Reply

__all__ = ["Generator", "new_reply", "watched"]

BROKEN = "EngineCore encountered an issue. See stack trace (above) for the root cause."
KEEP_ALIVE = b": keep-alive\n\n"


class Generator:
    """Serves generation requests of one engine.

    ``executor`` runs the tokenizer: encoding a long prompt takes milliseconds that no stream
    should wait for. ``comment_s`` is the silence after which a stream gets a comment; None never.
    ``tells_cached``: usage says how many prompt tokens were cached.
    """

    def __init__(
        self,
        gate: Gate,
        text: TextModel,
        voice: Voice,
        executor: Executor,
        comment_s: float | None = None,
        *,
        tells_cached: bool = False,
    ) -> None:
        self._gate = gate
        self._tells_cached = tells_cached
        self._core = gate.core
        self._text = text
        self._voice = voice
        self._faults = gate.faults
        self._executor = executor
        self._comment_s = comment_s

    async def serve(
        self, exchange: Exchange, asked: Asked, reply: Reply, make_style: MakeStyle
    ) -> None:
        """Answer a checked request; raises ApiError for what must be refused before a status."""
        self._gate.admit(len(asked.prompts or (0,)) * asked.sampling.n)
        check_limits(asked, self._core.scheduler.config.max_model_len)
        prompts = [await self._prompt_ids(asked, prompt) for prompt in _prompts(asked)]
        answer = self._planned(asked, reply, prompts)
        style = make_style(answer)
        if asked.stream and self._faults.streams < self._faults.plan.busy_event:
            self._faults.streams += 1
            await exchange.open_stream()
            await exchange.write(b"".join(style.opening()))
            await _fail(exchange, style, ApiError(503, BUSY, "Service Unavailable"))
            return
        await self._run(exchange, answer, style)

    async def _run(self, exchange: Exchange, answer: Answer, style: Style) -> None:
        self._queue(answer)
        watcher = watched(exchange, answer.ready)
        try:
            send = self._stream if answer.asked.stream else self._collect
            await send(exchange, answer, style, watcher.done)
        finally:
            watcher.cancel()
            for speech in answer.speeches:
                self._core.cancel(speech.ticket)

    async def _prompt_ids(self, asked: Asked, prompt: Prompt | None) -> Sequence[int]:
        longest = self._core.scheduler.config.max_model_len
        fits = longest - 1 if asked.sampling.max_tokens else longest
        ids = prompt if isinstance(prompt, list) else await self._encoded(asked, prompt)
        if isinstance(prompt, list) and max(ids, default=0) >= self._text.vocabulary:
            raise bad_request(f"Token id {max(ids)} is out of vocabulary")
        return asked.truncation.cut(ids, fits, "left")

    async def _encoded(self, asked: Asked, prompt: str | None) -> Sequence[int]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, self._encode, asked, prompt)
        except TextError as error:
            raise bad_request(str(error)) from error

    def _encode(self, asked: Asked, prompt: str | None) -> Sequence[int]:
        special = asked.add_special_tokens
        if asked.chat_body is not None:
            return self._text.text_ids(
                self._text.render(asked.chat_body), add_special_tokens=bool(special)
            )
        return self._text.text_ids(prompt or "", add_special_tokens=special is not False)

    def _planned(self, asked: Asked, reply: Reply, prompts: Sequence[Sequence[int]]) -> Answer:
        longest = self._core.scheduler.config.max_model_len
        limits = [output_limit(len(ids), asked.sampling, longest) for ids in prompts]
        if not all(prompts):
            raise bad_request("The decoder prompt cannot be empty")
        return Answer(asked, reply, self._voice, prompts, limits, self._tells_cached)

    def _queue(self, answer: Answer) -> None:
        """Queue every choice of every prompt."""
        asked = answer.asked
        for ids, limit in zip(answer.prompts, answer.limits, strict=True):
            for _ in range(asked.sampling.n):
                index = len(answer.speeches)
                utterance = self._voice.plan(ids, asked.sampling, limit, index)
                job = _job(asked, ids, utterance, limit, self._keys(ids, utterance))
                ticket = self._core.submit(job, answer.ready)
                answer.speeches.append(Speech(index, ticket, utterance, ids))

    def _keys(self, ids: Sequence[int], utterance: Utterance) -> tuple[int, ...]:
        """The keys of its KV blocks: what it will say is known already."""
        config = self._core.scheduler.config
        if not config.enable_prefix_caching:
            return ()
        said = [self._voice.token_id(utterance, at) for at in range(utterance.tokens)]
        return block_keys([*ids, *said], config.block_size)

    async def _collect(
        self, exchange: Exchange, answer: Answer, style: Style, gone: Callable[[], bool]
    ) -> None:
        while not answer.finished():
            await answer.ready.wait()
            answer.ready.clear()
            if gone():
                return
        answer.take_all()
        await exchange.answer(200, style.whole())

    async def _stream(
        self, exchange: Exchange, answer: Answer, style: Style, gone: Callable[[], bool]
    ) -> None:
        await exchange.open_stream()
        if not await self._write(exchange, style, style.opening()):
            return
        opened = False
        while not answer.finished():
            await self._ready(exchange, answer, style)
            if gone():
                return
            events: list[bytes] = []
            if not opened:
                opened = True
                events += style.first()
            for speech in answer.speeches:
                events += style.tokens(speech)
            if not await self._write(exchange, style, events):
                return
        await exchange.close_stream(style.closing())

    async def _ready(self, exchange: Exchange, answer: Answer, style: Style) -> None:
        """Wait for tokens or the caller's leave, with comments into the silence."""
        comment_s = self._comment_s if style.comments else None
        while not answer.ready.is_set():
            try:
                await asyncio.wait_for(answer.ready.wait(), comment_s)
            except TimeoutError:
                await exchange.write(KEEP_ALIVE)
        answer.ready.clear()

    async def _write(self, exchange: Exchange, style: Style, events: list[bytes]) -> bool:
        """Send events; False when a fault ended the stream."""
        if not self._faults.plan.counts_events:
            if events:
                await exchange.write(b"".join(events))
            return True
        for event in events:
            if not await self._write_faulty(exchange, style, event):
                return False
        return True

    async def _write_faulty(self, exchange: Exchange, style: Style, event: bytes) -> bool:
        plan, faults = self._faults.plan, self._faults
        if plan.error_event_after is not None and faults.events == plan.error_event_after:
            faults.events += 1
            await _fail(exchange, style, ApiError(500, BROKEN, "InternalServerError"))
            return False
        if self._core.halted:
            await self._hang(exchange, style)
            return False
        await exchange.write(event)
        faults.events += 1
        if plan.kill_after is not None and faults.events >= plan.kill_after:
            os._exit(137)
        if plan.hang_after is not None and faults.events >= plan.hang_after:
            self._core.halt()
        return True

    async def _hang(self, exchange: Exchange, style: Style) -> None:
        """Say nothing more but comments until the caller leaves."""
        left = asyncio.ensure_future(exchange.left())
        comment_s = self._comment_s if style.comments else None
        try:
            while not (await asyncio.wait({left}, timeout=comment_s))[0]:
                await exchange.write(KEEP_ALIVE)
        finally:
            left.cancel()


def new_reply(asked: Asked, model: str, request_id: str | None, now_s: float, mark: str) -> Reply:
    """The envelope of an answer; a caller's request id becomes part of its id."""
    chat = asked.chat_body is not None
    name = request_id or uuid.uuid4().hex
    prefix = "chatcmpl" if chat else "cmpl"
    return Reply(chat, f"{prefix}-{name}", int(now_s), asked.model or model, mark)


def watched(exchange: Exchange, ready: asyncio.Event) -> "asyncio.Future[None]":
    """A future that is done when the caller has left; it wakes whoever waits on ``ready``."""
    return asyncio.ensure_future(_watch(exchange, ready))


async def _watch(exchange: Exchange, ready: asyncio.Event) -> None:
    await exchange.left()
    ready.set()


async def _fail(exchange: Exchange, style: Style, error: ApiError) -> None:
    """End a stream by its error event, or by breaking it off: an unfinished answer is closed."""
    event = style.failure(error)
    if event is not None:
        await exchange.close_stream(event)


def _prompts(asked: Asked) -> Sequence[Prompt | None]:
    return asked.prompts if asked.chat_body is None else (None,)


def _job(
    asked: Asked,
    ids: Sequence[int],
    utterance: Utterance,
    limit: int,
    keys: tuple[int, ...],
) -> Job:
    return Job(
        prompt_tokens=len(ids),
        output_tokens=utterance.tokens,
        finish_reason=utterance.finish_reason,
        max_tokens=limit,
        priority=asked.priority,
        n=asked.sampling.n,
        keys=keys,
    )
