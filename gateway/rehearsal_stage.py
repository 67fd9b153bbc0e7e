"""Sets a rehearsal up on this machine: engines for two pools, a gateway before them, many callers.

The engines' starter is handed in, as for ``up``. The gateway keeps its state, like one in
production, and is deaf to Ctrl-C in the terminal: it must outlive whoever watches, to put routes
back.
"""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gateway.admin_client import Admin
from gateway.keys import make_key
from gateway.quickstart import EngineFacts, Wish, write_configuration
from gateway.up import Engine, UpError, running_gateway, stopped

__all__ = ["Bundle", "Load", "Stage", "staged"]

CALLERS = 200  # so many that a small weight has some of them
_STATE = '\n[state]\ndirectory = "state"\n'

Start = Callable[[Path], list[Engine]]


class Load(Protocol):
    """The bundled load of one rehearsal, frozen and not yet sent."""

    @property
    def told(self) -> Mapping[str, Any]:
        """What the record says of it."""

    def start(self, url: str, model: str, keys: Sequence[str]) -> None:
        """Begin to send."""

    def stop(self) -> Mapping[str, Any]:
        """End it; how many requests ended how, as callers saw it."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What belongs to the bench: the starter of simulated engines, and the load.

    ``load`` takes a folder, arrivals a second, seconds and the time scale.
    """

    simulated: Callable[[argparse.Namespace], tuple[Start, EngineFacts]]
    load: Callable[[Path, float, float, float], Load]


@dataclass(frozen=True, slots=True)
class Stage:
    """A running gateway to rehearse on, and how to call it."""

    admin: Admin
    url: str
    keys: Sequence[str]
    engines: Mapping[str, Sequence[str]]


@contextlib.contextmanager
def staged(
    folder: Path, starts: tuple[Start, Start], facts: EngineFacts, time_scale: float
) -> Iterator[Stage]:
    """A gateway with a pool of each kind of engine; everything is gone in the end.

    Args:
        folder: takes configuration, state and logs.
        starts: of the baseline's engines, and of the candidate's.
        facts: of the engines.
        time_scale: of the engines' clock.

    Raises:
        UpError: something did not start.
    """
    with contextlib.ExitStack() as stack:
        names = ("baseline", "candidate")
        baseline, candidate = (
            stack.enter_context(stopped(start(folder / name)))
            for start, name in zip(starts, names, strict=True)
        )
        urls = [engine.url for engine in (*baseline, *candidate)]
        wish = Wish(time_scale=time_scale, candidates=len(candidate))
        try:
            started = write_configuration(folder, urls, facts, wish)
        except ValueError as error:
            raise UpError(str(error)) from error
        keys = _callers(folder / "keys.toml")
        with started.config.open("a") as file:
            file.write(_STATE)
        running = running_gateway(started, folder / "gateway.log", apart=True)
        _, ready = stack.enter_context(running)
        admin = Admin(ready.admin_url, started.admin_token)
        split = len(baseline)
        yield Stage(admin, ready.url, keys, {"baseline": urls[:split], "candidate": urls[split:]})


def _callers(file: Path) -> list[str]:
    """More callers than one, so that a canary gets its part of them."""
    made = [make_key(f"caller-{number}", "interactive") for number in range(CALLERS)]
    with file.open("a") as keys:
        keys.write("\n" + "\n".join(one.record for one in made))
    return [one.key for one in made]
