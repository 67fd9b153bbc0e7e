"""A real small sweep on a simulated engine, killed again and again."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time

import orjson
import pytest

from loadgen.staging import finished
from tests.loadgen.conftest import ROOT
from tests.loadgen.tiny import frozen, shortened

READY = re.compile(r"engine ready http://127\.0\.0\.1:(\d+)")


def planned(tmp_path, starts=1):
    """Two runs of each start; without a warm-up, which a busy machine may draw out for long."""
    return shortened(frozen(tmp_path / "p"), tmp_path / "s", starts=starts, warmup_prompts={})


def bench(folder, *more):
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", "bench", "run", str(folder), "--json", *more],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def read_until(process, stop):
    """Read events until one satisfies `stop`; returns whether it came."""
    return any(stop(orjson.loads(line)) for line in process.stdout)


def end(process):
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    return process.wait(60), errors


def engines_of(folder):
    logs = (p.read_text(errors="replace") for p in folder.glob("starts/*/engine-*.log"))
    return [int(port) for log in logs for port in READY.findall(log)]


def listening(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def wait_gone(ports):
    until = time.monotonic() + 30
    while any(listening(port) for port in ports):
        assert time.monotonic() < until, "an engine outlived its bench"
        time.sleep(0.1)


def records(folder, plan):
    done = [run["run_id"] for run in plan["runs"] if finished(folder, run["run_id"])]
    return {name: (folder / "runs" / name / "requests.jsonl").read_bytes() for name in done}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_bench_killed_at_any_moment_loses_at_most_the_run_in_flight(tmp_path):
    folder, plan = planned(tmp_path)
    rng, kept, killed = random.Random(4), {}, 0
    for phase in ("start", "row", "run-end"):
        process = bench(folder, "--resume")
        if not read_until(process, lambda event, phase=phase: event["event"] == phase):
            end(process)
            break  # it was quicker than the kill
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        killed += 1
        assert end(process)[0] == -signal.SIGKILL
        wait_gone(engines_of(folder))
        now = records(folder, plan)
        assert kept.items() <= now.items(), "a finished run is never touched again"
        kept = now
    assert killed >= 2
    process = bench(folder, "--resume")
    read_until(process, lambda event: False)
    code, errors = end(process)
    assert code in {0, 1}, errors
    now = records(folder, plan)
    assert len(now) == len(plan["runs"])
    assert kept.items() <= now.items()
    assert not list((folder / "runs").glob("*.part"))
    wait_gone(engines_of(folder))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_stops_everything_and_says_how_to_go_on(tmp_path):
    folder, plan = planned(tmp_path, starts=3)  # more than ends while this process waits its turn
    process = bench(folder)
    assert read_until(process, lambda event: event["event"] == "row")
    process.send_signal(signal.SIGINT)
    told = []
    read_until(process, told.append)
    code, errors = end(process)
    assert code == 130, errors
    assert told[-1]["event"] == "interrupted"
    assert told[-1]["of"] == len(plan["runs"])
    wait_gone(engines_of(folder))
    assert not list((folder / "runs").glob("*.part"))
