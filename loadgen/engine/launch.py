"""Starts one simulated engine as its own process and stops it again.

The engine must not share an event loop, nor an interpreter, with whatever measures it. It ends when
the process that started it does, however that ends (``tether``). Times are real seconds.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loadgen.tether import tethered

__all__ = ["EngineProcess", "LaunchError", "start_engine"]

READY = "engine ready "
POLL_S = 0.02
TAIL_CHARS = 2000


class LaunchError(RuntimeError):
    """An engine that ended, or was not ready in time; the message holds the log's tail."""


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A running engine."""

    url: str
    log_path: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self.process.pid

    def stop(self, timeout_s: float = 5.0) -> int:
        """End it by SIGTERM, and by SIGKILL after the time-out; returns its exit status."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout_s)
        return self.kill()

    def kill(self) -> int:
        """End it by SIGKILL; returns its exit status."""
        self.process.kill()
        return self.process.wait()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def start_engine(
    args: Sequence[str], log_path: str | Path, deadline_s: float = 30.0
) -> EngineProcess:
    """Start an engine in a session of its own and wait for its ready line.

    Args:
        args: Flags of the engine, without ``--port`` for a free port.
        log_path: File that takes its output; overwritten.
        deadline_s: Seconds until the engine must be ready.

    Raises:
        LaunchError: It ended, or was not ready in time.
    """
    log = Path(log_path)
    log.parent.mkdir(parents=True, exist_ok=True)
    port = () if "--port" in args else ("--port", "0")
    command = [sys.executable, "-m", "loadgen.engine", *port, *args]
    with log.open("wb") as output:
        process = subprocess.Popen(
            tethered(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_environment(),
        )
    try:
        return EngineProcess(_wait_ready(process, log, deadline_s), log, process)
    except BaseException:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        raise


def _wait_ready(process: subprocess.Popen[bytes], log: Path, deadline_s: float) -> str:
    limit_s = time.monotonic() + deadline_s
    while True:
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            if line.startswith(READY) and line.endswith("\n"):
                return line.removeprefix(READY).strip()
        status = process.poll()
        if status is not None:
            raise LaunchError(f"the engine ended with status {status}; {_tail(log)}")
        if time.monotonic() > limit_s:
            raise LaunchError(f"the engine was not ready within {deadline_s:g} s; {_tail(log)}")
        time.sleep(POLL_S)


def _tail(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")[-TAIL_CHARS:].strip()
    return f"end of {log}:\n{text}" if text else f"{log} is empty"


def _environment() -> dict[str, str]:
    """The caller's environment, with this package importable wherever the engine starts."""
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": root if not inherited else f"{root}{os.pathsep}{inherited}"}
