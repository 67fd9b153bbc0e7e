"""Prints what the relay costs, beside nginx, HAProxy and vllm-router where they are installed.

Run: [VLLM_ROUTER=path] python -m tests.bench.bench_relay [--seconds 4] [--streams 32] ...

Upstream and proxies are processes of their own; a proxy's CPU time is read from /proc, so the
figures are per streamed chunk (an event each 5 ms) and per short whole answer. Measured are the
edge and the relay alone, and the whole gateway. Wall times on a shared machine are no figures;
the ratio of two CPU times in one run is. Also: memory per open stream, and the time from a
caller's leaving to the close of the engine's connection. Asserts nothing.
"""

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

import orjson
import uvicorn
import uvloop

from gateway.domain import Outcome, Surface
from gateway.edge import EdgeLimits, caller_ending, read_body, uvicorn_config
from gateway.lifetime import Timeline, Timeouts
from gateway.quickstart import EngineFacts, Wish, write_configuration
from gateway.relay import UpstreamCall, relay
from gateway.wire import EngineClient
from tests.gateway.scripted import CHUNKED_HEAD, DONE, LAST_CHUNK, chunk, event, plain
from tests.ports import free_port

EVENTS = 128
INTERVAL_S = 0.005
SLOW_EVENTS, SLOW_INTERVAL_S = 32, 0.05
EXTRA = ',"object":"chat.completion.chunk","created":1764430000,"model":"m"'
ONE = chunk(event("token", extra=EXTRA))
LAST = chunk(event("", "stop", EXTRA)) + chunk(DONE) + LAST_CHUNK
WHOLE = plain(
    b'{"choices":[{"message":{"content":"hello"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":1}}',
    headers=b"content-type: application/json\r\n",
)
PROMPT = "A sluice gate lets through what the channel can carry. " * 8
PATH = "/v1/chat/completions"
MODES = ("stream", "whole")
ROUTER = "vllm-router"


# The upstream: answers by the user that the body names.


class Upstream(asyncio.Protocol):
    """Streams events at their interval, holds a stream open, or answers at once."""

    closed_at: list[float] = []  # noqa: RUF012 - one process, one list

    def __init__(self) -> None:
        self.data = b""
        self.left = 0
        self.interval_s = INTERVAL_S
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        if found and len(body) >= length:
            self.data = b""
            if head.startswith(b"GET"):  # a health probe
                self.transport.write(plain(b"{}"))
            else:
                self.answer(body)

    def answer(self, body: bytes) -> None:
        if b'"user":"whole"' in body:
            self.transport.write(WHOLE)
            return
        self.transport.write(CHUNKED_HEAD + ONE)
        slow = b'"user":"slow"' in body
        if slow or b'"user":"stream"' in body:
            self.left = (SLOW_EVENTS if slow else EVENTS) - 1
            self.interval_s = SLOW_INTERVAL_S if slow else INTERVAL_S
            self.timer = asyncio.get_running_loop().call_later(self.interval_s, self.tick)

    def tick(self) -> None:
        if self.transport.is_closing():
            return
        if self.left:
            self.left -= 1
            self.transport.write(ONE)
            self.timer = asyncio.get_running_loop().call_later(self.interval_s, self.tick)
        else:
            self.transport.write(LAST)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed_at.append(time.monotonic())
        if self.timer is not None:
            self.timer.cancel()


async def serve_upstream(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        Upstream, "127.0.0.1", port, backlog=1024
    )
    await server.serve_forever()


# The proxy that is measured.


