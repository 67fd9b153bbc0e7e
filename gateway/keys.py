"""Makes, lists and revokes callers' keys in the keys file.

A key is shown once, only its digest is kept. A change is whole or none: it is written beside the
file, read back, and takes its place in one step, with the file's mode and owner; a gateway may
read it at any moment. Comments and the order of tables stay as they are.
"""

import os
import re
import secrets
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.auth import new_key
from gateway.files import read_text, validated
from gateway.schema import Document, KeyFile

__all__ = [
    "KeyRow",
    "Made",
    "known_service_class",
    "list_keys",
    "make_key",
    "revoke_key",
]

KEY_BYTES = 24
MODE = 0o640


@dataclass(frozen=True, slots=True)
class Made:
    """A new key, and its table for the keys file."""

    key_id: str
    key: str = field(repr=False)
    record: str

    def append_to(self, path: Path) -> None:
        """Write the table at the end of the keys file, which is made if it is not there.

        Raises:
            ValueError: the file holds a key of that id, or is no keys file.
        """
        with _changing(path) as (written, write):
            if self.key_id in _tables(path, written):
                raise ValueError(f"{path}: there is a key {self.key_id!r} already")
            write(f"{written.rstrip()}\n\n{self.record}" if written.strip() else self.record)


@dataclass(frozen=True, slots=True)
class KeyRow:
    """What a key grants, without its digest."""

    id: str
    service_class: str
    models: tuple[str, ...] | None
    surfaces: tuple[str, ...] | None
    max_in_flight: int | None


def make_key(key_id: str, service_class: str) -> Made:
    """A key of 24 random bytes; ValueError for an id that is none."""
    key, digest = new_key(key_id, secrets.token_bytes(KEY_BYTES))
    record = f'[key.{key_id}]\nsha256 = "{digest.hex()}"\nservice_class = "{service_class}"\n'
    return Made(key_id, key, record)


def known_service_class(config: Path, service_class: str) -> Path:
    """Check that a configuration has the class; returns the keys file it names.

    Raises:
        ConfigError: the configuration can't be used.
        ValueError: it has no such class.
    """
    document = validated(Document, read_text(config, config, ""), config)
    if service_class not in document.service:
        known = ", ".join(document.service)
        raise ValueError(f"--service-class {service_class}: {config} has only {known}")
    return config.parent / document.auth.keys_file


def list_keys(path: Path) -> list[KeyRow]:
    """The keys of a keys file, in its order.

    Raises:
        ConfigError: the file can't be used.
    """
    return [
        KeyRow(key_id, key.service_class, key.models, key.surfaces, key.max_in_flight)
        for key_id, key in validated(KeyFile, read_text(path, path, ""), path).key.items()
    ]


def revoke_key(path: Path, key_id: str) -> None:
    """Take the key's table out of the keys file; the rest stays to the letter.

    Raises:
        ValueError: there is no such key, or its table can't be told from the rest.
    """
    with _changing(path) as (written, write):
        before = _tables(path, written)
        if key_id not in before:
            raise ValueError(f"{path}: there is no key {key_id!r}")
        left = _without(written, key_id)
        if _tables(path, left) != {name: t for name, t in before.items() if name != key_id}:
            raise ValueError(f"{path}: can't find the table of {key_id!r} alone: remove it by hand")
        write(left)


def _tables(path: Path, text: str) -> dict[str, Any]:
    try:
        keys = tomllib.loads(text).get("key", {})
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not TOML: {error}") from error
    return keys if isinstance(keys, dict) else {}


_HEADER = re.compile(r"\s*\[")


def _without(text: str, key_id: str) -> str:
    """The text without a table: from its header to its last key.

    What stands between that and the next header, comments and blank lines, is likely about the
    next table.
    """
    own = re.compile(rf"""\s*\[\s*key\s*\.\s*["']?{re.escape(key_id)}["']?\s*\]""")
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if own.match(line)), len(lines))
    end = start + 1
    for at in range(start + 1, len(lines)):
        if _HEADER.match(lines[at]):
            break
        if lines[at].strip() and not lines[at].lstrip().startswith("#"):
            end = at + 1
    return "".join(lines[:start] + lines[end:])


@contextmanager
def _changing(named: Path) -> Iterator[tuple[str, Any]]:
    """The text of a file, and how to put another in its place; one change at a time."""
    path = named.resolve()
    fresh = path.with_name(f"{path.name}.new")
    try:
        opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    except FileExistsError as error:
        raise ValueError(
            f"{fresh}: another change is under way; if none is, remove that file"
        ) from error
    with os.fdopen(opened, "w", encoding="utf-8") as file:
        try:
            _as_before(path, opened)
            yield (path.read_text(encoding="utf-8") if path.exists() else ""), file.write
            file.flush()
            os.fsync(opened)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)


def _as_before(path: Path, opened: int) -> None:
    """Give the new file the mode and the owner of the old: whoever could read it still can."""
    if not path.exists():
        return
    old, new = path.stat(), os.fstat(opened)
    os.fchmod(opened, old.st_mode & 0o7777)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.fchown(opened, old.st_uid, old.st_gid)
