"""Asks servers for a page, or tells them something, outside of any measurement.

Errors name the address; credentials are in no message.
"""

from collections.abc import Mapping
from typing import Any

import httpx

from loadgen.record import BenchError

__all__ = ["Asker"]

TIMEOUT_S = 5.0


class Asker:
    """One client for such questions; an async context manager.

    Args:
        token: a bearer token for every question, if one is needed.
    """

    def __init__(self, token: str | None = None) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S, headers=headers)

    async def __aenter__(self) -> "Asker":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def _answer(self, method: str, url: str, body: Any = None) -> httpx.Response:
        try:
            answer = await self._client.request(method, url, json=body)
            answer.raise_for_status()
        except httpx.HTTPStatusError as error:
            said = error.response.text[:300]
            raise BenchError(f"{url}: answered {error.response.status_code} ({said})") from error
        except httpx.HTTPError as error:
            raise BenchError(f"{url}: {type(error).__name__} {error}") from error
        return answer

    async def text(self, url: str) -> str:
        """Return a page's text.

        Raises:
            BenchError: no answer, or not a good one.
        """
        return (await self._answer("GET", url)).text

    async def json(self, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return what a GET answers or, with a body, a POST.

        Raises:
            BenchError: no answer, not a good one, or not JSON.
        """
        answer = await self._answer("GET" if body is None else "POST", url, body)
        try:
            return answer.json()
        except ValueError as error:
            raise BenchError(f"{url}: the answer is not JSON") from error
