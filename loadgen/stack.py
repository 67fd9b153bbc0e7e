"""Starts gateway and simulated engines as processes of their own and stops them again."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from loadgen.record import SERVICE_CLASS, BenchError, strict_json
from loadgen.tether import tethered

__all__ = ["Endpoint", "endpoint_from", "keys_by_class", "log_tail", "stack", "stop_process"]

# Above what `up` itself allows two engines and the gateway, to start and to stop: only `up` knows
# them all, and engines, in sessions of their own, would outlive it if it were killed first.
READY_S = 130.0
STOP_S = 40.0
# Credentials, and a path that means nothing on another machine: its digest is recorded instead.
UNTOLD = frozenset({"keys", "admin_token", "config"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a running stack is reached. Credentials stay out of its repr and of every file."""

    gateway_url: str
    admin_url: str | None
    engine_urls: tuple[str, ...]
    model: str
    keys: Mapping[str, str] = field(repr=False)
    told: Mapping[str, Any]
    config: Path | None = None
    admin_token: str | None = field(default=None, repr=False)


def endpoint_from(line: bytes) -> Endpoint:
    """Decode the one line that `up --json` prints once it serves.

    Raises:
        BenchError: not that line; the message names the missing field.
    """
    told = strict_json(line, "gateway up --json")
    try:
        return Endpoint(
            told["gateway_url"],
            told.get("admin_url"),
            tuple(told["engine_urls"]),
            told["model"],
            told["keys"],
            {k: v for k, v in told.items() if k not in UNTOLD},
            Path(told["config"]) if "config" in told else None,
            told.get("admin_token"),
        )
    except (KeyError, TypeError) as error:
        raise BenchError(f"gateway up --json: field {error} is missing") from error


def keys_by_class(keys: Mapping[str, str], classes: tuple[str, ...]) -> dict[str, str]:
    """Give each size class the key of its service class, else any key there is."""
    fallback = next(iter(keys.values()), None)
    chosen = {name: keys.get(SERVICE_CLASS.get(name, name), fallback) for name in classes}
    return {name: key for name, key in chosen.items() if key is not None}


def log_tail(log: Path) -> str:
    """Return the last lines of a log, for an error message."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return "\n".join(lines[-15:])


async def stop_process(process: asyncio.subprocess.Process) -> None:
    """End a process by SIGTERM, by SIGKILL if it takes too long, and its group with it."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
    # The session's group holds whatever the stopped process left behind, if anything.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _open_log(run_dir: Path) -> tuple[Path, BinaryIO]:
    run_dir.mkdir(parents=True, exist_ok=True)
    log = run_dir / "stack.log"
    return log, log.open("wb")


@asynccontextmanager
async def stack(
    admission: str,
    topology: str,
    run_dir: Path,
    time_scale: float = 1.0,
    more: Sequence[str] = (),
) -> AsyncIterator[Endpoint]:
    """Run a gateway and its engines; everything is stopped on the way out.

    Args:
        admission: off, observe or enforce.
        topology: shared or isolated.
        run_dir: takes configuration and logs.
        time_scale: how much faster than real time the engines' clock goes.
        more: further flags of `up`, such as engines that run already.

    Raises:
        BenchError: it did not come up in time; the message ends with its log.
    """
    args = ["up", "--json", "--admission", admission, "--topology", topology]
    args += ["--time-scale", f"{time_scale:g}", "--run-dir", str(run_dir), *more]
    log, errors = _open_log(run_dir)
    with errors:
        process = await asyncio.create_subprocess_exec(
            *tethered([sys.executable, "-m", "gateway", *args]),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield await _ready(process, log)
    finally:
        await asyncio.shield(stop_process(process))


async def _ready(process: asyncio.subprocess.Process, log: Path) -> Endpoint:
    assert process.stdout is not None  # noqa: S101 - it was asked for
    try:
        line = await asyncio.wait_for(process.stdout.readline(), READY_S)
    except TimeoutError as error:
        raise BenchError(f"gateway up: not ready after {READY_S:.0f} s\n{log_tail(log)}") from error
    if not line:
        raise BenchError(f"gateway up: ended before it was ready\n{log_tail(log)}")
    return endpoint_from(line)
