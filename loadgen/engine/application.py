"""Routes the requests of one simulated engine: authentication, path, method, refusals.

A raw ASGI application: per streamed chunk nothing runs but one call into the server. Times are
seconds.
"""

import hashlib
import hmac
from concurrent.futures import Executor

import orjson

from loadgen.engine.core import EngineCore
from loadgen.engine.exchange import Exchange, Gone, Receive, Scope, Send
from loadgen.engine.flags import EngineSettings
from loadgen.engine.gate import Faults, Gate, Limits
from loadgen.engine.generate import Generator
from loadgen.engine.metrics import EngineMetrics
from loadgen.engine.refusals import ApiError
from loadgen.engine.service import Handler, Load, Routes, Service, wall_s
from loadgen.engine.simstate import SeenRequests
from loadgen.engine.surfaces.audio import AudioSurface
from loadgen.engine.surfaces.chat import ChatSurface
from loadgen.engine.surfaces.info import VERSION, InfoSurface
from loadgen.engine.surfaces.messages import MessagesSurface
from loadgen.engine.surfaces.pooling import PoolingSurface
from loadgen.engine.surfaces.responses import ResponsesSurface
from loadgen.engine.surfaces.sim import SimSurface
from loadgen.engine.surfaces.texts import TextSurface
from loadgen.engine.textmodel import TextModel
from loadgen.engine.voice import Voice
from loadgen.engine.wire_format import error_body

__all__ = ["Application"]

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
SURFACES = (
    ChatSurface,
    MessagesSurface,
    ResponsesSurface,
    PoolingSurface,
    AudioSurface,
    TextSurface,
    InfoSurface,
    SimSurface,
)


class Application:
    """The ASGI application of one engine. Every surface is served, whatever the model's kind."""

    def __init__(self, settings: EngineSettings, text: TextModel, executor: Executor) -> None:
        self.settings = settings
        self._keys = tuple(hashlib.sha256(key.encode()).digest() for key in settings.api_key)
        service = _service(settings, text, executor)
        self.core = service.core
        self.load = service.load
        self._routes: Routes = {}
        for surface in SURFACES:
            self._routes |= surface(service).routes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        exchange = Exchange(scope, receive, send)
        try:
            await self._dispatch(exchange)
        except ApiError as error:
            await exchange.answer(error.status, _refusal(error))
        except Gone:
            return

    async def _dispatch(self, exchange: Exchange) -> None:
        if self._keys and exchange.path.startswith(GUARDED) and not self._authorised(exchange):
            await exchange.answer_json(401, {"error": "Unauthorized"})
            return
        route = self._route(exchange.path)
        if route is None:
            await self._lost(exchange)
            return
        methods, handler = route
        if exchange.method not in methods.split(", "):
            allow = [(b"allow", methods.encode())]
            await exchange.answer(405, b'{"detail":"Method Not Allowed"}', headers=allow)
            return
        await handler(exchange)

    async def _lost(self, exchange: Exchange) -> None:
        """Answer for a path that is none; one slash too many leads back."""
        path = exchange.path.removesuffix("/")
        if path == exchange.path or path not in self._routes:
            await exchange.answer_json(404, {"detail": "Not Found"})
            return
        where = f"http://{exchange.headers.get('host', '')}{path}"
        await exchange.answer(307, headers=[(b"location", where.encode("latin-1"))])

    def _route(self, path: str) -> tuple[str, Handler] | None:
        route = self._routes.get(path)
        if route is not None or path.endswith("/"):
            return route
        for prefix, below in self._routes.items():
            if prefix.endswith("/") and path.startswith(prefix):
                return below
        return None

    def _authorised(self, exchange: Exchange) -> bool:
        scheme, _, key = exchange.headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(key.encode()).digest()
        match = [hmac.compare_digest(given, known) for known in self._keys]
        return scheme.lower() == "bearer" and any(match)


def _refusal(error: ApiError) -> bytes:
    if error.kind:
        return error_body(error.status, error.message, error.kind, error.param)
    return orjson.dumps({"detail": error.message})


def _service(settings: EngineSettings, text: TextModel, executor: Executor) -> Service:
    metrics = EngineMetrics(settings.served_model_name, settings.scheduler)
    core = EngineCore(settings.scheduler, settings.cost, metrics, settings.time_scale)
    limits = Limits(settings.max_num_queued_reqs, settings.max_num_queued_tokens)
    gate = Gate(core, limits, Faults(settings.fault))
    words = text.words()
    voice = Voice([word.token_id for word in words], [word.text for word in words], settings.seed)
    comment_s = settings.sse_keep_alive_interval_s or None
    load = Load()
    load.idle.set()
    return Service(
        settings=settings,
        core=core,
        gate=gate,
        text=text,
        voice=voice,
        generator=Generator(
            gate, text, voice, executor, comment_s, tells_cached=settings.prompt_tokens_details
        ),
        executor=executor,
        load=load,
        seen=SeenRequests(),
        mark=f"sim-{VERSION}-{_digest(settings)}",
        started_s=int(wall_s()),
    )


def _digest(settings: EngineSettings) -> str:
    return hashlib.sha256(repr(settings.scheduler).encode()).hexdigest()[:8]
