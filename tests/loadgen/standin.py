"""Stands in for `python -m gateway up`: known-truth answers, the same ready line, same SIGTERM."""

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from tests.loadgen.truth import DEFAULT, TruthServer

METRICS = b"""# TYPE sluicegate_queue_depth gauge
sluicegate_queue_depth{size_class="short",service_class="interactive"} 2
sluicegate_queue_depth{size_class="short",service_class="batch"} 1
sluicegate_oldest_waiting_age_seconds{size_class="short",service_class="interactive"} 0.25
sluicegate_oldest_waiting_age_seconds{size_class="long",service_class="batch"} 1.5
vllm:num_requests_running{model_name="m",engine="0"} 3.0
vllm:num_requests_waiting{model_name="m",engine="0"} 1.0
vllm:num_preemptions_total{model_name="m",engine="0"} 0.0
"""


class StandIn(TruthServer):
    """Refuses the tenth request under admission, so that tables have something to show."""

    def __init__(self, admission):
        super().__init__(ttft_s=0.01, gap_s=0.0005)
        self.script = self.plan
        self.admission, self.count = admission, 0

    def plan(self, body):
        self.count += 1
        if self.admission == "enforce" and self.count == 10:
            return {"status": 429, "code": "queue_full"}
        long = len(body["messages"][0]["content"]) > 10_000
        return {"prompt_tokens": 8192 if long else 512, "chunks": body["max_tokens"]}


async def metrics(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(METRICS)
    writer.write(head + METRICS)
    await writer.drain()
    writer.close()


def url(server):
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def up(args):
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    data = await asyncio.start_server(StandIn(args.admission).handle, "127.0.0.1", 0)
    admin = await asyncio.start_server(metrics, "127.0.0.1", 0)
    told = {
        "gateway_url": url(data),
        "admin_url": url(admin),
        "admin_token": "secret-admin",
        "engine_urls": [url(admin), url(admin)],
        "model": "m",
        "keys": {"interactive": "secret-one", "batch": "secret-two"},
    }
    print(json.dumps(told), flush=True)
    await stop.wait()


def main():
    assert DEFAULT
    parser = argparse.ArgumentParser()
    parser.add_argument("verb")
    parser.add_argument("--json", action="store_true")
    for name in ("admission", "topology", "time-scale", "run-dir"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    asyncio.run(up(args))
    Path(args.run_dir, "stopped").write_text("by SIGTERM")


if __name__ == "__main__":
    sys.exit(main())
