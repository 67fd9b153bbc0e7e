"""Reads and writes the files that join the verbs, whole or not at all."""

import os
from pathlib import Path
from typing import Any

from loadgen.record import BenchError, canonical, digest, strict_json

__all__ = ["file_digest", "read_bytes", "read_json", "tree_digest", "write_bytes", "write_json"]


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        BenchError: missing or unreadable; the message names the file.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise BenchError(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        BenchError: missing, not JSON, or not an object.
    """
    value = strict_json(read_bytes(path), str(path))
    if not isinstance(value, dict):
        raise BenchError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def write_bytes(path: Path, data: bytes) -> str:
    """Write the file whole (a crash leaves the old one) and return its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)
    return digest(data)


def write_json(path: Path, value: Any) -> str:
    """Write canonical JSON and return its SHA-256."""
    return write_bytes(path, canonical(value))


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    return digest(read_bytes(path))


def tree_digest(root: Path, patterns: tuple[str, ...]) -> str:
    """Return one SHA-256 over the names and digests of the matching files below a folder."""
    found = sorted(p for pattern in patterns for p in root.rglob(pattern) if p.is_file())
    return digest(canonical([[str(p.relative_to(root)), file_digest(p)] for p in found]))
