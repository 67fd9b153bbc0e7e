"""Carries out one run: writes its configuration, replays, probes beside it, writes samples.

The replay is a process of its own, so that neither probing nor the display disturbs it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from loadgen.files import write_bytes
from loadgen.gpu import watching_gpus
from loadgen.probe import probe_until
from loadgen.record import BenchError, RunConfig, canonical, strict_json
from loadgen.replay import Job
from loadgen.tether import tethered

__all__ = ["Watch", "carry_out", "write_config"]

Row = dict[str, Any]
Watch = Callable[[Row], None]
ROOT = Path(__file__).resolve().parent.parent


def write_config(run_dir: Path, config: RunConfig) -> str:
    """Write `config.json` and return its digest."""
    return write_bytes(run_dir / "config.json", canonical(config.as_json()))


async def _follow(process: asyncio.subprocess.Process, watch: Watch) -> Row:
    """Hand on the replay's lines; return its last."""
    assert process.stdout is not None  # noqa: S101 - it was asked for
    row: Row = {"kind": "failed", "reason": "the replaying process printed nothing"}
    async for line in process.stdout:
        row = strict_json(line, "replay output")
        watch(row)
    return row


async def _replay(job: Job, watch: Watch) -> None:
    # Killed with this process: what it would still write belongs to a run that nobody finishes.
    process = await asyncio.create_subprocess_exec(
        *tethered([sys.executable, "-m", "loadgen.replay"], signal.SIGKILL),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )
    assert process.stdin is not None  # noqa: S101 - it was asked for
    process.stdin.write(orjson.dumps(asdict(job)))
    process.stdin.write_eof()
    try:
        last = await _follow(process, watch)
        code = await process.wait()
    finally:
        if process.returncode is None:
            # It writes what it has, the rest as cancelled, and ends.
            process.send_signal(signal.SIGINT)
            await process.wait()
    if code != 0 or last.get("kind") != "finished":
        raise BenchError(f"{job.run_id}: replay ended with {code}: {last.get('reason', last)}")


def _samples(job: Job, rows: Sequence[Row]) -> bytes:
    """Put all rows on the run's time axis; those of before its start bear negative seconds."""
    t0_ns = next(r["t0_ns"] for r in rows if r.get("kind") == "started")
    lines = [{"kind": "samples", "run_id": job.run_id, "config_sha256": job.config_sha256}]
    for row in rows:
        if "source" not in row:
            continue
        own = {k: v for k, v in row.items() if k not in {"kind", "at_ns"}}
        if "at_ns" in row:
            own["t_s"] = round((row["at_ns"] - t0_ns) / 1e9 * job.time_scale, 3)
        lines.append(own)
    return b"".join(canonical(line) for line in lines)


async def carry_out(
    job: Job, run_dir: Path, admin_url: str | None, engines: Sequence[str], watch: Watch
) -> str:
    """Replay one job, probing beside it; returns the digest of `samples.jsonl`.

    Args:
        job: the run; its configuration is written already.
        run_dir: where `samples.jsonl` goes.
        admin_url: of the gateway, None where there is none.
        engines: addresses of the engines.
        watch: is shown every row as it comes.

    Raises:
        BenchError: the replay could not be carried out.
    """
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        watch(row)

    stop, failed = asyncio.Event(), None
    async with asyncio.TaskGroup() as group:
        interval_s = 1.0 / job.time_scale
        group.create_task(probe_until(stop, admin_url, engines, keep, interval_s))
        try:
            async with watching_gpus(keep):
                await _replay(job, keep)
        except BenchError as error:
            failed = error  # leaving the group with it would wrap it in an ExceptionGroup
        finally:
            stop.set()
    if failed is not None:
        raise failed
    return write_bytes(run_dir / "samples.jsonl", _samples(job, rows))
