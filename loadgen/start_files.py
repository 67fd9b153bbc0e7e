"""Holds what a start of the servers left, its configuration and logs, to digests taken at its end.

`starts/<start>/digests.json` names them; the analysis names that file among its inputs. A start
that was cut off, or was written before digests were kept, has none: it is said not to be covered.
"""

from collections.abc import Mapping
from pathlib import Path

from loadgen.files import file_digest, read_json, write_json
from loadgen.record import BenchError

__all__ = ["FILE", "held_starts", "seal_start", "uncovered_starts"]

FILE = "digests.json"
# Keys are nobody's evidence, and a folder that is handed on need not hold them.
LEFT_OUT = frozenset({FILE, "keys.toml"})


def _files(folder: Path) -> dict[str, str]:
    found = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in LEFT_OUT)
    return {str(p.relative_to(folder)): file_digest(p) for p in found}


def seal_start(folder: Path) -> None:
    """Write the digests of what a start left, once its servers are gone."""
    if folder.is_dir():
        write_json(folder / FILE, {"kind": "digests", "files": _files(folder)})


def _check(folder: Path) -> None:
    named: Mapping[str, str] = read_json(folder / FILE)["files"]
    found = _files(folder)
    for name in sorted({*named, *found}):
        if name not in found:
            raise BenchError(f"{folder / name}: missing, but {FILE} names it")
        if name not in named:
            raise BenchError(f"{folder / name}: not there when the start ended: {FILE} lacks it")
        if named[name] != found[name]:
            raise BenchError(
                f"{folder / name}: its sha256 is {found[name][:16]}, but {named[name][:16]} "
                "is named for it"
            )


def _starts(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "starts").glob("*") if path.is_dir())


def held_starts(folder: Path) -> dict[str, str]:
    """Return the digest of each sealed start's list, having held its files to it.

    Raises:
        BenchError: a file of a start is missing, new or altered; it is named.
    """
    sealed = [path for path in _starts(folder) if (path / FILE).is_file()]
    for path in sealed:
        _check(path)
    return {path.name: file_digest(path / FILE) for path in sealed}


def uncovered_starts(folder: Path) -> list[str]:
    """Return the starts whose files no digest holds."""
    return [path.name for path in _starts(folder) if not (path / FILE).is_file()]
