"""A started engine per test module or per test, and the one text model of all tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadgen.engine.launch import EngineProcess, start_engine
from loadgen.engine.textmodel import TextModel

Start = Callable[..., EngineProcess]


@pytest.fixture(scope="session")
def text() -> TextModel:
    return TextModel()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start engines with given flags; all are gone after the test."""
    with ExitStack() as stack:

        def started(*flags: str) -> EngineProcess:
            return stack.enter_context(start_engine(flags, tmp_path / "engine.log"))

        yield started


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One fast engine with the state page open, for tests that change nothing."""
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    flags = ("--time-scale", "20", "--sim-state", "--scheduling-policy", "priority")
    with start_engine(flags, log) as engine:
        yield engine
