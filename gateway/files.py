"""Reads a configuration file: decides whether it can be read and has the shape that it should.

Every fault is one ``ConfigError`` that names file, key and reason, and repeats no value:
it may be a secret in the wrong place.
"""

import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from pydantic import BaseModel, ValidationError

__all__ = ["ConfigError", "read_bytes", "read_text", "resolve", "validated"]

_M = TypeVar("_M", bound=BaseModel)


class ConfigError(Exception):
    """A configuration can't be used: ``FILE: KEY: REASON``."""

    def __init__(self, file: Path, key: str, reason: str) -> None:
        super().__init__(f"{file}: {key}: {reason}" if key else f"{file}: {reason}")
        self.file = file
        self.key = key
        self.reason = reason


def validated(shape: type[_M], text: str, path: Path) -> _M:
    """The TOML text of ``path`` as this shape.

    Raises:
        ConfigError: it is not TOML, or has another shape.
    """
    try:
        return shape.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(path, "", f"not TOML: {error}") from error
    except ValidationError as error:
        # The input is left out of the message: it may be a secret in the wrong place.
        first = error.errors(include_input=False, include_url=False)[0]
        raise ConfigError(
            path, _dotted(first["loc"]), _reason(first["type"], first["msg"])
        ) from error


def _dotted(location: tuple[int | str, ...]) -> str:
    # Tables of an array are counted from one, as a reader of the file counts them.
    parts = (f"[{p + 1}]" if isinstance(p, int) else f".{p}" for p in location if p != "[key]")
    return "".join(parts).removeprefix(".")


_REASONS = MappingProxyType(
    {"extra_forbidden": "unknown key", "missing": "is required and has no default"}
)


def _reason(kind: str, message: str) -> str:
    return _REASONS.get(kind, message[0].lower() + message[1:].replace("Input ", ""))


def read_text(path: Path, named_by: Path, key: str) -> str:
    """The text of ``path``, which ``key`` of ``named_by`` names; no key: it is that file.

    Raises:
        ConfigError: it can't be read.
    """
    try:
        return read_bytes(path, named_by, key).decode("utf-8")
    except UnicodeDecodeError as error:
        what = "can't be read: not UTF-8 text"
        raise ConfigError(named_by, key, f"{path} {what}" if key else what) from error


def read_bytes(path: Path, named_by: Path, key: str) -> bytes:
    """As ``read_text``, of a file that need not be text."""
    try:
        return path.read_bytes()
    except OSError as error:
        what = f"can't be read: {error.strerror}"
        raise ConfigError(named_by, key, f"{path} {what}" if key else what) from error


def resolve(config_path: Path, reference: str) -> Path:
    """Where a reference of the configuration leads, as ``package:NAME/FILE`` or as a path."""
    package, slash, inside = reference.removeprefix("package:").partition("/")
    if not (reference.startswith("package:") and slash):
        return config_path.parent / reference
    # find_spec locates a top-level package without running any of its code.
    spec = find_spec(package) if package.isidentifier() else None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0], inside) if places else Path(reference)
