"""Keeps a run's files apart until they are whole, judged, and named for good.

A run is carried out in `<run_id>.part` and appears under its own name by one rename, or as
`<run_id>.invalid-<n>` if the client spoilt it: whatever a crash leaves in `.part` is nothing.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loadgen.analyse import reduce_run
from loadgen.files import read_bytes, read_json
from loadgen.record import decode_requests, strict_json
from loadgen.run_folder import is_whole, trace_path

__all__ = [
    "RERUNS",
    "arrivals_of",
    "attempts_kept",
    "clear",
    "drop_attempts",
    "faults_of",
    "finished",
    "is_last",
    "keep",
    "part_of",
    "set_faulty_aside",
    "settle",
]

Json = Mapping[str, Any]
RERUNS = 2  # of a run that the client spoilt


def finished(folder: Path, run_id: str) -> bool:
    """Say whether a run needs no more attempt: its records are whole, or its cell cannot be."""
    own = folder / "runs" / run_id
    if is_whole(own):
        return True
    config = own / "config.json"
    return config.is_file() and "incompatible" in read_json(config)


def attempts_kept(folder: Path, run_id: str) -> int:
    """Return how many spoilt attempts of a run lie beside it."""
    return len(list((folder / "runs").glob(f"{run_id}.invalid-*")))


def is_last(attempt: int) -> bool:
    """Say whether a run that this attempt spoils too keeps it as its own, until asked again."""
    return attempt % (RERUNS + 1) == 0


def drop_attempts(folder: Path, run_id: str) -> None:
    """Remove the spoilt attempts of a run that is measured anew."""
    for path in (folder / "runs").glob(f"{run_id}.invalid-*"):
        shutil.rmtree(path)


def arrivals_of(trace: Path) -> int:
    """Return how many arrivals a frozen trace holds."""
    return sum(bool(line.strip()) for line in read_bytes(trace).splitlines())


def part_of(folder: Path, run_id: str) -> Path:
    """Return an empty folder for an attempt."""
    part = folder / "runs" / f"{run_id}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def clear(folder: Path) -> None:
    """Drop what was in flight when an earlier bench ended."""
    for part in (folder / "runs").glob("*.part"):
        shutil.rmtree(part)


def faults_of(part: Path, run: Json, plan: Json, planned: int) -> list[str]:
    """Judge an attempt as the analysis will: return why the client spoilt it, if it did."""
    path = part / "requests.jsonl"
    _, records = decode_requests(read_bytes(path), str(path))
    lines = read_bytes(part / "samples.jsonl").splitlines()[1:]
    samples = [strict_json(line, f"{part}/samples.jsonl") for line in lines]
    facts = reduce_run(run, dict(plan), planned, records, samples, read_json(part / "config.json"))
    return list(facts.row["faults"])


def set_faulty_aside(folder: Path, runs: Iterable[Json], plan: Json) -> None:
    """Make room to measure again what the client spoilt to the last; that attempt stays."""
    for run in runs:
        own = folder / "runs" / run["run_id"]
        if not is_whole(own):
            continue
        planned = arrivals_of(trace_path(folder, run["trace"]))
        if faults_of(own, run, plan, planned):
            keep(own, run["run_id"], attempts_kept(folder, run["run_id"]) + 1)


def keep(part: Path, run_id: str, invalid: int | None) -> Path:
    """Give an attempt its lasting name: the run's, or that of a spoilt attempt."""
    name = run_id if invalid is None else f"{run_id}.invalid-{invalid}"
    return settle(part, part.with_name(name))


def settle(source: Path, target: Path) -> Path:
    """Rename a folder so that a power cut leaves one name or the other."""
    if target.exists():
        shutil.rmtree(target)
    source.rename(target)
    handle = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return target
