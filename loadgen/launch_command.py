"""Starts engines by commands that the user names: kubectl, slurm, ssh.

`start` runs to its end and leaves engines coming up at the named addresses; `stop` ends them.
Both are lists of words and get the cell in their environment:
SLUICEGATE_CELL_ID, SLUICEGATE_FLAGS (words for `vllm serve`), SLUICEGATE_ARGS (JSON), and one
SLUICEGATE_ARG_NAME for each argument. A start that was cut off leaves a mark in its folder; the
next one there stops first.
"""

import asyncio
import json
import os
import shlex
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from loadgen.asking import healthy, refuse_live
from loadgen.front import Before, confirmed_at, front, versions_of
from loadgen.identity import EXTERNAL_IDENTITY
from loadgen.launching import STRICT, Need, Standing, settings_of
from loadgen.record import BenchError
from loadgen.stack import log_tail
from loadgen.tether import tethered
from loadgen.vllm_flags import command_line

__all__ = ["Command", "CommandSettings", "cell_environment"]

POLL_S = 0.5
MARK = "started-by-hook"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """The hooks and where the engines are reached once `start` has run.

    Without `health`, /health of every engine is asked. `start_log` is a file that `start` leaves,
    the engine's output, from which settings are read where the engine does not tell. `limits` is a
    file that `bench limits` printed, for the gateway.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    start: tuple[str, ...]
    stop: tuple[str, ...]
    engine_urls: tuple[str, ...]
    health: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    start_log: str | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = 900.0
    hook_s: float = 600.0
    expected_start_s: float = 60.0
    direct: bool = False
    tokenizer: str | None = None
    chat_template: str | None = None
    limits: str | None = None
    live_admin_url: str | None = None


def cell_environment(need: Need) -> dict[str, str]:
    """Return what the hooks are told of the cell."""
    told = {
        "SLUICEGATE_CELL_ID": need.cell_id,
        "SLUICEGATE_START": need.name,
        "SLUICEGATE_ARGS": json.dumps(dict(need.args), sort_keys=True),
        "SLUICEGATE_FLAGS": shlex.join(command_line(need.args)),
    }
    for name, value in need.args.items():
        text = value if isinstance(value, str) else json.dumps(value)
        told[f"SLUICEGATE_ARG_{name.upper()}"] = text
    return told


def _appending(log: Path) -> BinaryIO:
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("ab")


def _marked(mark: Path, name: str) -> bool:
    """Leave a mark that engines are up; returns whether an earlier start had left one."""
    before = mark.exists()
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(name)
    return before


class Command:
    """A launcher that calls the user's hooks."""

    __slots__ = ("_settings",)

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._settings = settings_of(CommandSettings, data)
        if not self._settings.engine_urls:
            raise BenchError("plan.json: launcher.engine_urls: name at least one engine")

    async def prepare(self, needs: Sequence[Need]) -> Mapping[str, str]:
        """Refuse engines that are in service, and more engines than there are addresses for."""
        own, count = self._settings, max(need.engines for need in needs)
        if count > len(own.engine_urls):
            raise BenchError(f"launcher.engine_urls: {len(own.engine_urls)} named, {count} needed")
        if own.live_admin_url is not None:
            await refuse_live(own.live_admin_url, own.engine_urls)
        return self._before().digests()

    def _before(self) -> Before:
        own = self._settings
        return Before(own.tokenizer, own.chat_template, own.limits, own.direct)

    async def _call(self, words: Sequence[str], need: Need, log: Path) -> int:
        with _appending(log) as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *tethered(words),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    env={**os.environ, **self._settings.environment, **cell_environment(need)},
                )
            except OSError as error:
                raise BenchError(f"{words[0]}: {error}") from error
        try:
            return await asyncio.wait_for(process.wait(), self._settings.hook_s)
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise

    async def _hook(self, name: str, words: Sequence[str], need: Need, log: Path) -> None:
        try:
            status = await self._call(words, need, log)
        except TimeoutError as error:
            raise BenchError(f"{name} hook: no end within {self._settings.hook_s:g} s") from error
        if status != 0:
            raise BenchError(f"{name} hook: exit status {status}\n{log_tail(log)}")

    async def _up(self, need: Need, log: Path) -> bool:
        own = self._settings
        if own.health:
            return await self._call(own.health, need, log) == 0
        return all([await healthy(url) for url in own.engine_urls[: need.engines]])

    async def _wait_up(self, need: Need, log: Path) -> None:
        until_s = time.monotonic() + self._settings.ready_s
        while not await self._up(need, log):
            if time.monotonic() > until_s:
                raise BenchError(
                    f"cell {need.cell_id}: not healthy after {self._settings.ready_s:g} s\n"
                    f"{log_tail(log)}"
                )
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def _started(self, need: Need, folder: Path) -> AsyncIterator[None]:
        log, mark = folder / "hooks.log", folder.parent / MARK
        if _marked(mark, need.name):
            await self._hook("stop", self._settings.stop, need, log)
        try:
            await self._hook("start", self._settings.start, need, log)
            await self._wait_up(need, log)
            yield
        finally:
            await asyncio.shield(self._hook("stop", self._settings.stop, need, log))
            mark.unlink()

    @asynccontextmanager
    async def standing(self, need: Need, folder: Path) -> AsyncIterator[Standing]:
        """Have the engines, and the gateway before them, while inside."""
        own = self._settings
        if need.time_scale != 1:
            raise BenchError("--time-scale: a real engine's clock cannot be scaled")
        urls = own.engine_urls[: need.engines]
        logs = [] if own.start_log is None else [Path(own.start_log)]
        async with (
            self._started(need, folder),
            front(urls, need, folder, self._before()) as endpoint,
        ):
            confirmed, versions = await confirmed_at(urls, need, logs), await versions_of(urls)
            identity = {**EXTERNAL_IDENTITY, **own.identity}
            yield Standing(endpoint, identity, confirmed, {**confirmed.facts, **versions})
