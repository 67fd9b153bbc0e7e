"""Serves Anthropic's form: ``/v1/messages`` and ``/v1/messages/count_tokens``.

A body that can't be read is refused in OpenAI's shape, everything later in Anthropic's, as vLLM
does.
"""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from loadgen.engine.bodies import Asked
from loadgen.engine.exchange import Exchange
from loadgen.engine.generate import new_reply
from loadgen.engine.messages_body import read_count, read_messages
from loadgen.engine.messages_style import MessagesStyle, messages_error
from loadgen.engine.refusals import ApiError, too_long
from loadgen.engine.service import Routes, Service, header_priority, wall_s

__all__ = ["MessagesSurface"]


class MessagesSurface:
    """Anthropic's messages of one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._system_first = service.text.wants_system_first

    def routes(self) -> Routes:
        """The paths served here."""
        return {
            "/v1/messages": ("POST", self._messages),
            "/v1/messages/count_tokens": ("POST", self._count_tokens),
        }

    async def _messages(self, exchange: Exchange) -> None:
        body = await self._service.json(exchange)
        asked = read_messages(body, system_first=self._system_first)
        asked = replace(asked, priority=header_priority(exchange.headers, 0))
        self._service.note(exchange, body, asked.priority)
        await _in_anthropic_form(exchange, self._generate(exchange, asked))

    async def _generate(self, exchange: Exchange, asked: Asked) -> None:
        service = self._service
        service.check_model(asked.model)
        service.check_running()
        request_id = exchange.headers.get("x-request-id")
        reply = new_reply(asked, service.model, request_id, wall_s(), service.mark)
        with service.load.entered():
            await service.generator.serve(exchange, asked, reply, MessagesStyle)

    async def _count_tokens(self, exchange: Exchange) -> None:
        body = await self._service.json(exchange)
        model, chat_body = read_count(body, system_first=self._system_first)
        self._service.note(exchange, body, 0)
        await _in_anthropic_form(exchange, self._count(exchange, model, chat_body))

    async def _count(self, exchange: Exchange, model: str, chat_body: dict[str, Any]) -> None:
        service = self._service
        service.check_model(model)
        service.check_running()
        service.gate.admit(1)  # vLLM asks its admission although the engine gets nothing to do
        tokens = await service.threaded(service.text.count_chat, chat_body)
        if tokens > service.max_model_len:
            raise too_long(service.max_model_len + 1, service.max_model_len)
        managed = {"original_input_tokens": tokens}
        await exchange.answer_json(200, {"input_tokens": tokens, "context_management": managed})


async def _in_anthropic_form(exchange: Exchange, work: Awaitable[None]) -> None:
    try:
        await work
    except ApiError as error:
        await exchange.answer(error.status, messages_error(error))
