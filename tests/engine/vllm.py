"""Starts real engines and asks them what they do: addresses, logs, gauges, counters."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from gateway.scrape import Scrape, parse_metrics
from loadgen.tether import tethered
from tests.e2e.harness import caller, eventually
from tests.engine.install import complete, home
from tests.ports import free_port

__all__ = [
    "ENTRY",
    "ENVIRONMENT",
    "Engine",
    "begin",
    "carried_out",
    "end_in_order",
    "model",
    "python",
    "ready",
]

# The package for CPUs has no working ``vllm`` command: it asks for metadata under another name.
ENTRY = ("-m", "vllm.entrypoints.launchers.api_server.entry", "--model")
# One thread each, and processes on one core not bound to it: engines and gateway share two.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
BASE = (
    *("--served-model-name", "simulated", "--load-format", "dummy", "--dtype", "bfloat16"),
    *("--enforce-eager", "--max-model-len", "9216", "--distributed-executor-backend", "uni"),
    "--no-enable-prefix-caching",
)
START_S = 400.0


def python() -> Path:
    """The interpreter of vLLM's environment."""
    folder = home()
    if not complete(folder):
        raise RuntimeError(f"{folder}: vLLM is not installed there: make test-engine")
    return folder / "venv" / "bin" / "python"


def model(name: str) -> Path:
    """A model folder: tiny, mid or qwen."""
    python()
    return home() / "models" / name


@dataclass(frozen=True)
class Engine:
    """A real engine: a process that leads a group of its own."""

    url: str
    model: Path
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def tail(self) -> str:
        """The end of what it printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    @property
    def core_pid(self) -> int:
        """The process that schedules and computes, a child of the one that serves."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        cores = [
            int(pid)
            for pid in children.read_text().split()
            if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(cores) == 1, cores
        return cores[0]

    async def page(self) -> str:
        """Its metrics page."""
        async with caller() as client:
            return (await client.get(f"{self.url}/metrics")).text

    async def scrape(self) -> Scrape:
        """Its figures, read as the gateway reads them."""
        return parse_metrics(await self.page())

    async def until(self, running: int, waiting: int = 0, limit_s: float = 30.0) -> None:
        """Wait until so many requests run and wait in it."""

        async def reached() -> bool:
            seen = await self.scrape()
            return (seen.running, seen.waiting) == (running, waiting)

        await eventually(reached, limit_s)

    def stop(self) -> None:
        """End it and all it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def begin(folder: Path, name: str, flags: Sequence[str], log: Path) -> Engine:
    """Start an engine on a free port; ``ready`` waits until it serves."""
    port = free_port()
    where = ("--host", "127.0.0.1", "--port", str(port))
    command = [str(python()), *ENTRY, str(folder / name), *BASE, *where, *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(
            tethered(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
    return Engine(f"http://127.0.0.1:{port}", folder / name, log, process)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def end_in_order() -> None:
    """Take a request to end as a reason to stop what was begun first.

    The tether alone does not do: an engine that is told to end while it starts may go on.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)


def carried_out(words: Sequence[str]) -> int:
    """Run a command to its end and return its status; if we end first, it is told to, too."""
    with subprocess.Popen(tethered(words)) as process:
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                process.terminate()


def ready(engine: Engine) -> Engine:
    """Wait until the engine answers; RuntimeError with the end of its log where it does not."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and engine.process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{engine.url}/health", trust_env=False).status_code == 200:
                return engine
        time.sleep(0.2)
    engine.stop()
    raise RuntimeError(f"the engine did not come up:\n{engine.tail}")
