"""Starts engines and a gateway on this machine, says how to call them, and leaves nothing behind.

Engines come from a starter that is handed in, because the simulated one belongs to the bench. The
gateway runs as a process of its own, like in production, from a configuration written beside its
log; it ends when this process does, even by SIGKILL (``tether``).
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gateway.command import CommandError
from gateway.quickstart import EngineFacts, Quickstart, Wish, write_configuration
from gateway.tether import tied

__all__ = ["Engine", "Ready", "UpError", "curl_lines", "running_gateway", "stay_up", "stopped"]

READY_S = 60.0
STOP_S = 15.0


class UpError(CommandError):
    """Something did not start; the message ends with the log."""


class Engine(Protocol):
    """A started engine."""

    @property
    def url(self) -> str:
        """Where it listens."""

    def stop(self, timeout_s: float = ...) -> int:
        """End it."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Where a started gateway listens."""

    url: str
    admin_url: str


def stay_up(
    run_dir: Path,
    start_engines: Callable[[Path], list[Engine]],
    facts: EngineFacts,
    wish: Wish,
    announce: Callable[[dict[str, Any]], None],
) -> int:
    """Start everything, announce it, stay until a signal or until the gateway ends, stop all.

    Returns the exit code: 0 after a signal, 1 if the gateway ended by itself.

    Raises:
        UpError: the gateway did not become ready.
    """
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: told.set())
    run_dir.mkdir(parents=True, exist_ok=True)
    with stopped(start_engines(run_dir)) as engines:
        urls = [engine.url for engine in engines]
        try:
            started = write_configuration(run_dir, urls, facts, wish)
        except ValueError as error:
            raise UpError(str(error)) from error
        with running_gateway(started, run_dir / "gateway.log") as (process, ready):
            announce(_told(ready, urls, facts, started))
            while not told.wait(0.2):
                if process.poll() is not None:
                    return 1
    return 0


def _told(ready: Ready, urls: list[str], facts: EngineFacts, started: Quickstart) -> dict[str, Any]:
    return {
        "gateway_url": ready.url,
        "admin_url": ready.admin_url,
        "admin_token": started.admin_token,
        "engine_urls": urls,
        "model": facts.public_model,
        "keys": started.keys,
        "config": str(started.config),
    }


@contextlib.contextmanager
def stopped(engines: list[Engine]) -> Iterator[list[Engine]]:
    """The engines, which are stopped in the end."""
    try:
        yield engines
    finally:
        for engine in engines:
            engine.stop()


@contextlib.contextmanager
def running_gateway(
    started: Quickstart, log: Path, *, apart: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], Ready]]:
    """A gateway of its own process, ready, and stopped in the end.

    Args:
        started: its configuration.
        log: takes what it prints.
        apart: Ctrl-C in this terminal does not reach it.

    Raises:
        UpError: it did not become ready.
    """
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(started.config)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            tied(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=apart,
        )
    try:
        yield process, _wait_ready(process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> Ready:
    """The addresses from the gateway's own log, once one of its engines is up too."""
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s:
        events = _events(log)
        ready = next((e for e in events if e.get("event") == "ready"), None)
        if ready is not None and any(e.get("event") == "engine_up" for e in events):
            return Ready(ready["url"], ready["admin_url"])
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise UpError(f"the gateway did not start; its log {log} ends:\n{_tail(log)}")


def _events(log: Path) -> list[dict[str, Any]]:
    events = []
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    return [event for event in events if isinstance(event, dict)]


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def curl_lines(told: dict[str, Any]) -> str:
    """Where everything is, and commands that work as pasted."""
    url, key = told["gateway_url"], told["keys"]["interactive"]
    chat = {
        "model": told["model"],
        "messages": [{"role": "user", "content": "What does a sluice gate do?"}],
        "max_tokens": 16,
        "stream": True,
    }
    completion = {"model": told["model"], "prompt": "A sluice gate", "max_tokens": 8}
    as_json = "-H 'Content-Type: application/json'"
    lines = [
        f"engines  {' '.join(told['engine_urls'])}",
        f"gateway  {url}   model {told['model']}",
        f"console  {told['admin_url']}/console   token {told['admin_token']}",
        "",
        "# a streamed chat",
        f"curl -N {url}/v1/chat/completions -H 'Authorization: Bearer {key}' \\",
        f"  {as_json} -d '{json.dumps(chat)}'",
        "# a completion",
        f"curl {url}/v1/completions -H 'Authorization: Bearer {key}' \\",
        f"  {as_json} -d '{json.dumps(completion)}'",
        "# no key: 401",
        f"curl -i {url}/v1/chat/completions {as_json} -d '{{}}'",
        "# metrics per class, and the state of the gateway",
        f"curl {told['admin_url']}/metrics",
        f"curl {told['admin_url']}/admin/status -H 'Authorization: Bearer {told['admin_token']}'",
        "# change it while it runs: limits show, set, pause, resume; reload; usage",
        f"SLUICEGATE_ADMIN_TOKEN={told['admin_token']} \\",
        f"  sluicegate limits pause flow.long.batch --admin-url {told['admin_url']}",
        "",
        "Ctrl-C ends it all.",
    ]
    return "\n".join(lines)
