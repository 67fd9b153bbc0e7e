"""Reads clocks, power and throttling of the machine's GPUs, where nvidia-smi can be asked."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from loadgen.tether import tethered

__all__ = ["gpu_names", "gpu_row", "watching_gpus"]

PROGRAM = "nvidia-smi"
FIELDS = {
    "index": "gpu",
    "clocks.sm": "sm_clock_mhz",
    "power.draw": "power_w",
    "utilization.gpu": "utilisation",
    "memory.used": "memory_mib",
    "clocks_throttle_reasons.active": "throttle_reasons",
}
ASK_S = 10.0
Row = dict[str, Any]


def gpu_names() -> str | None:
    """Name the machine's GPUs, how many, and the driver; None where there are none to ask."""
    if shutil.which(PROGRAM) is None:
        return None
    query = [PROGRAM, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, timeout=ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = told.stdout.decode(errors="replace").split("\n")
    lines = [line.strip() for line in rows if line.strip()]
    if not lines:
        return None
    name, _, driver = lines[0].rpartition(", ")
    return f"{len(lines)} x {name}, driver {driver}"


def gpu_row(line: str) -> Row | None:
    """Return one printed line as a row; what the card does not tell is absent."""
    values = [part.strip() for part in line.split(",")]
    if len(values) != len(FIELDS) or not values[0].isdigit():
        return None
    row: Row = {"source": "gpu"}
    for name, text in zip(FIELDS.values(), values, strict=True):
        if name == "throttle_reasons":
            row[name] = text
        else:
            with suppress(ValueError):  # "[N/A]", as cards print what they lack
                row[name] = float(text) if "." in text else int(text)
    return row


async def _read(stream: asyncio.StreamReader, emit: Callable[[Row], None]) -> None:
    async for line in stream:
        if (row := gpu_row(line.decode(errors="replace"))) is not None:
            emit({**row, "at_ns": time.monotonic_ns()})


@asynccontextmanager
async def watching_gpus(emit: Callable[[Row], None]) -> AsyncIterator[None]:
    """Emit a row a second for each GPU while inside; nothing where there is none."""
    if shutil.which(PROGRAM) is None:
        yield
        return
    query = f"--query-gpu={','.join(FIELDS)}"
    process = await asyncio.create_subprocess_exec(
        *tethered([PROGRAM, query, "--format=csv,noheader,nounits", "-lms", "1000"]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None  # noqa: S101 - it was asked for
    reader = asyncio.ensure_future(_read(process.stdout, emit))
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reader
