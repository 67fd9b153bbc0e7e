"""Reads a configuration file: decides whether it can be read and has the shape that it should.

Each fault names file, key and reason, and repeats no value: it may be a secret in the wrong
place. What can be judged apart is: one ``ConfigError`` holds every fault that was found.
"""

import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from gateway.command import CommandError

__all__ = [
    "PACKAGE",
    "ConfigError",
    "Findings",
    "Found",
    "raise_all",
    "read_bytes",
    "read_text",
    "resolve",
    "validated",
]

PACKAGE = "package:"
_M = TypeVar("_M", bound=BaseModel)


class Found(NamedTuple):
    """One fault; ``key`` is empty where the whole file is at fault."""

    file: Path
    key: str
    reason: str

    def __str__(self) -> str:
        at = f"{self.file}: {self.key}" if self.key else f"{self.file}"
        return f"{at}: {self.reason}"


class ConfigError(CommandError):
    """A configuration can't be used: a line ``FILE: KEY: REASON`` for each of its ``faults``.

    ``file``, ``key`` and ``reason`` are the first one's; ``more`` are the others.
    """

    exit_code = 2

    def __init__(self, file: Path, key: str, reason: str, more: Iterable[Found] = ()) -> None:
        self.faults = (Found(file, key, reason), *more)
        super().__init__("\n".join(self.lines()))
        self.file = file
        self.key = key
        self.reason = reason

    def lines(self) -> list[str]:
        """Every fault."""
        return list(map(str, self.faults))


class Findings:
    """Gathers the faults of steps that do not depend on each other."""

    def __init__(self) -> None:
        self._found: list[Found] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Keep what this step finds; it ends at its first ``ConfigError``."""
        try:
            yield
        except ConfigError as error:
            self._found += error.faults

    def settle(self) -> None:
        """Go on only if nothing was found; what the steps made is whole then.

        Raises:
            ConfigError: all that was found, each fault once.
        """
        found = list(dict.fromkeys(self._found))
        if found:
            raise ConfigError(*found[0], more=found[1:])


def raise_all(path: Path, faults: Iterable[tuple[str, str]]) -> None:
    """Nothing where there is no fault, (key, reason), of the file at ``path``.

    Raises:
        ConfigError: all of them.
    """
    found = [Found(path, key, reason) for key, reason in faults]
    if found:
        raise ConfigError(*found[0], more=found[1:])


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
        told = error.errors(include_input=False, include_url=False)
        first, *more = (
            Found(path, _dotted(one["loc"]), _reason(one["type"], one["msg"])) for one in told
        )
        raise ConfigError(*first, more=more) from error


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
    package, slash, inside = reference.removeprefix(PACKAGE).partition("/")
    if not (reference.startswith(PACKAGE) and slash):
        return config_path.parent / reference
    # find_spec locates a top-level package without running any of its code.
    spec = find_spec(package) if package.isidentifier() else None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0], inside) if places else Path(reference)