def serve_relay(port: int, upstream: int) -> None:
    clients: list[EngineClient] = []
    limits = Timeouts(60.0, 60.0, 600.0)
    headers = [(b"content-type", b"application/json"), (b"x-request-id", b"bench")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if not clients:
            clients.append(EngineClient(f"http://127.0.0.1:{upstream}"))
        body = await read_body(receive, 1 << 20, 10.0)
        gone = caller_ending(scope)
        stream = b'"user":"whole"' not in body
        call = UpstreamCall(
            PATH.encode(), headers, body, stream, Surface.CHAT, headers[1:],
            pass_on=scope["sluicegate.pass_on"],
        )  # fmt: skip
        result = await relay(clients[0], call, send, gone, Timeline(time.monotonic), limits)
        if result.outcome not in {Outcome.COMPLETED, Outcome.CLIENT_CANCELLED}:
            print(result, file=sys.stderr)

    config = uvicorn_config(app, "127.0.0.1", port, EdgeLimits())
    config.lifespan = "off"
    uvloop.run(uvicorn.Server(config).serve())


# The callers.


class Callers(asyncio.Protocol):
    """One caller that sends its next request when its answer is whole, until ``deadline``."""

    key = ""  # of the whole gateway; the others do not look at it

    def __init__(self, mode: str, port: int, deadline: float, done: Callable[[int], None]) -> None:
        asked = {"model": "m", "stream": mode != "whole", "user": mode, "max_tokens": EVENTS}
        body = orjson.dumps({**asked, "messages": [{"role": "user", "content": PROMPT}]})
        lines = (
            f"POST {PATH} HTTP/1.1",
            f"host: 127.0.0.1:{port}",
            f"authorization: Bearer {self.key}",
            "content-type: application/json",
            f"content-length: {len(body)}",
        )
        self.request = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        self.end = LAST_CHUNK if mode == "stream" else b"}}"
        self.deadline, self.done = deadline, done
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-8:]
        if self.tail.endswith(self.end):
            self.tail = b""
            self.done(1)
            if time.monotonic() < self.deadline:
                self.transport.write(self.request)
            else:
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.done(0)


async def load(mode: str, port: int, callers: int, seconds: float) -> int:
    """Run the callers and return how many answers they got."""
    loop, counts, all_left = asyncio.get_running_loop(), [0, 0], asyncio.Event()

    def done(answers: int) -> None:
        counts[0] += answers
        counts[1] += not answers
        if counts[1] == callers:
            all_left.set()

    deadline = time.monotonic() + seconds
    for _ in range(callers):
        await loop.create_connection(lambda: Callers(mode, port, deadline, done), "127.0.0.1", port)
    await asyncio.wait_for(all_left.wait(), seconds + 30)
    return counts[0]


# Processes and their figures.


@dataclass(frozen=True, slots=True)
class Proxy:
    name: str
    port: int
    pid: int


def family(pid: int) -> list[int]:
    """``pid`` and its children: nginx works in one."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children)]


def cpu_s(pid: int) -> float:
    ticks = 0
    for each in family(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def run_delay_s(pid: int, thread: int) -> float:
    """How long a thread was ready to run and the system ran something else, since it began."""
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1]) / 1e9


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


NGINX = """
daemon off; master_process off; worker_processes 1; pid {dir}/pid; error_log {dir}/log;
events {{ worker_connections 1024; }}
http {{ access_log off; client_body_temp_path {dir}/a; proxy_temp_path {dir}/b;
fastcgi_temp_path {dir}/c; uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;
upstream engine {{ server 127.0.0.1:{upstream}; keepalive 64; }}
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://engine;
proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }} }}
"""
HAPROXY = """
global
  maxconn 1024
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  http-reuse always
  server s 127.0.0.1:{upstream}
"""


def peers(folder: str, upstream: int) -> Iterator[tuple[str, int, list[str]]]:
    """Name, port and command of each proxy that is installed here, to compare with."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    for name, settings, flag in (("nginx", NGINX, "-c"), ("haproxy", HAPROXY, "-f")):
        if program := shutil.which(name, path=path):
            port, file = free_port(), Path(folder) / name
            file.write_text(settings.format(dir=folder, port=port, upstream=upstream))
            yield name, port, [program, flag, str(file)]
    if program := os.environ.get("VLLM_ROUTER") or shutil.which("vllm-router"):
        port, urls = free_port(), ["--worker-urls", f"http://127.0.0.1:{upstream}"]
        where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        yield ROUTER, port, [program, *urls, *where, "--policy", "round_robin"]


