"""Prints what one whole answer costs in the gateway, without sockets: in all, and by module.

Run: python -m tests.bench.unary_profile [--requests 100] [--batches 80] [--rows 40] [--stream 0]

The edge's protocol and the engine's connection get transports that only call back, so that what
is measured is the product's own work: the least CPU time of several batches, and how many calls
of Python functions a request makes, which does not depend on what else the machine does. The
table is the profiler's, whose times are larger than life. Asserts nothing.
"""

import argparse
import asyncio
import cProfile
import io
import pstats
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson
import uvicorn
import uvloop

from gateway.assembly import build
from gateway.config import load
from gateway.edge import EdgeLimits, uvicorn_config
from gateway.hugepages import collapse
from gateway.journal import Journal
from gateway.quickstart import EngineFacts, Wish, write_configuration
from tests.bench.bench_relay import LAST, ONE, PATH, PROMPT, WHOLE
from tests.gateway.scripted import CHUNKED_HEAD

ENGINE = "http://127.0.0.1:9"


class Transport(asyncio.Transport):
    """Takes what is written and calls back."""

    def __init__(self, on_write: Callable[[bytes], None]) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.on_write = on_write
        self.closing = False

    def write(self, data: Any) -> None:
        self.on_write(data)

    def writelines(self, list_of_data: Any) -> None:
        self.on_write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    close = abort

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Rig:
    """A gateway with one caller and one engine, and a request to repeat."""

    def __init__(self, folder: Path, chunks: int) -> None:
        wish = Wish(port=8080, admin_port=8081)
        started = write_configuration(folder / "gateway", [ENGINE], EngineFacts("m"), wish)
        settings = load(started.config)
        self.loop = asyncio.get_running_loop()
        self.journal = Journal(io.BytesIO())
        self.gateway = build(settings, self.journal, time.monotonic)
        collapse()  # as ``serve`` does
        self.gateway.parts.turnstile.tell(lambda core, now: core.set_engine(ENGINE, now, up=True))
        client = self.gateway.parts.clients[ENGINE]
        client._dial = self._dial  # type: ignore[method-assign]
        self.answers = [WHOLE]
        if chunks:
            self.answers = [CHUNKED_HEAD + ONE, *([ONE] * chunks), LAST]
        self.request = _request(started.keys["interactive"], stream=bool(chunks))
        self.left = 0
        self.done: asyncio.Future[None] = self.loop.create_future()
        config = uvicorn_config(self.gateway, "127.0.0.1", 8080, EdgeLimits())
        config.load()
        make = cast("Any", config.http)
        self.caller = make(config=config, server_state=uvicorn.server.ServerState())
        self.caller.connection_made(Transport(self._answered))

    async def _dial(self, protocol: Callable[[], Any]) -> Any:
        connection = protocol()
        transport = Transport(lambda _: self._answer(connection, 0))
        connection.connection_made(transport)
        return transport, connection

    def _answer(self, connection: Any, at: int) -> None:
        self.loop.call_soon(self._reply, connection, at)

    def _reply(self, connection: Any, at: int) -> None:
        data = self.answers[at]
        connection.get_buffer(-1)[: len(data)] = data
        if at + 1 < len(self.answers):
            self._answer(connection, at + 1)
        connection.buffer_updated(len(data))

    def _answered(self, data: bytes) -> None:
        if data.endswith((b"}}", b"0\r\n\r\n")):
            self.left -= 1
            if self.left:
                self.loop.call_soon(self.caller.data_received, self.request)
            else:
                self.done.set_result(None)
        elif b" 200 " not in data[:20] and data.startswith(b"HTTP"):
            raise RuntimeError(data)

    async def batch(self, requests: int) -> float:
        """CPU microseconds of this thread per request."""
        self.left, self.done = requests, self.loop.create_future()
        before = time.thread_time()
        self.caller.data_received(self.request)
        await self.done
        return (time.thread_time() - before) / requests * 1e6


def _request(key: str, *, stream: bool) -> bytes:
    asked = {"model": "m", "stream": stream, "user": "whole", "max_tokens": 128}
    body = orjson.dumps({**asked, "messages": [{"role": "user", "content": PROMPT}]})
    lines = (
        f"POST {PATH} HTTP/1.1",
        "host: 127.0.0.1:8080",
        f"authorization: Bearer {key}",
        "content-type: application/json",
        f"content-length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def _calls(rig: Rig, requests: int) -> tuple[Counter[str], int]:
    """Calls of Python functions per request, by module, and of built-in ones."""
    by_module: Counter[str] = Counter()
    built_in = 0

    def note(frame: Any, event: str, _: object) -> None:
        nonlocal built_in
        if event == "call":
            by_module[frame.f_code.co_filename] += 1
        elif event == "c_call":
            built_in += 1

    sys.setprofile(note)
    await rig.batch(requests)
    sys.setprofile(None)
    return by_module, built_in


async def _show_calls(rig: Rig, options: argparse.Namespace) -> None:
    by_module, built_in = await _calls(rig, options.requests)
    calls = sum(by_module.values()) / options.requests
    print(f"calls per request: {calls:.1f} Python, {built_in / options.requests:.1f} built-in")
    for name, count in by_module.most_common(options.rows):
        print(f"{count / options.requests:8.1f}  {'/'.join(Path(name).parts[-2:])}")


async def measure(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder), options.stream)
        await rig.batch(options.requests)
        costs = sorted([await rig.batch(options.requests) for _ in range(options.batches)])
        print(f"us per request: least {costs[0]:.1f}, median {costs[len(costs) // 2]:.1f}")
        if options.calls:
            await _show_calls(rig, options)
        if options.profile:
            profile = cProfile.Profile()
            profile.enable()
            await rig.batch(options.requests)
            profile.disable()
            text = io.StringIO()
            stats = pstats.Stats(profile, stream=text)
            stats.sort_stats(options.sort).print_stats(options.profile)
            print(text.getvalue())
        rig.gateway.parts.turnstile.close()
        rig.gateway.parts.fleet.close()
        rig.journal.close()


async def print_counting(options: argparse.Namespace) -> None:
    """What rendering and counting take of a request: it with them, less it without."""
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder), 0)
        stage = rig.gateway.setup.counting
        real = stage._read_and_count
        found: list[Any] = []

        def noted(*arguments: Any) -> Any:
            found[:] = [real(*arguments)]
            return found[0]

        ways = {"with": real, "without": lambda *_: found[0]}
        stage._read_and_count = noted  # type: ignore[method-assign]
        await rig.batch(options.requests)
        least = dict.fromkeys(ways, float("inf"))
        for _ in range(options.batches):  # in turns: what else the machine does hits both alike
            for name, way in ways.items():
                stage._read_and_count = way  # type: ignore[assignment]
                least[name] = min(least[name], await rig.batch(options.requests))
        print(f"{least['with'] - least['without']:.1f}")
        rig.gateway.parts.turnstile.close()
        rig.gateway.parts.fleet.close()
        rig.journal.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=100, help="per batch")
    parser.add_argument("--batches", type=int, default=80)
    parser.add_argument("--calls", type=int, default=1, help="0: do not count them")
    parser.add_argument("--rows", type=int, default=40, help="of the table by module")
    parser.add_argument("--profile", type=int, default=0, help="lines of the profiler's table")
    parser.add_argument("--sort", default="tottime")
    parser.add_argument("--stream", type=int, default=0, help="chunks; 0: a whole answer")
    parser.add_argument("--counting", action="store_true", help="print only what counting takes")
    options = parser.parse_args()
    uvloop.run(print_counting(options) if options.counting else measure(options))


if __name__ == "__main__":
    main()
