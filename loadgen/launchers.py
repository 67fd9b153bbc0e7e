"""Chooses the launcher that a plan names."""

from collections.abc import Callable, Mapping
from typing import Any

from loadgen.launch_command import Command
from loadgen.launch_external import External
from loadgen.launch_simulated import Simulated
from loadgen.launch_vllm import Vllm
from loadgen.launching import Launcher
from loadgen.record import BenchError

__all__ = ["launcher_of"]

KINDS: Mapping[str, Callable[[Mapping[str, Any]], Launcher]] = {
    "simulated": Simulated,
    "vllm": Vllm,
    "command": Command,
    "external": External,
}


def launcher_of(data: Mapping[str, Any]) -> Launcher:
    """Return the launcher of a plan's `launcher`.

    Raises:
        BenchError: the kind is unknown, or a setting is wrong; the message names it.
    """
    kind = str(data.get("kind"))
    if kind not in KINDS:
        raise BenchError(f"plan.json: launcher.kind: {kind!r} is not one of {', '.join(KINDS)}")
    return KINDS[kind](data)
