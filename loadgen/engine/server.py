"""Runs one simulated engine: routes, authentication, signals, the ready line.

A raw ASGI application: per streamed chunk nothing runs but one call into the server. SIGTERM
behaves as vLLM's. With ``--shutdown-timeout 0`` the port closes at once, the engine steps no
more, and open answers hang until their callers leave. With a time-out open answers are finished
while /health stays 200 and new requests fail, some with a false success; then the process ends.
"""

import argparse
import asyncio
import hashlib
import hmac
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import uvicorn
import uvloop

from loadgen.engine.bodies import (
    ApiError,
    Asked,
    decode_json,
    read_chat,
    read_completion,
    read_tokenize,
)
from loadgen.engine.core import EngineCore
from loadgen.engine.exchange import Exchange, Gone, Receive, Scope, Send
from loadgen.engine.flags import EngineSettings, add_arguments, settings_from
from loadgen.engine.generate import Faults, Generator, Limits, new_reply
from loadgen.engine.metrics import EngineMetrics
from loadgen.engine.simstate import SeenRequests
from loadgen.engine.textmodel import TextError, TextModel
from loadgen.engine.voice import Voice
from loadgen.engine.wire_format import Choice, Usage, error_body, models_body, unary_body

__all__ = ["VERSION", "Application", "add_arguments", "main", "run", "serve"]

# The release whose behaviour is simulated; the suffix says that nothing real answered.
VERSION = "0.32.0+simulated"
GUARDED = ("/v1", "/v2", "/inference", "/cohere")
KEEP_ALIVE_S = 5  # vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE

Handler = Callable[[Exchange], Awaitable[None]]


class Application:
    """The ASGI application of one engine.

    ``draining`` is set by SIGTERM with a shutdown time-out; ``idle`` is set while no
    generation is open.
    """

    def __init__(self, settings: EngineSettings, text: TextModel, executor: Executor) -> None:
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._active = 0
        self.settings = settings
        self._model = settings.served_model_name
        self._text = text
        self._executor = executor
        self._started_s = int(time.time())  # noqa: TID251 - wall time of the model's card
        self._mark = f"sim-{VERSION}-{_digest(settings)}"
        self._keys = tuple(hashlib.sha256(key.encode()).digest() for key in settings.api_key)
        self.seen = SeenRequests()
        metrics = EngineMetrics(self._model, settings.scheduler)
        self.core = EngineCore(settings.scheduler, settings.cost, metrics, settings.time_scale)
        self._generator = self._make_generator(settings)
        self._routes = self._make_routes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        exchange = Exchange(scope, receive, send)
        try:
            await self._dispatch(exchange)
        except ApiError as error:
            body = error_body(error.status, error.message, error.kind, error.param)
            await exchange.answer(error.status, body)
        except Gone:
            return

    def _make_generator(self, settings: EngineSettings) -> Generator:
        words = self._text.words()
        ids, texts = [word.token_id for word in words], [word.text for word in words]
        limits = Limits(settings.max_num_queued_reqs, settings.max_num_queued_tokens)
        voice = Voice(ids, texts, settings.seed)
        faults = Faults(settings.fault)
        return Generator(self.core, self._text, voice, limits, faults, self._executor)

    def _make_routes(self) -> dict[str, tuple[str, Handler]]:
        routes: dict[str, tuple[str, Handler]] = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._completions),
            "/v1/models": ("GET", self._models),
            "/tokenize": ("POST", self._tokenize),
            "/health": ("GET", self._health),
            "/ping": ("GET", self._health),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics),
        }
        if self.settings.sim_state:
            routes["/sim/state"] = ("GET", self._sim_state)
        return routes

    async def _dispatch(self, exchange: Exchange) -> None:
        if self._keys and exchange.path.startswith(GUARDED) and not self._authorised(exchange):
            await exchange.answer_json(401, {"error": "Unauthorized"})
            return
        route = self._routes.get(exchange.path)
        if route is None:
            await exchange.answer_json(404, {"detail": "Not Found"})
            return
        method, handler = route
        # /ping answers POST as well, as vLLM's does for SageMaker.
        if exchange.method != method and not (
            exchange.path == "/ping" and exchange.method == "POST"
        ):
            allow = [(b"allow", method.encode())]
            await exchange.answer(405, b'{"detail":"Method Not Allowed"}', headers=allow)
            return
        await handler(exchange)

    def _authorised(self, exchange: Exchange) -> bool:
        scheme, _, key = exchange.headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(key.encode()).digest()
        match = [hmac.compare_digest(given, known) for known in self._keys]
        return scheme.lower() == "bearer" and any(match)

    async def _chat(self, exchange: Exchange) -> None:
        await self._generate(exchange, read_chat)

    async def _completions(self, exchange: Exchange) -> None:
        await self._generate(exchange, read_completion)

    async def _generate(self, exchange: Exchange, read: Callable[[Any], Asked]) -> None:
        body = await _json(exchange)
        asked = read(body)
        self._check_model(asked.model)
        asked = replace(asked, priority=_priority(exchange.headers, asked.priority))
        if self.settings.sim_state:
            self.seen.add(exchange.path, exchange.headers, body, asked.priority)
        now_s = time.time()  # noqa: TID251 - wall time of the answer's envelope
        request_id = exchange.headers.get("x-request-id")
        reply = new_reply(asked, self._model, request_id, now_s, self._mark)
        if self.draining:
            await _refuse_draining(exchange, asked, reply)
            return
        self._active += 1
        self.idle.clear()
        try:
            await self._generator.serve(exchange, asked, reply)
        finally:
            self._active -= 1
            if not self._active:
                self.idle.set()

    def _check_model(self, model: str | None) -> None:
        if model and model != self._model:
            message = f"The model `{model}` does not exist. Valid aliases: {self._model}."
            raise ApiError(404, message, "NotFoundError", "model")

    async def _models(self, exchange: Exchange) -> None:
        longest = self.settings.scheduler.max_model_len
        await exchange.answer(200, models_body(self._model, longest, self._started_s))

    async def _tokenize(self, exchange: Exchange) -> None:
        asked = read_tokenize(await _json(exchange))
        self._check_model(asked.model)
        loop = asyncio.get_running_loop()
        ids, strings = await loop.run_in_executor(self._executor, _token_ids, self._text, asked)
        answer = {
            "count": len(ids),
            "max_model_len": self.settings.scheduler.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }
        await exchange.answer_json(200, answer)

    async def _health(self, exchange: Exchange) -> None:
        await exchange.answer(200)

    async def _version(self, exchange: Exchange) -> None:
        await exchange.answer_json(200, {"version": VERSION})

    async def _metrics(self, exchange: Exchange) -> None:
        kind = b"text/plain; version=1.0.0; charset=utf-8"
        await exchange.answer(200, self.core.metrics.page(self.core.scheduler), kind)

    async def _sim_state(self, exchange: Exchange) -> None:
        scheduler = self.core.scheduler
        state = {
            "synthetic": True,
            "running": scheduler.running,
            "waiting": scheduler.waiting,
            "kv_used_blocks": scheduler.kv_used_blocks,
            "preemptions_total": scheduler.preemptions_total,
            "policy": scheduler.config.policy,
            "requests_total": self.seen.total,
            "requests": self.seen.as_list(),
        }
        await exchange.answer_json(200, state)


