"""Measures the measuring client against a server of known truth, and prints its errors.

    python tests/bench/bench_client.py [--streams 500] [--rate 200] [--seconds 8]

The server runs as a process of its own and reports its send stamps; both use one machine's
monotonic clock, so client stamp minus server stamp is the client's error plus the kernel's
transport. Aims on two quiet cores: error p99 within 1 ms at 500 streams, dispatch lag p99 within
1 ms at 200 arrivals per second. Prints figures and asserts nothing.
"""

import argparse
import asyncio
import gc
import json
import math
import os
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from loadgen.corpus import Corpus
from loadgen.cpu_priority import ahead_of_servers
from loadgen.record import Outcome, Prompt
from loadgen.records import records
from loadgen.replay import Job, Replay, payloads
from loadgen.stream import Pool
from loadgen.trace import Arrival
from tests.loadgen.truth import truth_server

JOB = Job(
    run_id="b",
    url="",
    model="m",
    keys={},
    trace_path="",
    trace_sha256="",
    corpus_path="",
    corpus_sha256="",
    config_sha256="",
    out_path="",
    ramp_s=0.0,
    window_s=0.0,
    drain_s=20.0,
    timeout_s=60.0,
)


async def serve(args):
    """Serve until standard input closes, then print every send stamp."""
    async with truth_server(ttft_s=args.ttft, gap_s=args.gap, chunks=args.chunks) as truth:
        print(truth.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        print(json.dumps({k: s.sent_ns for k, s in truth.seen.items()}), flush=True)


def ranks(values):
    ordered = sorted(values)
    return {
        name: ordered[max(0, math.ceil(q * len(ordered)) - 1)]
        for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
    }


def show(name, values_us):
    print(f"  {name:<34}" + "  ".join(f"{k} {v:8.0f} us" for k, v in ranks(values_us).items()))


async def measure(title, trace, ttft_s, gap_s, chunks):
    command = [sys.executable, __file__, "--serve", "--ttft", str(ttft_s), "--gap", str(gap_s)]
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(
        *command, "--chunks", str(chunks), stdin=pipe, stdout=pipe, limit=1 << 28
    )
    url = (await server.stdout.readline()).decode().strip()
    corpus = Corpus((Prompt("short", 1, chunks, "x", "p"),), "")
    job = replace(JOB, url=url, window_s=trace[-1].offset_us / 1e6)
    pool, rows = Pool(url), []
    replay = Replay(job, trace, payloads(job, trace, corpus), pool, rows.append)
    gc.collect()
    gc.freeze()
    gc.disable()
    # As the replaying process does; the server beside it keeps its ordinary priority.
    with ahead_of_servers() as priority:
        await replay.run()
    gc.enable()
    await pool.close()
    server.stdin.close()
    sent = json.loads(await server.stdout.readline())
    await server.wait()
    report(title, records(trace, 0.0, replay.captures, replay.ended, replay.t0_ns), sent, replay)
    print(f"  client priority                    {priority}")
    seconds = [r for r in rows if "cpu_share" in r]
    print(f"  client CPU, worst second           {max(r['cpu_share'] for r in seconds):.0%}")
    print(f"  loop lag, worst                    {max(r['loop_lag_ms'] for r in seconds):.2f} ms")


def report(title, made, sent, replay):
    ok = [r for r in made if r.outcome is Outcome.OK]
    first, gaps, stalls = [], [], []
    for record in ok:
        truth = [(at - replay.t0_ns) / 1e3 for at in sent[f"b-{record.seq}"]]
        seen = record.event_us
        first.append(seen[0] - truth[0])
        own = [b - a for a, b in pairwise(seen)]
        true = [b - a for a, b in pairwise(truth)]
        gaps += [abs(a - b) for a, b in zip(own, true, strict=True)]
        stalls.append(abs(max(own) - max(true)))
    print(f"{title}: {len(ok)} of {len(made)} ok, {sum(len(r.event_us) for r in ok)} events")
    show("first event after server's stamp", first)
    show("gap, absolute error", gaps)
    show("maximum stall, absolute error", stalls)
    show(
        "dispatch lag less connecting",
        [r.dispatched_us - r.planned_us - r.connect_wait_us for r in made],
    )
    show("connecting", [r.connect_wait_us for r in made])


def evenly(count, rate):
    return tuple(Arrival(n, "short", int(n / rate * 1e6), 1, 0, "p") for n in range(count))


def with_output(trace, chunks):
    return tuple(replace(a, output_tokens=chunks) for a in trace)


async def bench(args):
    streams = with_output(evenly(args.streams, args.streams / 2.0), 40)
    await measure(f"{args.streams} streams at once", streams, 2.5, 0.1, 40)
    count = int(args.rate * args.seconds)
    arrivals = with_output(evenly(count, args.rate), 4)
    await measure(f"{args.rate:.0f} arrivals per second", arrivals, 0.02, 0.005, 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    for name, kind in (("ttft", float), ("gap", float), ("chunks", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.serve and hasattr(os, "getloadavg"):
        print(f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    uvloop.run(serve(args) if args.serve else bench(args))


if __name__ == "__main__":
    main()
