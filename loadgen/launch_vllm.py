"""Starts real vLLM engines with a cell's complete, frozen arguments, one process each.

Before anything starts, every flag is held against the `--help` of the very program that will run.
On loopback the engine is started in development mode, so that it tells its effective settings.
"""

import asyncio
import os
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from loadgen.asking import LOOPBACK, healthy, refuse_live
from loadgen.front import Before, confirmed_at, front, versions_of
from loadgen.identity import model_facts, model_identity
from loadgen.launching import STRICT, Need, Standing, settings_of
from loadgen.record import BenchError, digest
from loadgen.stack import log_tail, stop_process
from loadgen.tether import tethered
from loadgen.vllm_flags import command_line, flags_in, help_in, unknown_flags

__all__ = ["Vllm", "VllmSettings", "vllm_command"]

POLL_S = 0.5
HELP_S = 120.0
MODEL = "{model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """How vLLM is called. `command` holds `{model}` where the model's name belongs.

    `devices` gives each engine its CUDA_VISIBLE_DEVICES. `image_digest` is what the reader pins;
    without it the program's version and the digest of its help stand for it. `limits` is a file
    that `bench limits` printed, for the gateway.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    model: str
    command: tuple[str, ...] = ("vllm", "serve", MODEL)
    revision: str | None = None
    tokenizer_revision: str | None = None
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8100
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    image_digest: str | None = None
    ready_s: float = 900.0
    expected_start_s: float = 40.0
    direct: bool = False
    tokenizer: str | None = None
    chat_template: str | None = None
    limits: str | None = None
    live_admin_url: str | None = None
    check_help: bool = True

    def url(self, n: int) -> str:
        """Return where engine `n` listens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port + n}"


def vllm_command(settings: VllmSettings, args: Mapping[str, Any], n: int) -> list[str]:
    """Return the words that start engine `n`: the template, then the complete arguments."""
    words = [word.replace(MODEL, settings.model) for word in settings.command]
    pinned = {
        "revision": settings.revision,
        "tokenizer_revision": settings.tokenizer_revision or settings.revision,
        "served_model_name": settings.served_model_name,
        "enable_chunked_prefill": True,
        "host": settings.host,
        "port": settings.port + n,
    }
    own = {k: v for k, v in args.items() if k not in {"model", "host", "port"}}
    return [*words, *command_line({**pinned, **own})]


class Vllm:
    """A launcher of vLLM engines."""

    __slots__ = ("_help_sha256", "_settings")

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._settings = settings_of(VllmSettings, data)
        self._help_sha256 = ""

    async def prepare(self, needs: Sequence[Need]) -> Mapping[str, str]:
        """Refuse flags that the program does not have, and engines that are in service."""
        own, count = self._settings, max(need.engines for need in needs)
        if own.live_admin_url is not None:
            await refuse_live(own.live_admin_url, [own.url(n) for n in range(count)])
        held = self._before().digests()
        if not own.check_help:
            return held
        text = await self._help()
        self._help_sha256 = digest(text.encode())
        for need in needs:
            words = vllm_command(own, need.args, 0)[len(own.command) :]
            if unknown := unknown_flags(words, flags_in(text)):
                raise BenchError(f"cell {need.cell_id}: this vLLM has no {', '.join(unknown)}")
        return {"help_sha256": self._help_sha256, **held}

    def _before(self) -> Before:
        own = self._settings
        return Before(own.tokenizer, own.chat_template, own.limits, own.direct)

    async def _help(self) -> str:
        own = self._settings
        plain = [w for w in own.command if w not in {MODEL, "--model"}]
        try:
            process = await asyncio.create_subprocess_exec(
                *tethered([*plain, "--help=all"]),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # Its digest must not depend on the terminal's width.
                env={**os.environ, **own.environment, "COLUMNS": "80"},
            )
            output, _ = await asyncio.wait_for(process.communicate(), HELP_S)
        except (OSError, TimeoutError) as error:
            raise BenchError(f"{' '.join(plain)} --help=all: {error or 'no answer'}") from error
        if process.returncode != 0:
            end = output.decode(errors="replace")[-1000:]
            raise BenchError(f"{' '.join(plain)} --help=all ended with {process.returncode}: {end}")
        return help_in(output.decode(errors="replace"))

    def _identity(self, versions: Mapping[str, Any]) -> dict[str, str]:
        own = self._settings
        version = versions.get("versions", {}).get("engine", "of unknown version")
        image = own.image_digest or f"vllm {version}, help sha256:{self._help_sha256 or 'unread'}"
        revisions = model_identity(own.model, own.revision, own.tokenizer_revision)
        return {"image_digest": image, **revisions}

    def _environment(self, n: int) -> dict[str, str]:
        own = self._settings
        env = {**os.environ, **own.environment}
        if own.host in LOOPBACK:
            env["VLLM_SERVER_DEV_MODE"] = "1"
        if n < len(own.devices):
            env["CUDA_VISIBLE_DEVICES"] = own.devices[n]
        return env

    @asynccontextmanager
    async def _engine(self, need: Need, n: int, log: Path) -> AsyncIterator[Process]:
        """Have the process of engine `n`, healthy or not yet, while inside."""
        url = self._settings.url(n)
        if await healthy(url):
            raise BenchError(f"{url}: something serves there already; stop it or change the port")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *tethered(vllm_command(self._settings, need.args, n)),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                    env=self._environment(n),
                )
            except OSError as error:
                raise BenchError(f"{self._settings.command[0]}: {error}") from error
        try:
            yield process
        finally:
            await asyncio.shield(stop_process(process))

    async def _engines(self, need: Need, logs: Sequence[Path], stack: AsyncExitStack) -> None:
        """Start them until all are healthy: together where each has devices of its own.

        Engines that share a device start one after another, since each measures the memory that
        the others leave.
        """
        own = self._settings
        apart = _apart(own.devices, need.engines)
        waits: list[asyncio.Future[None]] = []
        try:
            for n, log in enumerate(logs):
                process = await stack.enter_async_context(self._engine(need, n, log))
                waits.append(asyncio.ensure_future(self._wait_healthy(process, own.url(n), log)))
                if not apart:
                    await waits[-1]
            await asyncio.gather(*waits)
        finally:
            for wait in waits:
                wait.cancel()

    async def _wait_healthy(self, process: Process, url: str, log: Path) -> None:
        until_s = time.monotonic() + self._settings.ready_s
        while not await healthy(url):
            if process.returncode is not None:
                raise BenchError(f"{url}: the engine ended while it started\n{log_tail(log)}")
            if time.monotonic() > until_s:
                raise BenchError(
                    f"{url}: not healthy after {self._settings.ready_s:g} s\n{log_tail(log)}"
                )
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def standing(self, need: Need, folder: Path) -> AsyncIterator[Standing]:
        """Have the engines, and the gateway before them, while inside."""
        own = self._settings
        if need.time_scale != 1:
            raise BenchError("--time-scale: a real engine's clock cannot be scaled")
        logs = [folder / f"engine-{n}.log" for n in range(need.engines)]
        async with AsyncExitStack() as stack:
            await self._engines(need, logs, stack)
            urls = [own.url(n) for n in range(need.engines)]
            before = front(urls, need, folder, self._before())
            endpoint = await stack.enter_async_context(before)
            confirmed, versions = await confirmed_at(urls, need, logs), await versions_of(urls)
            facts = {**confirmed.facts, **versions, **model_facts(own.model)}
            yield Standing(endpoint, self._identity(versions), confirmed, facts)


def _apart(devices: Sequence[str], engines: int) -> bool:
    """Whether each engine is known to have devices that no other has."""
    named = [name.strip() for of in devices[:engines] for name in of.split(",")]
    alike = len({name.isdecimal() for name in named}) == 1  # a number and a UUID may be one device
    return len(devices) >= engines and alike and len(set(named)) == len(named)
