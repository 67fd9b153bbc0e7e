"""Starts simulated engines with a cell's arguments behind a gateway of their own.

Arguments that the simulated engine does not have (of real hardware, mostly) change nothing in it:
they stay unconfirmed in the records, which say that they are synthetic anyway.
"""

import argparse
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from loadgen.engine import flags
from loadgen.engine.textmodel import TextModel
from loadgen.files import file_digest
from loadgen.front import confirmed_at, versions_of
from loadgen.identity import engine_identity
from loadgen.launching import STRICT, Need, Standing, settings_of
from loadgen.record import BenchError
from loadgen.stack import stack
from loadgen.vllm_flags import command_line

__all__ = ["Simulated", "engine_words"]

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """`step_model` is a file of step costs; `faults` are the engine's, for tests of the bench."""

    __pydantic_config__: ClassVar[Any] = STRICT

    step_model: str | None = None
    faults: tuple[str, ...] = ()
    expected_start_s: float | None = None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="engine", add_help=False, exit_on_error=False)
    flags.add_arguments(parser)
    return parser


def engine_words(args: Json) -> list[str]:
    """Return the flags of those arguments that the simulated engine has.

    Raises:
        BenchError: one of them has a value it cannot take.
    """
    parser = _parser()
    known = {action.dest for action in parser._actions}  # noqa: SLF001 - argparse has no other way
    words = command_line({k: v for k, v in args.items() if k in known})
    try:
        flags.settings_from(parser.parse_args(words))
    except (ValueError, argparse.ArgumentError) as error:
        raise BenchError(f"the simulated engine cannot be started so: {error}") from error
    return words


class Simulated:
    """A launcher of simulated engines."""

    __slots__ = ("_identity", "_settings")

    def __init__(self, data: Json) -> None:
        self._settings = settings_of(SimulatedSettings, data)
        self._identity = dict(engine_identity(TextModel()))
        if self._settings.step_model is not None:
            self._identity["model_revision"] = file_digest(Path(self._settings.step_model))

    async def prepare(self, needs: Sequence[Need]) -> Mapping[str, str]:
        """Check every cell's arguments; returns the engine's identity, which must not change."""
        for need in needs:
            try:
                engine_words(need.args)
            except BenchError as error:
                raise BenchError(f"cell {need.cell_id}: {error}") from error
        return self._identity

    def _words(self, need: Need) -> list[str]:
        words = [*engine_words(need.args), "--dev-mode"]
        if self._settings.step_model is not None:
            words += ["--step-model", str(Path(self._settings.step_model).resolve())]
        for fault in self._settings.faults:
            words += ["--fault", fault]
        return words

    @asynccontextmanager
    async def standing(self, need: Need, folder: Path) -> AsyncIterator[Standing]:
        """Have engines and gateway while inside."""
        given = f"--engine-args={shlex.join(self._words(need))}"
        more = ["--engines", str(need.engines), *need.split_words(), given]
        async with stack(need.admission, need.topology, folder, need.time_scale, more) as endpoint:
            urls = endpoint.engine_urls
            logs = [folder / f"engine-{n}.log" for n in range(len(urls))]
            confirmed = await confirmed_at(urls, need, logs)
            yield Standing(endpoint, self._identity, confirmed, await versions_of(urls))
