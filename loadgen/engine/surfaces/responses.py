"""Serves ``/v1/responses``; nothing is stored, so what was answered can't be asked for again."""

import uuid
from dataclasses import replace
from functools import partial

from loadgen.engine.exchange import Exchange
from loadgen.engine.refusals import ApiError
from loadgen.engine.responses_body import read_responses
from loadgen.engine.responses_style import ResponsesStyle
from loadgen.engine.service import Routes, Service, header_priority, wall_s
from loadgen.engine.wire_format import Reply

__all__ = ["ResponsesSurface"]

PATH = "/v1/responses"


class ResponsesSurface:
    """OpenAI's responses of one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> Routes:
        """The paths served here."""
        return {PATH: ("POST", self._create), f"{PATH}/": ("GET, POST", self._stored)}

    async def _create(self, exchange: Exchange) -> None:
        service = self._service
        body = await service.json(exchange)
        wanted = read_responses(body)
        asked = wanted.asked
        service.check_model(asked.model)
        asked = replace(asked, priority=header_priority(exchange.headers, asked.priority))
        service.note(exchange, body, asked.priority)
        if wanted.previous_id is not None:
            raise _unknown(wanted.previous_id)
        service.check_running()
        request_id = wanted.request_id or f"resp_{uuid.uuid4().hex}"
        model = asked.model or service.model
        reply = Reply(True, request_id, int(wall_s()), model, service.mark)
        style = partial(ResponsesStyle, asked=wanted, body=body)
        with service.load.entered():
            await service.generator.serve(exchange, asked, reply, style)

    async def _stored(self, exchange: Exchange) -> None:
        name, _, action = exchange.path.removeprefix(f"{PATH}/").partition("/")
        expected = "POST" if action == "cancel" else "GET"
        if exchange.method != expected or action not in ("", "cancel"):
            await exchange.answer_json(404, {"detail": "Not Found"})
            return
        raise _unknown(name)


def _unknown(response_id: str) -> ApiError:
    message = f"Response with id '{response_id}' not found."
    return ApiError(404, message, "invalid_request_error", "response_id")
