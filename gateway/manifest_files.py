"""Reads and writes what records are made of: TOML or JSON input, sealed files, the bench's files.

Each fault names the file. A sealed file is written once: it is never overwritten by another record.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from gateway.launch_record import LaunchRecord, launch_record
from gateway.manifest import Decision, Record, decision_of, document, opened
from gateway.manifest_fields import RecordError, Scalar, flat

__all__ = [
    "fields_of",
    "read_decision",
    "read_launch",
    "read_sealed",
    "sealed_beside",
    "with_baseline",
    "write_sealed",
]

_CAPTURED = MappingProxyType(
    {"revision": "model.revision", "tokenizer_revision": "model.tokenizer_revision"}
)
_ENGINE = MappingProxyType({"version": "image.version", "model": "model.id"})


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: can't be read: {error.strerror}") from error


def _json(content: bytes) -> Any:
    """A value that reads the same to everybody: a key that stands twice is refused.

    Raises:
        ValueError: it is no such JSON.
    """
    orjson.loads(content)  # stricter than what follows, and bounded in depth
    return json.loads(content, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} stands there twice")
    return found


def _table(path: Path) -> dict[str, Any]:
    content = _bytes(path)
    try:
        toml = path.suffix == ".toml"
        found = tomllib.loads(content.decode()) if toml else _json(content)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise RecordError(f"{path}: not {kind}: {error}") from error
    if not isinstance(found, dict):
        raise RecordError(f"{path}: holds no table of fields")
    return found


def fields_of(path: Path) -> dict[str, Scalar]:
    """The fields that an input file writes down, whole or not.

    Raises:
        RecordError: it can't be read, or is a sealed record already.
    """
    found = _table(path)
    if "digest" in found and "record" in found:
        raise RecordError(f"{path}: is sealed already; an input holds the fields alone")
    try:
        return flat(found)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error


def with_baseline(fields: Mapping[str, Scalar], path: Path) -> dict[str, Scalar]:
    """Fields, completed by what the bench captured of a running baseline.

    Raises:
        RecordError: it is none, or says otherwise than the fields.
    """
    found = _table(path)
    args, engine = found.get("args"), found.get("engine") or {}
    if found.get("kind") != "baseline" or not isinstance(args, dict):
        raise RecordError(f"{path}: not a captured baseline (sluicegate bench capture)")
    captured = {_CAPTURED.get(name, f"args.{name}"): value for name, value in args.items()}
    captured |= {field: engine[key] for key, field in _ENGINE.items() if engine.get(key)}
    for name in sorted(captured.keys() & fields.keys()):
        if captured[name] != fields[name]:
            raise RecordError(f"{path}: {name} is {captured[name]}, the input says {fields[name]}")
    return {**captured, **fields}


def read_sealed(path: Path) -> Record:
    """A sealed record; raises ``RecordError``."""
    try:
        found = _json(_bytes(path))
    except ValueError as error:
        raise RecordError(f"{path}: not JSON: {error}") from error
    try:
        return opened(found)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error


def sealed_beside(folder: Path, digest: str) -> Record | None:
    """The sealed record of a folder whose digest begins so; files that are none are passed by."""
    for path in sorted(one for one in folder.glob("*.json") if one.is_file()):
        content = _bytes(path)
        if digest.encode() in content:
            try:
                record = read_sealed(path)
            except RecordError:
                continue
            if record.digest.startswith(digest):
                return record
    return None


def write_sealed(record: Record, path: Path) -> None:
    """Write a sealed record.

    Raises:
        RecordError: another one is there, or it can't be written.
    """
    if path.exists():
        if read_sealed(path).digest == record.digest:
            return
        raise RecordError(f"{path}: holds another record; name another file with --out")
    content = orjson.dumps(document(record), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise RecordError(f"{path}: can't be written: {error.strerror}") from error


def read_decision(path: Path, *, candidate: bool) -> Decision:
    """A decision of the bench as evidence; raises ``RecordError``."""
    try:
        return decision_of(_bytes(path), candidate=candidate)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error


def read_launch(path: Path) -> LaunchRecord:
    """A launch record; raises ``RecordError``."""
    content = _bytes(path)
    try:
        return launch_record(content)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error
