"""Loads each model's tokenizer, or says which configuration key names a file that is none."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.config import ConfigError, Settings
from gateway.tokenizer import Counter

__all__ = ["Counters", "load_counters"]

Stamp = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Counters:
    """A counter per model, and per file as it was when it was read."""

    by_model: Mapping[str, Counter]
    by_file: Mapping[Stamp, Counter]


def load_counters(settings: Settings, before: Counters | None = None) -> Counters:
    """The counters of all models; a file that is as it was ``before`` is not read again.

    Models with the same tokenizer share one: a large one takes seconds and a hundred MB.

    Raises:
        ConfigError: a file is no tokenizer.
    """
    known = dict(before.by_file) if before is not None else {}
    by_file: dict[Stamp, Counter] = {}
    by_model: dict[str, Counter] = {}
    for name, model in settings.document.model.items():
        path = settings.file(model.tokenizer)
        key = f"model.{name}.tokenizer"
        try:
            stamp = _stamp(path)
            counter = by_file.get(stamp) or known.get(stamp) or Counter(path)
        except (ValueError, OSError) as error:
            raise ConfigError(settings.path, key, str(error)) from error
        by_file[stamp] = by_model[name] = counter
    return Counters(by_model, by_file)


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return str(path), found.st_mtime_ns, found.st_size, found.st_ino
