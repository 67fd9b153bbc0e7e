"""Says what a launcher is: it makes the servers of a cell stand, and says what they are.

A plan's `[launcher]` names one kind; its other keys are that kind's own settings, read strictly.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from loadgen.confirm import Confirmed
from loadgen.record import BenchError
from loadgen.stack import Endpoint

__all__ = ["STRICT", "Launcher", "Need", "Standing", "need_of", "settings_of", "start_name"]

Json = Mapping[str, Any]
STRICT = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Need:
    """What one start is asked for: the cell, its complete arguments, and what stands before it.

    `critical` are the arguments in which the plan's cells differ. Recorded seconds are real
    seconds times `time_scale`.
    """

    name: str
    cell_id: str
    args: Json
    critical: tuple[str, ...]
    admission: str = "off"
    topology: str = "shared"
    engines: int = 1
    time_scale: float = 1.0
    short_engines: int | None = None

    def split_words(self) -> list[str]:
        """Return the gateway's flags for a split that is not all but one."""
        return [] if self.short_engines is None else ["--short-engines", str(self.short_engines)]


@dataclass(frozen=True, slots=True)
class Standing:
    """Servers that stand. `identity` holds image, model and tokenizer; `facts` what else is known.

    A `confirmed` with differences means that the cell is not what the plan says.
    """

    endpoint: Endpoint
    identity: Mapping[str, str]
    confirmed: Confirmed
    facts: Json = field(default_factory=dict)


class Launcher(Protocol):
    """Starts and stops the servers of one cell after another."""

    async def prepare(self, needs: Sequence[Need]) -> Mapping[str, str]:
        """Refuse what cannot be started, before anything is; returns digests of what is used."""

    def standing(self, need: Need, folder: Path) -> AbstractAsyncContextManager[Standing]:
        """Have the servers of a cell while inside; logs and configuration go into the folder."""


def start_name(run: Json) -> str:
    """Return the name of the engine start that a run belongs to."""
    unit = run.get("arm") or run.get("topology") or run["cell_id"]
    number = run.get("start")
    return str(run["run_id"]) if number is None else f"{number:02}-r{run['repeat']}-{unit}"


def _short_engines(plan: Json, run: Json) -> int | None:
    """Return how many engines the split leaves to the other classes than the largest.

    Raises:
        BenchError: more than two pools, which the gateway's quick start cannot make.
    """
    pools = run.get("pools", ())
    if len(pools) > 2:
        raise BenchError(f"{run['run_id']}: {len(pools)} pools, but only two can be started")
    largest = plan.get("class_order", ["long"])[-1]
    others = [pool["engines"] for pool in pools if largest not in pool["classes"]]
    return int(others[0]) if len(others) == 1 and len(pools) == 2 else None


def _arm_args(run: Json, args: Json) -> Json:
    """Policy arms stand on how the engine orders what waits: none is left to a default."""
    policy = {"scheduling_policy": args.get("scheduling_policy", "fcfs")}
    return policy if "arm" in run else {}


def need_of(plan: Json, run: Json, time_scale: float) -> Need:
    """Return what a run needs to stand."""
    cells = plan["cells"]
    cell = next(c for c in cells if c["cell_id"] == run["cell_id"])
    topology = str(run.get("topology", "shared"))
    isolated = topology.startswith(("isolated", "alone"))
    changed = {name for c in cells for name in c.get("changed", {})}
    own = {**_arm_args(run, cell["args"]), **run.get("engine_args", {})}
    return Need(
        name=start_name(run),
        cell_id=run["cell_id"],
        args={**cell["args"], **own},
        critical=tuple(sorted({*changed, *own})),
        admission=run.get("admission", plan.get("gateway", {}).get("admission", "off")),
        topology="isolated" if isolated else "shared",
        engines=int(run.get("engines", 1)),
        time_scale=time_scale,
        short_engines=_short_engines(plan, run) if isolated else None,
    )


def settings_of(kind: type[T], data: Json) -> T:
    """Read a launcher's settings.

    Raises:
        BenchError: an unknown key or a wrong value; the message names it.
    """
    try:
        # By way of JSON, where a list may become a tuple and nothing else is converted.
        own = {k: v for k, v in data.items() if k != "kind"}
        return TypeAdapter(kind).validate_json(orjson.dumps(own))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        said = "unknown key" if first["type"] == "unexpected_keyword_argument" else first["msg"]
        raise BenchError(f"plan.json: launcher.{key}: {said}") from error
