"""Serves pooling: embeddings, pooling, classification, scores and ranks.

Each input is one prompt of the engine, prefill only. The header for priorities has no effect on
these paths, as in vLLM.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from loadgen.engine.exchange import Exchange
from loadgen.engine.pooling import prefill
from loadgen.engine.pooling_body import PoolingAsked, read_pooling, read_rerank, read_score
from loadgen.engine.refusals import bad_request, not_found, too_long
from loadgen.engine.service import Routes, Service, wall_s
from loadgen.engine.textmodel import TextModel
from loadgen.engine.vectors import EMBEDDING_SIZE, LABELS, Vectors, base64_float32

__all__ = ["PoolingSurface"]

Prompts = Sequence[Sequence[int]]
TASKS = ("embed", "classify")


class PoolingSurface:
    """A pooling model of one engine: an embedder, a classifier and a cross-encoder at once."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._vectors = Vectors(service.settings.seed)

    def routes(self) -> Routes:
        """The paths served here."""
        routes: Routes = {
            "/v1/embeddings": ("POST", self._embeddings),
            "/pooling": ("POST", self._pooling),
            "/classify": ("POST", self._classify),
        }
        routes |= dict.fromkeys(("/score", "/v1/score"), ("POST", self._score))
        ranks = ("/rerank", "/v1/rerank", "/v2/rerank")
        return routes | dict.fromkeys(ranks, ("POST", self._rerank))

    async def _embeddings(self, exchange: Exchange) -> None:
        asked = await self._asked(exchange, read_pooling)
        self._check_dimensions(asked)
        prompts = await self._computed(exchange, asked)
        data = [
            {"index": at, "object": "embedding", "embedding": self._vector(asked, ids)}
            for at, ids in enumerate(prompts)
        ]
        await self._answer(exchange, asked, "embd", data, prompts)

    async def _pooling(self, exchange: Exchange) -> None:
        asked = await self._asked(exchange, read_pooling)
        if asked.dimensions is not None:
            raise bad_request("dimensions is currently not supported (parameter=dimensions)")
        if asked.task not in (None, *TASKS):
            raise bad_request(f"Unsupported task: {asked.task!r} Supported tasks: {TASKS}")
        prompts = await self._computed(exchange, asked)
        data = [
            {"index": at, "object": "pooling", "data": self._pooled(asked, ids)}
            for at, ids in enumerate(prompts)
        ]
        await self._answer(exchange, asked, "pooling", data, prompts)

    async def _classify(self, exchange: Exchange) -> None:
        asked = await self._asked(exchange, read_pooling)
        prompts = await self._computed(exchange, asked)
        data = [_class(at, self._vectors.probabilities(ids)) for at, ids in enumerate(prompts)]
        await self._answer(exchange, asked, "classify", data, prompts)

    async def _score(self, exchange: Exchange) -> None:
        asked = await self._asked(exchange, read_score)
        prompts = await self._computed(exchange, asked)
        data = [
            {"index": at, "object": "score", "score": self._vectors.score(ids)}
            for at, ids in enumerate(prompts)
        ]
        await self._answer(exchange, asked, "score", data, prompts)

    async def _rerank(self, exchange: Exchange) -> None:
        asked = await self._asked(exchange, read_rerank)
        prompts = await self._computed(exchange, asked)
        if not prompts:
            return
        results = [
            {
                "index": at,
                "document": {"text": text, "multi_modal": None},
                "relevance_score": self._vectors.score(ids),
            }
            for at, (text, ids) in enumerate(zip(asked.documents, prompts, strict=True))
        ]
        results.sort(key=_relevance, reverse=True)
        tokens = sum(map(len, prompts))
        answer = {
            "id": _id(exchange, asked, "score"),
            "model": self._name(asked),
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": results[: asked.top_n or None],
        }
        await exchange.answer_json(200, answer)

    async def _asked(self, exchange: Exchange, read: Callable[[Any], PoolingAsked]) -> PoolingAsked:
        service = self._service
        body = await service.json(exchange)
        asked = read(body)
        known = (None, "", service.model, *service.settings.lora_modules)
        if asked.model not in known:
            raise not_found(f"The model `{asked.model}` does not exist.")
        service.note(exchange, body, asked.priority)
        if (asked.truncation.tokens or 0) > service.max_model_len:
            raise bad_request(
                "truncate_prompt_tokens value is greater than max_model_len. "
                "Please request a smaller truncation size."
            )
        service.check_running()
        return asked

    async def _computed(self, exchange: Exchange, asked: PoolingAsked) -> Prompts:
        """The prompts' ids when the engine has computed them; none when the caller has left."""
        service = self._service
        with service.load.entered():
            encoded = await service.threaded(_encode, service.text, asked)
            longest = service.max_model_len
            prompts = [asked.truncation.cut(ids, longest, "right") for ids in encoded]
            for ids in prompts:
                if len(ids) > longest:
                    raise too_long(len(ids), longest)
            if not prompts:
                raise bad_request("You must pass at least one prompt")
            if not all(prompts):
                raise bad_request("The decoder prompt cannot be empty")
            done = await prefill(service, exchange, prompts, asked.priority)
        return prompts if done else ()

    async def _answer(
        self,
        exchange: Exchange,
        asked: PoolingAsked,
        prefix: str,
        data: list[dict[str, Any]],
        prompts: Prompts,
    ) -> None:
        if not prompts:
            return
        tokens = sum(map(len, prompts))
        usage = {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }
        answer = {
            "id": _id(exchange, asked, prefix),
            "object": "list",
            "created": int(wall_s()),
            "model": self._name(asked),
            "data": data,
            "usage": usage,
        }
        await exchange.answer_json(200, answer)

    def _check_dimensions(self, asked: PoolingAsked) -> None:
        if asked.dimensions is not None and not 1 <= asked.dimensions <= EMBEDDING_SIZE:
            raise bad_request(
                f"Model {self._service.model!r} only supports dimensions in range "
                f"[1, {EMBEDDING_SIZE}], got {asked.dimensions}."
            )

    def _vector(self, asked: PoolingAsked, ids: Sequence[int]) -> list[float] | str:
        vector = self._vectors.embedding(ids, asked.dimensions)
        return base64_float32(vector) if asked.encoding == "base64" else vector

    def _pooled(self, asked: PoolingAsked, ids: Sequence[int]) -> list[float] | str:
        if asked.task != "classify":
            return self._vector(asked, ids)
        values = self._vectors.probabilities(ids)
        return base64_float32(values) if asked.encoding == "base64" else values

    def _name(self, asked: PoolingAsked) -> str:
        """The name in the answer: an adapter's own, else the base model's."""
        return asked.model or self._service.model


def _encode(text: TextModel, asked: PoolingAsked) -> list[list[int]]:
    special = asked.add_special_tokens
    if asked.chat_body is not None:
        return [text.text_ids(text.render(asked.chat_body), add_special_tokens=special)]
    if asked.pairs:
        return [text.pair_ids(first, second) for first, second in asked.pairs]
    return [
        prompt if isinstance(prompt, list) else text.text_ids(prompt, add_special_tokens=special)
        for prompt in asked.prompts
    ]


def _class(at: int, probabilities: list[float]) -> dict[str, Any]:
    best = probabilities.index(max(probabilities))
    return {
        "index": at,
        "label": LABELS[best],
        "probs": probabilities,
        "num_classes": len(probabilities),
    }


def _relevance(result: dict[str, Any]) -> float:
    return float(result["relevance_score"])


def _id(exchange: Exchange, asked: PoolingAsked, prefix: str) -> str:
    name = exchange.headers.get("x-request-id") or asked.request_id or uuid.uuid4().hex
    return f"{prefix}-{name}"
