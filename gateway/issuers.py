"""Keeps the key sets of token issuers fresh: asks a URL or a file, and says what became of it.

A ``Keeper`` has one issuer's set. It is asked for again every ``refresh_s``, sooner after a
failure, and once when a token names a key id that the set lacks, though not more often than
``UNKNOWN_EVERY_S``. One request is on its way at a time; whoever needs it waits for that one. When
nothing newer than ``max_stale_s`` could be had the set is dropped: keys that may long have been
withdrawn vouch for nobody.
"""

import asyncio
import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import httpx

from gateway.keysets import KeySet, KeySetError, KeySource, parse_jwks

__all__ = ["Keeper", "KeeperView", "OnEvent"]

MAX_BYTES = 256 << 10
TIMEOUT_S = 5.0
UNKNOWN_EVERY_S = 10.0
WAIT_S = 2.0
RETRY_S = 1.0
MAX_RETRY_S = 30.0
# Nothing compressed: the bound on bytes is to hold for what is kept.
_ASKED = MappingProxyType({"accept": "application/json", "accept-encoding": "identity"})


class OnEvent(Protocol):
    """Told of each change; the journal's ``event`` is one."""

    def __call__(self, event: str, **facts: object) -> None:
        """Record one event."""


@dataclass(frozen=True, slots=True)
class KeeperView:
    """One issuer's key set now. ``age_s``: since it was last seen to be the issuer's.

    ``reason`` says why the last attempt failed; empty: it did not.
    """

    name: str
    keys: int
    age_s: float | None
    reason: str


class Keeper:
    """One issuer's key set.

    Args:
        name: the issuer's, for events.
        source: where the keys come from.
        key_set: what is known already.
        clock: monotonic seconds.
        on_event: told ``jwks_refreshed``, ``jwks_failed`` and ``jwks_stale``.
    """

    def __init__(
        self,
        name: str,
        source: KeySource,
        key_set: KeySet | None,
        clock: Callable[[], float],
        on_event: OnEvent,
    ) -> None:
        self.name = name
        self.source = source
        self.key_set = key_set
        self.reason = ""
        self._clock = clock
        self._on_event = on_event
        self._good_s = clock() if key_set is not None else -math.inf
        self._tried_s = -math.inf
        self._due_s = clock() + (source.refresh_s if key_set is not None else 0.0)
        self._failures = 0
        self._fetching: asyncio.Task[None] | None = None
        self._tls: ssl.SSLContext | None = None
        self._file_state: tuple[int, int] | None = None

    @property
    def fixed(self) -> bool:
        """Whether the set can't change: a shared secret."""
        return not (self.source.url or self.source.path)

    @property
    def asking(self) -> bool:
        """Whether an answer is on its way."""
        return self._fetching is not None

    def view(self) -> KeeperView:
        """What operators see."""
        keys = len(self.key_set.keys) if self.key_set is not None else 0
        age_s = None if self.fixed or not keys else self._clock() - self._good_s
        return KeeperView(self.name, keys, age_s, self.reason)

    def tick(self) -> None:
        """Start what is due, drop what is too old. Call it about every second."""
        if self.fixed:
            return
        now = self._clock()
        if self.key_set is not None and now - self._good_s >= self.source.max_stale_s:
            self.key_set = None
            self._on_event("jwks_stale", issuer=self.name)
        if now >= self._due_s:
            self._start()

    async def asked(self) -> None:
        """A token needs a newer set: wait shortly for one, if one may be asked for."""
        if self.fixed:
            return
        if self._fetching is None and self._clock() - self._tried_s < UNKNOWN_EVERY_S:
            return
        # What was started goes on for those who come later.
        await asyncio.wait([self._start()], timeout=WAIT_S)

    async def close(self) -> None:
        """End what is on its way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _start(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._tried_s = self._clock()
            self._fetching = asyncio.get_running_loop().create_task(self._refresh())
        return self._fetching

    async def _refresh(self) -> None:
        try:
            document = await (self._from_url() if self.source.url else self._from_file())
            fresh = None if document is None else parse_jwks(document)
        except KeySetError as error:
            self._failed(str(error))
        else:
            self._succeeded(fresh)
        finally:
            self._fetching = None

    def _succeeded(self, fresh: KeySet | None) -> None:
        now = self._clock()
        self.reason, self._failures = "", 0
        self._good_s, self._due_s = now, now + self.source.refresh_s
        if fresh is not None and fresh != self.key_set:
            self.key_set = fresh
            self._on_event("jwks_refreshed", issuer=self.name, keys=len(fresh.keys))

    def _failed(self, reason: str) -> None:
        self.reason = reason
        wait_s = min(RETRY_S * 2**self._failures, MAX_RETRY_S, self.source.refresh_s)
        self._failures = min(self._failures + 1, 16)
        self._due_s = self._clock() + wait_s
        self._on_event("jwks_failed", issuer=self.name, reason=reason)

    async def _from_file(self) -> bytes | None:
        return await asyncio.to_thread(self._read_changed)

    def _read_changed(self) -> bytes | None:
        """The file if it is another than last time; ``None`` if it is not."""
        path = Path(self.source.path)
        try:
            found = path.stat()
            state = (found.st_mtime_ns, found.st_size)
            if state == self._file_state and self.key_set is not None:
                return None
            document = path.read_bytes()
        except OSError as error:
            raise KeySetError(f"can't be read: {error.strerror}") from error
        if len(document) > MAX_BYTES:
            raise KeySetError(f"more than {MAX_BYTES} bytes")
        self._file_state = state
        return document

    async def _from_url(self) -> bytes:
        url = self.source.url
        if self._tls is None:
            # The system's certificates, read off the loop: that takes tens of milliseconds.
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                # No proxy or .netrc from the environment, no redirect: keys come from where
                # the configuration says or not at all.
                httpx.AsyncClient(verify=self._tls, trust_env=False) as client,
                client.stream("GET", url, headers=_ASKED) as answer,
            ):
                return await _whole(answer)
        except TimeoutError as error:
            raise KeySetError(f"no whole answer within {TIMEOUT_S:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise KeySetError(f"can't be fetched: {type(error).__name__}") from error


async def _whole(answer: httpx.Response) -> bytes:
    if answer.status_code != 200:
        raise KeySetError(f"answered {answer.status_code}")
    body = bytearray()
    async for part in answer.aiter_raw():
        body += part
        if len(body) > MAX_BYTES:
            raise KeySetError(f"more than {MAX_BYTES} bytes")
    return bytes(body)
