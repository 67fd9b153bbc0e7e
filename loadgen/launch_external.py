"""Measures servers that run already and are left alone; a plan of one cell.

The address may be an engine's or a gateway's; a key is taken from an environment variable, so that
it is in no file.
"""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from loadgen.asking import refuse_live, served_model
from loadgen.confirm import Confirmed
from loadgen.front import confirmed_at, versions_of
from loadgen.identity import EXTERNAL_IDENTITY
from loadgen.launching import STRICT, Need, Standing, settings_of
from loadgen.record import SERVICE_CLASS, BenchError
from loadgen.stack import Endpoint

__all__ = ["External", "ExternalSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalSettings:
    """Where the servers are. `engine_urls` are scraped and asked for their settings.

    `key_env` names the variable that holds the API key.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    url: str
    admin_url: str | None = None
    engine_urls: tuple[str, ...] = ()
    model: str | None = None
    key_env: str | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    expected_start_s: float = 0.0
    live_admin_url: str | None = None


class External:
    """A launcher that launches nothing."""

    __slots__ = ("_settings",)

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._settings = settings_of(ExternalSettings, data)

    async def prepare(self, needs: Sequence[Need]) -> Mapping[str, str]:
        """Refuse a second cell, and engines that are in service elsewhere."""
        cells = sorted({need.cell_id for need in needs})
        if len({repr(sorted(need.args.items())) for need in needs}) > 1:
            raise BenchError(
                f"launcher external: one cell can run, the plan has {', '.join(cells)}"
            )
        if len(ways := sorted({need.admission for need in needs})) > 1:
            raise BenchError(
                f"launcher external: what runs has one admission, the plan has {', '.join(ways)}"
            )
        own = self._settings
        if own.live_admin_url is not None:
            await refuse_live(own.live_admin_url, [own.url, *own.engine_urls])
        if own.key_env is not None and not os.environ.get(own.key_env):
            raise BenchError(f"launcher.key_env: the variable {own.key_env} is not set")
        return {}

    @asynccontextmanager
    async def standing(self, need: Need, folder: Path) -> AsyncIterator[Standing]:
        """Yield what stands already."""
        own = self._settings
        model = own.model or await served_model(own.url)
        key = os.environ.get(own.key_env, "") if own.key_env else ""
        keys = dict.fromkeys({*SERVICE_CLASS, *SERVICE_CLASS.values()}, key) if key else {}
        told = {"external": own.url}
        endpoint = Endpoint(own.url, own.admin_url, own.engine_urls, model, keys, told)
        confirmed, versions = Confirmed("unverified", need.args), {}
        if own.engine_urls:
            confirmed = await confirmed_at(own.engine_urls, need, [])
            versions = dict(await versions_of(own.engine_urls))
        identity = {**EXTERNAL_IDENTITY, **own.identity}
        yield Standing(endpoint, identity, confirmed, {**confirmed.facts, **versions})
