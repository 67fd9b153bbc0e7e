"""One simulated engine that knows few words, for the modules that hold records against it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.manifest import Record
from loadgen.engine.launch import EngineProcess
from tests.gateway.records import record_of_started, start, write_words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where its tokenizer is."""
    made = tmp_path_factory.mktemp("engine")
    write_words(made)
    return made


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[EngineProcess]:
    """The engine, started for one module."""
    with start(folder) as running:
        yield running


@pytest.fixture(scope="module")
def record(folder: Path) -> Record:
    """The record that it matches."""
    return record_of_started(folder)