@contextlib.contextmanager
def process(command: list[str], port: int, log: IO[bytes] | None = None) -> Iterator[int]:
    """Run ``command`` until it listens on ``port``; end it afterwards."""
    running = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"{command[0]} does not listen on port {port}")
        yield running.pid
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()


@contextlib.contextmanager
def whole_gateway(folder: str, upstream: int, slots: int | None = None) -> Iterator[Proxy]:
    """The product as it is served: keys, counting, admission, metrics and log all on."""
    port = free_port()
    wish = Wish(port=port, admin_port=free_port())
    engines = [f"http://127.0.0.1:{upstream}"]
    started = write_configuration(Path(folder) / "gateway", engines, EngineFacts("m"), wish)
    Callers.key = started.keys["interactive"]
    if slots is not None:
        text = started.config.read_text()
        started.config.write_text(re.sub(r"(?m)^slots = \d+", f"slots = {slots}", text))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(started.config)]
    with Path(folder, "log").open("wb") as log, process(command, port, log) as pid:
        time.sleep(1.0)  # until its first probe has found the engine
        yield Proxy("gateway", port, pid)


def own(role: str, *ports: int) -> list[str]:
    return [sys.executable, "-m", "tests.bench.bench_relay", role, *map(str, ports)]


async def cost_us(proxy: Proxy, mode: str, callers: int, seconds: float) -> float:
    """CPU microseconds per event of a stream, or per whole answer."""
    before = cpu_s(proxy.pid)
    answers = await load(mode, proxy.port, callers, seconds)
    return (cpu_s(proxy.pid) - before) / (answers * (EVENTS if mode == "stream" else 1)) * 1e6


async def held_open(port: int, streams: int) -> list[asyncio.Transport]:
    """Streams that have had their first event and get no other."""
    loop = asyncio.get_running_loop()
    opened = []
    for _ in range(streams):
        transport, _ = await loop.create_connection(
            lambda: Callers("open", port, 0.0, lambda _: None), "127.0.0.1", port
        )
        opened.append(transport)
    await asyncio.sleep(1.0)
    return opened


async def memory_per_stream(proxy: Proxy, streams: int) -> float:
    for transport in await held_open(proxy.port, 20):  # what is allocated once
        transport.abort()
    await asyncio.sleep(0.5)
    before = resident_bytes(proxy.pid)
    opened = await held_open(proxy.port, streams)
    grown = resident_bytes(proxy.pid) - before
    for transport in opened:
        transport.abort()
    return grown / streams


async def cancel_delays_s(streams: int) -> list[float]:
    """From a caller's leaving to the engine's seeing it; the engine is in this process."""
    loop = asyncio.get_running_loop()
    upstream, port = free_port(), free_port()
    server = await loop.create_server(Upstream, "127.0.0.1", upstream, backlog=1024)
    delays = []
    with process(own("relay", port, upstream), port):
        opened = await held_open(port, streams)
        Upstream.closed_at.clear()
        for transport in opened:
            left_at, seen = time.monotonic(), len(Upstream.closed_at)
            transport.abort()
            while len(Upstream.closed_at) == seen:  # noqa: ASYNC110 - polls as fast as it can
                await asyncio.sleep(0)
            delays.append(Upstream.closed_at[-1] - left_at)
    server.close()
    return sorted(delays)


def judged(figure: float, must: float, aim: float) -> str:
    word = "OK" if figure <= aim else "within must" if figure <= must else "MISSED"
    return f"{figure:10.2f}   must {must:g}, aim {aim:g}: {word}"


