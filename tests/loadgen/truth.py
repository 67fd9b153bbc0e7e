"""A server of known truth: fixed time to first event, fixed gaps, its own send stamps.

It is written against bare asyncio sockets and shares no code with the client it checks. Both run
on one machine, so `time.monotonic_ns` is one clock for both.
"""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"X-Sluicegate-Queue-Ms: 1.5\r\nTransfer-Encoding: chunked\r\n\r\n"
)
DEFAULT = {
    "ttft_s": 0.02,
    "gap_s": 0.005,
    "chunks": 4,
    "finish": "length",
    "done": True,
    "prompt_tokens": 16,
    "fault": None,
}


@dataclass
class Seen:
    """What the server did for one request."""

    request_id: str
    arrived_ns: int
    sent_ns: list[int] = field(default_factory=list)
    left: bool = False


class TruthServer:
    """Answers every POST from `script(number)`; keeps what it did in `seen`."""

    def __init__(self, **defaults):
        self.defaults = {**DEFAULT, **defaults}
        self.seen = {}
        self.bodies = []
        self.connections = 0
        self.tasks = set()
        self.script = lambda body: {}

    async def handle(self, reader, writer):
        self.connections += 1
        self.tasks.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                arrived = time.monotonic_ns()
                headers = dict(
                    line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:-2]
                )
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                self.bodies.append(body)
                seen = Seen(headers.get("x-request-id", ""), arrived)
                self.seen[seen.request_id] = seen
                await self.answer(writer, seen, {**self.defaults, **self.script(body)})
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the server is told to end: either way this one is over
        finally:
            writer.close()

    async def answer(self, writer, seen, plan):
        if "status" in plan:
            payload = json.dumps({"error": {"code": plan["code"], "message": "no"}}).encode()
            writer.write(
                b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (plan["status"], len(payload))
                + payload
            )
            return
        writer.write(HEAD)
        due = time.monotonic() + plan["ttft_s"]
        for n in range(plan["chunks"]):
            await asyncio.sleep(max(0, due - time.monotonic()))
            due += plan["gap_s"]
            if plan["fault"] == "cut" and n == 2:
                writer.transport.abort()
                raise ConnectionError
            last = n == plan["chunks"] - 1
            finish = plan["finish"] if last else None
            seen.sent_ns.append(time.monotonic_ns())
            self.event(writer, {"choices": [{"index": 0, "finish_reason": finish}]})
            if writer.transport.is_closing():
                seen.left = True
                raise ConnectionError
        if plan["fault"]:
            self.event(writer, {"error": {"code": plan["fault"], "message": "no"}})
        usage = {"prompt_tokens": plan["prompt_tokens"], "completion_tokens": plan["chunks"]}
        self.event(writer, {"choices": [], "usage": usage})
        if plan["done"]:
            self.chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    def event(self, writer, value):
        self.chunk(writer, b"data: " + json.dumps(value).encode() + b"\n\n")

    @staticmethod
    def chunk(writer, data):
        writer.write(b"%x\r\n" % len(data) + data + b"\r\n")


@asynccontextmanager
async def truth_server(**defaults):
    """Run a server on a free port; yields it with `url` set."""
    truth = TruthServer(**defaults)
    server = await asyncio.start_server(truth.handle, "127.0.0.1", 0)
    truth.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield truth
    finally:
        server.close()
        for task in truth.tasks:
            task.cancel()
        await asyncio.gather(*truth.tasks, return_exceptions=True)
