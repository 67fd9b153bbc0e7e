"""A tiny HTTP server that answers probes with what a test sets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["FakeEngine", "listening", "page"]


def page(**figures: float) -> str:
    """A metrics page: ``start``, ``steps``, ``running``, ``preemptions`` and so on."""
    names = {
        "start": "process_start_time_seconds",
        "cpu": "process_cpu_seconds_total",
        "steps": "vllm:iteration_tokens_total_count",
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "preemptions": "vllm:num_preemptions_total",
        "kv_usage": "vllm:kv_cache_usage_perc",
        "blocks": 'vllm:cache_config_info{num_gpu_blocks="%g"}',
    }
    rows = []
    for name, value in figures.items():
        known = names[name]
        rows.append(f"{known % value} 1.0" if "%g" in known else f"{known} {value}")
    return "".join(f"{row}\n" for row in rows)


@dataclass(eq=False)
class FakeEngine:
    """Its health status, its metrics page, and other answers by path."""

    status: int = 200
    metrics: str = ""
    hangs: bool = False
    hangs_at: str = "no path"
    answers: dict[str, str] = field(default_factory=dict)
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                self.requests.append(request)
                if self.hangs or f" {self.hangs_at}".encode() in request:
                    await asyncio.sleep(60)
                status, body = self._answer(request.split(b" ")[1].decode())
                head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body.encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, target: str) -> tuple[int, str]:
        path = target.partition("?")[0]
        if path == "/health":
            return self.status, ""
        if path == "/metrics":
            return 200, self.metrics
        return (200, self.answers[path]) if path in self.answers else (404, "")


@asynccontextmanager
async def listening(engine: FakeEngine, where: int | Path = 0) -> AsyncIterator[int]:
    """Serve it on a port of 127.0.0.1 or a unix socket; every connection is closed at the end."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(engine.serve(reader, writer)))

    if isinstance(where, Path):
        server = await asyncio.start_unix_server(accept, where)
    else:
        server = await asyncio.start_server(accept, "127.0.0.1", where)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _ in range(5):  # turns in which the loop tells of whom it accepted just before
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