async def measure(proxies: list[Proxy], options: argparse.Namespace) -> None:
    print(f"{'':12}{'us/chunk':>10}{'us/whole':>10}")
    rows: dict[str, list[tuple[float, float]]] = {proxy.name: [] for proxy in proxies}
    for _ in range(options.rounds):  # in turns: what else the machine does hits all alike
        for proxy in proxies:
            streamed = await cost_us(proxy, "stream", options.streams, options.seconds)
            whole = await cost_us(proxy, "whole", options.clients, options.seconds / 2)
            rows[proxy.name].append((streamed, whole))
    show_ratios(rows, counting_us())
    for proxy in proxies[:2]:
        kib = await memory_per_stream(proxy, 100) / 1024
        print(f"KiB per open stream, {proxy.name:8}", judged(kib, 64, 32))
    delays = await cancel_delays_s(200)
    print("ms, caller gone, p50         ", f"{delays[len(delays) // 2] * 1e3:10.2f}")
    print("ms, caller gone, p99         ", judged(delays[-3] * 1e3, 50, 10))


def counting_us() -> float:
    """CPU of rendering and counting the prompt; the ratio to a router, which does not, omits it.

    As part of a request, where what came before has taken the caches: alone it takes half of that.
    """
    command = [sys.executable, "-m", "tests.bench.unary_profile", "--counting"]
    found = float(subprocess.run(command, check=True, capture_output=True).stdout)
    print(f"rendering and counting the prompt of a whole answer: {found:.0f} us, left out below")
    return found


def show_ratios(rows: dict[str, list[tuple[float, float]]], count_us: float) -> None:
    """Print medians of all rounds: of the figures, and of the ratio of two in one round.

    A machine that is shared takes half as long again for all in one minute as in the next.
    """
    for name, row in rows.items():
        streamed, whole = (median(column) for column in zip(*row, strict=True))
        print(f"{name:12}{streamed:10.1f}{whole:10.1f}")

    def ratio(own_name: str, name: str, at: int, apart_us: float = 0.0) -> float:
        pairs = zip(rows[own_name], rows[name], strict=True)
        return median((own_row[at] - apart_us) / row[at] for own_row, row in pairs)

    for name in [name for name in rows if name not in {"relay", "gateway"}]:
        for own_name in ("relay", "gateway"):
            print(f"{own_name} / {name}: {ratio(own_name, name, 0):.1f} per chunk, ", end="")
            print(f"{ratio(own_name, name, 1):.1f} per whole answer")
    if ROUTER in rows:
        print("CPU per chunk / vllm-router  ", judged(ratio("gateway", ROUTER, 0), 1.3, 1.0))
        apart = ratio("gateway", ROUTER, 1, count_us)
        print("CPU per whole / vllm-router  ", judged(apart, 2.5, 1.5))


def bench(options: argparse.Namespace) -> None:
    upstream, port = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        stack.enter_context(process(own("upstream", upstream), upstream))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        proxies = [
            Proxy("relay", port, stack.enter_context(process(own("relay", port, upstream), port))),
            stack.enter_context(whole_gateway(folder, upstream)),
        ]
        for name, other_port, command in peers(folder, upstream):
            log = stack.enter_context(Path(folder, f"{name}.log").open("wb"))
            pid = stack.enter_context(process(command, other_port, log))
            proxies.append(Proxy(name, other_port, pid))
        missing = {"nginx", "haproxy", ROUTER} - {proxy.name for proxy in proxies}
        if missing:
            print(f"not installed, not compared with: {', '.join(sorted(missing))}")
        time.sleep(3.0)  # until the router has found its worker
        uvloop.run(measure(proxies, options))


def main() -> None:
    if sys.argv[1:2] == ["upstream"]:
        uvloop.run(serve_upstream(int(sys.argv[2])))
    elif sys.argv[1:2] == ["relay"]:
        serve_relay(int(sys.argv[2]), int(sys.argv[3]))
    else:
        parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
        parser.add_argument("--seconds", type=float, default=3.0, help="per proxy, streams")
        parser.add_argument("--streams", type=int, default=32, help="open at once")
        parser.add_argument("--rounds", type=int, default=5, help="the median of so many counts")
        parser.add_argument("--clients", type=int, default=16, help="of whole answers")
        bench(parser.parse_args())


if __name__ == "__main__":
    main()
