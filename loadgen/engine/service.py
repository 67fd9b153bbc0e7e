"""Holds what all surfaces of one simulated engine share, and reads requests for them.

Times are seconds; wall time occurs only in the envelopes of answers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from loadgen.engine.bodies import decode_json
from loadgen.engine.core import EngineCore
from loadgen.engine.exchange import Exchange
from loadgen.engine.flags import EngineSettings
from loadgen.engine.gate import Gate
from loadgen.engine.generate import Generator
from loadgen.engine.refusals import ApiError, bad_request, not_found
from loadgen.engine.simstate import SeenRequests
from loadgen.engine.textmodel import TextError, TextModel
from loadgen.engine.voice import Voice

__all__ = ["Handler", "Load", "Routes", "Service", "header_priority", "wall_s"]

Handler = Callable[[Exchange], Awaitable[None]]
# By path; one that ends in "/" serves all paths below it.
Routes = dict[str, tuple[str, Handler]]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Load:
    """How many requests the engine works on; ``idle`` is set while there are none.

    ``draining`` is set by SIGTERM with a shutdown time-out.
    """

    active: int = 0
    draining: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count one request while it is worked on."""
        self.active += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.active -= 1
            if not self.active:
                self.idle.set()


@dataclass(frozen=True, slots=True)
class Service:
    """One engine as its surfaces see it; ``mark`` is its fingerprint."""

    settings: EngineSettings
    core: EngineCore
    gate: Gate
    text: TextModel
    voice: Voice
    generator: Generator
    executor: Executor
    load: Load
    seen: SeenRequests
    mark: str
    started_s: int

    @property
    def model(self) -> str:
        """The name of the base model."""
        return self.settings.served_model_name

    @property
    def max_model_len(self) -> int:
        """Tokens of context."""
        return self.settings.scheduler.max_model_len

    def check_model(self, name: str | None) -> None:
        """Accept the base model, an adapter, or no name.

        Raises:
            ApiError: There is no such model; status 404.
        """
        if name and name != self.model and name not in self.settings.lora_modules:
            message = f"The model `{name}` does not exist. Valid aliases: {self.model}."
            raise not_found(message, "model")

    def note(self, exchange: Exchange, body: Any, priority: int) -> None:
        """Remember what a request carried, where tests may look at it."""
        if self.settings.sim_state:
            self.seen.add(exchange.path, exchange.headers, body, priority)

    def check_running(self) -> None:
        """Refuse work on a text while draining, as vLLM fails then.

        Raises:
            ApiError: Always while draining; status 500.
        """
        if self.load.draining:
            message = "cannot schedule new futures after shutdown"
            raise ApiError(500, message, "InternalServerError")

    async def threaded(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run work on texts in the tokenizer's thread; a text it can't read is refused."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self.executor, lambda: work(*args, **kwargs))
        except TextError as error:
            raise bad_request(str(error)) from error

    async def json(self, exchange: Exchange) -> Any:
        """The decoded body of a request.

        Raises:
            ApiError: It is not called JSON, or is none.
        """
        media_type = exchange.headers.get("content-type", "").lower().partition(";")[0]
        raw = await exchange.body()
        if media_type != "application/json":
            reason = "Unsupported Media Type: Only 'application/json' is allowed"
            raise ApiError(400, f"1 validation error:\n  {reason}", "Bad Request")
        return decode_json(raw)


def header_priority(headers: Mapping[str, str], body_priority: int) -> int:
    """The header wins over the body; one that is no integer is ignored, as vLLM does."""
    try:
        return int(headers["x-vllm-priority"])
    except (KeyError, ValueError):
        return body_priority


def wall_s() -> float:
    """Seconds since 1970."""
    return time.time()  # noqa: TID251 - envelopes carry wall time
