"""Serves what an engine says about itself: models, health, version, metrics, load, settings."""

from dataclasses import asdict
from urllib.parse import parse_qs

from loadgen.engine.exchange import Exchange
from loadgen.engine.refusals import invalid
from loadgen.engine.service import Routes, Service
from loadgen.engine.wire_format import models_body

__all__ = ["VERSION", "InfoSurface"]

# The release whose behaviour is simulated; the suffix says that nothing real answered.
VERSION = "0.32.0+simulated"
METRICS_TYPE = b"text/plain; version=1.0.0; charset=utf-8"


class InfoSurface:
    """What one engine tells; ``/server_info`` only in development mode."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> Routes:
        """The paths served here."""
        routes: Routes = {
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            # /ping answers POST as well, as vLLM's does for SageMaker.
            "/ping": ("GET, POST", self._health),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics),
            "/load": ("GET", self._load),
        }
        if self._service.settings.dev_mode:
            routes["/server_info"] = ("GET", self._server_info)
        return routes

    async def _models(self, exchange: Exchange) -> None:
        service = self._service
        loras = service.settings.lora_modules
        body = models_body(service.model, service.max_model_len, service.started_s, loras)
        await exchange.answer(200, body)

    async def _health(self, exchange: Exchange) -> None:
        await exchange.answer(200)

    async def _version(self, exchange: Exchange) -> None:
        await exchange.answer_json(200, {"version": VERSION})

    async def _metrics(self, exchange: Exchange) -> None:
        core = self._service.core
        await exchange.answer(200, core.metrics.page(core.scheduler), METRICS_TYPE)

    async def _load(self, exchange: Exchange) -> None:
        tracked = self._service.settings.load_tracking
        load = self._service.load.active if tracked else 0
        await exchange.answer_json(200, {"server_load": load})

    async def _server_info(self, exchange: Exchange) -> None:
        form = parse_qs(exchange.query).get("config_format", ["text"])[-1]
        if form not in ("text", "json"):
            fault = {
                "type": "literal_error",
                "loc": ("query", "config_format"),
                "msg": "Input should be 'text' or 'json'",
                "input": form,
                "ctx": {"expected": "'text' or 'json'"},
            }
            raise invalid([fault])
        config = self._config()
        info = {
            "vllm_config": config if form == "json" else str(config),
            "vllm_env": {"VLLM_SERVER_DEV_MODE": True},
            "system_env": {"synthetic": True},
        }
        await exchange.answer_json(200, info)

    def _config(self) -> dict[str, object]:
        """The parts of vLLM's configuration that this engine has, under vLLM's names."""
        settings, service = self._service.settings, self._service
        scheduler = asdict(settings.scheduler)
        return {
            "model_config": {
                "model": service.model,
                "served_model_name": service.model,
                "max_model_len": scheduler.pop("max_model_len"),
                "seed": settings.seed,
            },
            "cache_config": {
                "block_size": scheduler.pop("block_size"),
                "num_gpu_blocks": scheduler.pop("num_gpu_blocks"),
                "enable_prefix_caching": scheduler["enable_prefix_caching"],
            },
            "scheduler_config": {
                "max_num_batched_tokens": scheduler["max_num_batched_tokens"],
                "max_num_seqs": scheduler["max_num_seqs"],
                "policy": scheduler["policy"],
                "enable_chunked_prefill": True,
                "long_prefill_token_threshold": scheduler["long_prefill_token_threshold"],
                "scheduler_reserve_full_isl": scheduler["reserve_full_isl"],
                "watermark": scheduler["watermark"],
                "max_num_queued_reqs": settings.max_num_queued_reqs,
                "max_num_queued_tokens": settings.max_num_queued_tokens,
            },
        }
