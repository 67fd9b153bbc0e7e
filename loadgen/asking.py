"""Asks running servers what they are: health, version, model, settings, and a gateway's routes.

An answer that a server does not give is None or absent; only what was asked for by name is an
error when it is missing.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from loadgen.record import BenchError, strict_json

__all__ = [
    "ADMIN_TOKEN",
    "LOOPBACK",
    "configuration",
    "healthy",
    "refuse_live",
    "served_model",
    "settled",
    "version",
]

ASK_S = 5.0
DESCRIBE_S = 60.0  # an engine that is asked for its configuration looks its machine over first
POLL_S = 0.2
ADMIN_TOKEN = "SLUICEGATE_ADMIN_TOKEN"  # noqa: S105 - the name of the variable that holds it
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")


async def _get(
    url: str, headers: Mapping[str, str] | None = None, within_s: float = ASK_S
) -> httpx.Response | None:
    async with httpx.AsyncClient(trust_env=False, timeout=within_s) as client:
        try:
            answer = await client.get(url, headers=headers)
        except httpx.HTTPError:
            return None
    return answer if answer.status_code == 200 else None


async def _json(url: str, headers: Mapping[str, str] | None = None, within_s: float = ASK_S) -> Any:
    answer = await _get(url, headers, within_s)
    return None if answer is None else strict_json(answer.content, url)


async def healthy(url: str) -> bool:
    """Say whether a server's /health answers 200."""
    return await _get(f"{url}/health") is not None


async def version(url: str) -> str | None:
    """Return the version that an engine tells."""
    told = await _json(f"{url}/version")
    return told.get("version") if isinstance(told, Mapping) else None


async def configuration(url: str) -> dict[str, Any] | None:
    """Return an engine's own configuration; None unless it runs in development mode."""
    told = await _json(f"{url}/server_info?config_format=json", within_s=DESCRIBE_S)
    config = told.get("vllm_config") if isinstance(told, Mapping) else None
    return config if isinstance(config, dict) else None


async def served_model(url: str) -> str:
    """Return the name of the model that a server serves.

    Raises:
        BenchError: it serves none, or does not say.
    """
    told = await _json(f"{url}/v1/models")
    try:
        return str(told["data"][0]["id"])
    except (LookupError, TypeError) as error:
        raise BenchError(f"{url}: /v1/models names no model") from error


async def settled(urls: Sequence[str], within_s: float) -> bool:
    """Wait until no engine has a request, running or waiting; False if one still has."""
    until_s = time.monotonic() + within_s
    while True:
        pages = [await _get(f"{url}/metrics") for url in urls]
        # An engine that does not tell has nothing that could be waited for.
        if not any(_busy(page.text) for page in pages if page is not None):
            return True
        if time.monotonic() > until_s:
            return False
        await asyncio.sleep(POLL_S)


def _busy(text: str) -> bool:
    lines = (line for line in text.splitlines() if line.startswith(BUSY))
    values = (line.rpartition(" ")[2] for line in lines if "by_reason" not in line)
    return any(float(value) > 0 for value in values)


def _address(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url if "//" in url else f"//{url}")
    host = parts.hostname or ""
    return ("loopback" if host in LOOPBACK else host), parts.port


async def refuse_live(admin_url: str, engine_urls: Iterable[str]) -> None:
    """Refuse engines that a route of a running gateway names.

    Args:
        admin_url: the gateway's listener for operators; its token is taken from the environment.
        engine_urls: what the bench would start, stop or load.

    Raises:
        BenchError: one of them is in service, or the gateway does not tell.
    """
    token = os.environ.get(ADMIN_TOKEN)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    told = await _json(f"{admin_url}/admin/status", headers)
    if not isinstance(told, Mapping) or "engines" not in told:
        raise BenchError(
            f"{admin_url}: /admin/status does not answer; is its token in {ADMIN_TOKEN}?"
        )
    named = [row["engine"] for row in told["engines"]]
    named += [row["address"] for row in told.get("health", ()) if "address" in row]
    live = {_address(url) for url in named}
    for url in engine_urls:
        if _address(url) in live:
            raise BenchError(f"{url}: a route of the gateway at {admin_url} names this engine")
