"""Writes and reads tar archives of evidence: the same contents give the same bytes."""

import io
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from loadgen.record import BenchError

__all__ = ["RECORDS", "entries", "tarred"]

RECORDS = "records.tar.xz"  # of packed evidence: the runs that prove it
LARGEST_BYTES = 1 << 30


def tarred(contents: Mapping[str, bytes]) -> bytes:
    """Return an archive of these files by name, not compressed."""
    raw = io.BytesIO()
    # Whose the files are and when they were written is no evidence, and would change the bytes.
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(contents):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(contents[name]), 0o644
            archive.addfile(entry, io.BytesIO(contents[name]))
    return raw.getvalue()


def entries(path: Path, mode: Literal["r:gz", "r:xz"], what: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of each file of a compressed archive.

    Args:
        path: of the archive.
        mode: how it must be compressed.
        what: it should be, for errors.

    Raises:
        BenchError: damaged, larger than 1 GiB in all, or it holds something else than files.
    """
    left = LARGEST_BYTES
    try:
        with tarfile.open(path, mode=mode) as archive:
            for entry in archive:
                left -= entry.size
                inside = archive.extractfile(entry) if entry.isfile() else None
                if inside is None or left < 0:
                    raise BenchError(f"{path}: {entry.name}: not a file of {what}")
                yield entry.name, inside.read()
    except (OSError, tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise BenchError(f"{path}: not {what} ({error})") from error
