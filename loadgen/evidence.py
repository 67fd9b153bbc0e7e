"""Packs a results folder small enough to be kept beside the code, and takes it apart again.

What is read stays as it is: plan, analysis, decision. What proves it, the runs, the starts and the
traces with their corpus, becomes one `records.tar.xz`; the report is compressed beside it. The same
folder gives the same bytes with the same compression library.
"""

import lzma
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from loadgen.archive import RECORDS, entries, tarred
from loadgen.files import read_bytes, write_bytes
from loadgen.record import BenchError

__all__ = ["RECORDS", "pack", "unpack", "unpacked"]

REPORT = "report.html"
MOST_REPORT_BYTES = 64 * 2**20
MUST = ("plan.json", "analysis.json", "decision.json")
MAY = ("inputs.json", "topology-analysis.json", "arms-analysis.json", "expected-analysis.json")
PROOF = ("corpus.*", "trace-*", "runs/**/*", "starts/**/*")
LEFT_OUT = "keys.toml"


def _proof(folder: Path) -> list[Path]:
    found = {path for pattern in PROOF for path in folder.glob(pattern)}
    kept = (path for path in found if path.is_file() and path.name != LEFT_OUT)
    return sorted(path for path in kept if not _cut_off(path.relative_to(folder)))


def _cut_off(path: Path) -> bool:
    """Say whether a run that nobody finished left this."""
    return any(part.endswith(".part") for part in path.parts)


def _archive(folder: Path) -> bytes:
    files = _proof(folder)
    raw = tarred({path.relative_to(folder).as_posix(): read_bytes(path) for path in files})
    return lzma.compress(raw, preset=9)


def pack(folder: Path, out: Path) -> int:
    """Write a decided folder's evidence into another one; returns the bytes of it.

    Args:
        folder: with plan, runs, analysis and decision.
        out: where it goes; what else lies there stays.

    Raises:
        BenchError: a file is missing.
    """
    there = [name for name in MAY if (folder / name).is_file()]
    made = {name: read_bytes(folder / name) for name in (*MUST, *there)}
    made[RECORDS] = _archive(folder)
    if (folder / REPORT).is_file():
        made[f"{REPORT}.xz"] = lzma.compress(read_bytes(folder / REPORT), preset=9)
    for name, data in made.items():
        write_bytes(out / name, data)
    return sum(map(len, made.values()))


def _safe(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _extract(path: Path, out: Path) -> None:
    for name, data in entries(path, "r:xz", "packed evidence"):
        if not _safe(name):
            raise BenchError(f"{path}: {name}: not a file of packed evidence")
        write_bytes(out / name, data)


def _report(path: Path) -> bytes:
    reader = lzma.LZMADecompressor()
    try:
        data = reader.decompress(read_bytes(path), MOST_REPORT_BYTES)
    except lzma.LZMAError as error:
        raise BenchError(f"{path}: damaged ({error})") from error
    if not reader.eof:
        raise BenchError(f"{path}: is cut off, or no report")
    return data


def unpack(folder: Path, out: Path) -> None:
    """Make a results folder of packed evidence.

    Raises:
        BenchError: `out` is there, or the records are damaged, or not ours; the file is named.
    """
    if out.exists():
        raise BenchError(f"{out}: is there already")
    _extract(folder / RECORDS, out)
    if (folder / f"{REPORT}.xz").is_file():
        write_bytes(out / REPORT, _report(folder / f"{REPORT}.xz"))
    for name in (*MUST, *MAY):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """Yield a results folder: the one given, or where it is packed evidence, its contents.

    Raises:
        BenchError: as `unpack`.
    """
    if not (folder / RECORDS).is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="sluicegate-") as made:
        # The name stands in the commands that a report prints.
        out = Path(made) / folder.resolve().name
        unpack(folder, out)
        yield out
