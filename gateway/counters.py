"""Loads each model's tokenizer, or says which configuration key names a file that is none."""

from collections.abc import Mapping

from gateway.config import ConfigError, Settings
from gateway.tokenizer import Counter

__all__ = ["load_counters"]


def load_counters(settings: Settings) -> Mapping[str, Counter]:
    """A counter per model; models with the same tokenizer share one.

    Raises:
        ConfigError: a file is no tokenizer.
    """
    by_file: dict[str, Counter] = {}
    for name, model in settings.document.model.items():
        if model.tokenizer in by_file:
            continue
        try:
            by_file[model.tokenizer] = Counter(settings.file(model.tokenizer))
        except ValueError as error:
            raise ConfigError(settings.path, f"model.{name}.tokenizer", str(error)) from error
    return {name: by_file[model.tokenizer] for name, model in settings.document.model.items()}
