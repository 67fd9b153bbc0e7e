"""Serves ``/tokenize`` and ``/detokenize``."""

from loadgen.engine.bodies import TokenizeAsked, read_detokenize, read_tokenize
from loadgen.engine.exchange import Exchange
from loadgen.engine.service import Routes, Service
from loadgen.engine.textmodel import TextModel

__all__ = ["TextSurface"]


class TextSurface:
    """The tokenizer of one engine; no scheduler work."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> Routes:
        """The paths served here."""
        return {
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
        }

    async def _tokenize(self, exchange: Exchange) -> None:
        service = self._service
        body = await service.json(exchange)
        asked = read_tokenize(body)
        service.check_model(asked.model)
        service.note(exchange, body, 0)
        ids, strings = await service.threaded(_token_ids, service.text, asked)
        answer = {
            "count": len(ids),
            "max_model_len": service.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }
        await exchange.answer_json(200, answer)

    async def _detokenize(self, exchange: Exchange) -> None:
        service = self._service
        body = await service.json(exchange)
        model, ids = read_detokenize(body)
        service.check_model(model)
        service.note(exchange, body, 0)
        text = await service.threaded(service.text.decode, ids, skip_special_tokens=False)
        await exchange.answer_json(200, {"prompt": text})


def _token_ids(text: TextModel, asked: TokenizeAsked) -> tuple[list[int], list[str] | None]:
    source = asked.prompt if asked.chat_body is None else text.render(asked.chat_body)
    ids = text.text_ids(source, add_special_tokens=asked.add_special_tokens)
    return ids, text.token_strings(ids) if asked.return_token_strs else None
