"""Serves ``/v1/chat/completions`` and ``/v1/completions``."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from loadgen.engine.bodies import Asked, read_chat, read_completion
from loadgen.engine.exchange import Exchange
from loadgen.engine.generate import new_reply
from loadgen.engine.openai_style import OpenAIStyle
from loadgen.engine.service import Routes, Service, header_priority, wall_s
from loadgen.engine.wire_format import Choice, Reply, Usage, unary_body

__all__ = ["ChatSurface"]


class ChatSurface:
    """OpenAI's generation of one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> Routes:
        """The paths served here."""
        return {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._completions),
        }

    async def _chat(self, exchange: Exchange) -> None:
        await self._generate(exchange, read_chat)

    async def _completions(self, exchange: Exchange) -> None:
        await self._generate(exchange, read_completion)

    async def _generate(self, exchange: Exchange, read: Callable[[Any], Asked]) -> None:
        service = self._service
        body = await service.json(exchange)
        asked = read(body)
        service.check_model(asked.model)
        asked = replace(asked, priority=header_priority(exchange.headers, asked.priority))
        service.note(exchange, body, asked.priority)
        request_id = exchange.headers.get("x-request-id")
        reply = new_reply(asked, service.model, request_id, wall_s(), service.mark)
        if service.load.draining:
            await self._refuse_draining(exchange, asked, reply)
            return
        with service.load.entered():
            await service.generator.serve(exchange, asked, reply, OpenAIStyle)

    async def _refuse_draining(self, exchange: Exchange, asked: Asked, reply: Reply) -> None:
        """Answer as a draining vLLM: an error where text must be encoded, else false success."""
        if asked.chat_body is not None or any(isinstance(each, str) for each in asked.prompts):
            self._service.check_running()
        choices = [Choice(index, "", "abort") for index in range(len(asked.prompts))]
        await exchange.answer(200, unary_body(reply, choices, Usage(0, 0)))