async def serve(settings: EngineSettings) -> None:
    """Run an engine until a signal ends it; prints one line when it serves.

    Raises:
        OSError: The address can't be bound.
        ValueError: The tokenizer or template can't be used.
    """
    text = TextModel(settings.tokenizer, settings.chat_template)
    listener = _bind(settings.host, settings.port)
    if settings.fault.slow_start_s:
        await asyncio.sleep(settings.fault.slow_start_s)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as executor:
        application = Application(settings, text, executor)
        server = uvicorn.Server(_uvicorn_config(application))
        async with asyncio.TaskGroup() as tasks:
            core = tasks.create_task(application.core.run())
            ready = tasks.create_task(_announce(server, application, listener))
            await server.serve(sockets=[listener])
            core.cancel()
            ready.cancel()


def run(settings: EngineSettings) -> None:
    """Run ``serve`` on an event loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine from a command line; 2 for wrong flags or files, 1 for a taken address."""
    parser = argparse.ArgumentParser(prog="python -m loadgen.engine")
    add_arguments(parser)
    try:
        run(settings_from(parser.parse_args(argv)))
    except (ValueError, FileNotFoundError) as error:
        sys.stderr.write(f"engine: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"engine: can't listen: {error}\n")
        return 1
    return 0


def _uvicorn_config(application: Application) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )


def _bind(host: str, port: int) -> socket.socket:
    """Take the address without listening, so that a slow start refuses connections."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from error
    return listener


async def _announce(
    server: uvicorn.Server, application: Application, listener: socket.socket
) -> None:
    """Wait for the port, take over the signals, print the ready line, and drain when told."""
    while not server.started:  # noqa: ASYNC110 - the server offers a flag, no event
        await asyncio.sleep(0.005)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(f"engine ready http://{shown}:{port}\n")
    sys.stdout.flush()
    await stop.wait()
    await _drain(application)
    server.should_exit = True


async def _drain(application: Application) -> None:
    """Finish open answers within the shutdown time-out; without one, stop the engine dead."""
    timeout_s = application.settings.shutdown_timeout_s
    if timeout_s <= 0:
        application.core.halt()
        return
    application.draining = True
    with suppress(TimeoutError):
        await asyncio.wait_for(application.idle.wait(), timeout_s)
    application.core.abort_all()


async def _json(exchange: Exchange) -> Any:
    media_type = exchange.headers.get("content-type", "").lower().partition(";")[0]
    raw = await exchange.body()
    if media_type != "application/json":
        reason = "Unsupported Media Type: Only 'application/json' is allowed"
        raise ApiError(400, f"1 validation error:\n  {reason}", "Bad Request")
    return decode_json(raw)


def _priority(headers: Mapping[str, str], body_priority: int) -> int:
    """The header wins over the body; one that is no integer is ignored, as vLLM does."""
    try:
        return int(headers["x-vllm-priority"])
    except (KeyError, ValueError):
        return body_priority


def _token_ids(text: TextModel, asked: Any) -> tuple[list[int], list[str] | None]:
    try:
        source = asked.prompt if asked.chat_body is None else text.render(asked.chat_body)
    except TextError as error:
        raise ApiError(400, str(error), "BadRequestError") from error
    ids = text.text_ids(source, add_special_tokens=asked.add_special_tokens)
    return ids, text.token_strings(ids) if asked.return_token_strs else None


async def _refuse_draining(exchange: Exchange, asked: Asked, reply: Any) -> None:
    """Answer as a draining vLLM does: an error where text must be encoded, else false success."""
    if any(isinstance(prompt, str) for prompt in asked.prompts) or asked.chat_body is not None:
        message = "cannot schedule new futures after shutdown"
        raise ApiError(500, message, "InternalServerError")
    choices = [Choice(index, "", "abort") for index in range(len(asked.prompts))]
    await exchange.answer(200, unary_body(reply, choices, Usage(0, 0)))


def _digest(settings: EngineSettings) -> str:
    return hashlib.sha256(repr(settings.scheduler).encode()).hexdigest()[:8]
