"""Runs one simulated engine: its port, its signals, the ready line.

SIGTERM behaves as vLLM's. With ``--shutdown-timeout 0`` the port closes at once, the engine steps
no more, and open answers hang until their callers leave. With a time-out open answers are finished
while /health stays 200 and new requests fail, some with a false success; then the process ends.
Times are real seconds.
"""

import argparse
import asyncio
import signal
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import uvicorn
import uvloop

from loadgen.engine.application import Application
from loadgen.engine.flags import EngineSettings, add_arguments, settings_from
from loadgen.engine.surfaces.info import VERSION
from loadgen.engine.textmodel import TextModel

__all__ = ["VERSION", "add_arguments", "main", "run", "serve"]

KEEP_ALIVE_S = 5  # vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE


async def serve(settings: EngineSettings) -> None:
    """Run an engine until a signal ends it; prints one line when it serves.

    Raises:
        OSError: The address can't be bound.
        ValueError: The tokenizer or template can't be used.
    """
    text = TextModel(settings.tokenizer, settings.chat_template)
    listener = _bind(settings.host, settings.port)
    if settings.fault.slow_start_s:
        await asyncio.sleep(settings.fault.slow_start_s)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as executor:
        application = Application(settings, text, executor)
        server = uvicorn.Server(_uvicorn_config(application))
        async with asyncio.TaskGroup() as tasks:
            core = tasks.create_task(application.core.run())
            ready = tasks.create_task(_announce(server, application, listener))
            await server.serve(sockets=[listener])
            core.cancel()
            ready.cancel()


def run(settings: EngineSettings) -> None:
    """Run ``serve`` on an event loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine from a command line; 2 for wrong flags or files, 1 for a taken address."""
    parser = argparse.ArgumentParser(prog="python -m loadgen.engine")
    add_arguments(parser)
    try:
        run(settings_from(parser.parse_args(argv)))
    except (ValueError, FileNotFoundError) as error:
        sys.stderr.write(f"engine: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"engine: can't listen: {error}\n")
        return 1
    return 0


def _uvicorn_config(application: Application) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )


def _bind(host: str, port: int) -> socket.socket:
    """Take the address without listening, so that a slow start refuses connections."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from error
    return listener


async def _announce(
    server: uvicorn.Server, application: Application, listener: socket.socket
) -> None:
    """Wait for the port, take over the signals, print the ready line, and drain when told."""
    while not server.started:  # noqa: ASYNC110 - the server offers a flag, no event
        await asyncio.sleep(0.005)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(f"engine ready http://{shown}:{port}\n")
    sys.stdout.flush()
    await stop.wait()
    await _drain(application)
    server.should_exit = True


async def _drain(application: Application) -> None:
    """Finish open answers within the shutdown time-out; without one, stop the engine dead."""
    timeout_s = application.settings.shutdown_timeout_s
    if timeout_s <= 0:
        application.core.halt()
        return
    application.load.draining = True
    with suppress(TimeoutError):
        await asyncio.wait_for(application.load.idle.wait(), timeout_s)
    application.core.abort_all()
