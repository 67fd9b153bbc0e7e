"""Makes keys for callers: the key is shown once, only its digest is kept."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from gateway.auth import new_key

__all__ = ["Made", "make_key"]

KEY_BYTES = 24


@dataclass(frozen=True, slots=True)
class Made:
    """A new key, and its table for the keys file."""

    key_id: str
    key: str = field(repr=False)
    record: str

    def append_to(self, path: Path) -> None:
        """Write the table at the end of the keys file, which is made if it is not there.

        Raises:
            ValueError: the file holds a key of that id.
        """
        written = path.read_text() if path.exists() else ""
        if f"[key.{self.key_id}]" in written:
            raise ValueError(f"{path}: there is a key {self.key_id!r} already")
        # Never half a file: a gateway may read it at any moment.
        fresh = path.with_name(f"{path.name}.new")
        fresh.touch(mode=0o640)
        fresh.write_text(f"{written}\n{self.record}" if written else self.record)
        fresh.replace(path)


def make_key(key_id: str, service_class: str) -> Made:
    """A key of 24 random bytes; ValueError for an id that is none."""
    key, digest = new_key(key_id, secrets.token_bytes(KEY_BYTES))
    record = f'[key.{key_id}]\nsha256 = "{digest.hex()}"\nservice_class = "{service_class}"\n'
    return Made(key_id, key, record)
