"""Holds a sweep to the inputs with which it began.

At the first run the digests of everything that decides its outcome are written beside the plan. A
run that goes on later compares: what has changed is refused by name, since records from before and
after it could not be compared.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.files import file_digest, read_json, write_json
from loadgen.record import BenchError
from loadgen.run_folder import trace_path

__all__ = ["FILE", "hold_inputs", "planned_inputs"]

FILE = "inputs.json"
Json = Mapping[str, Any]


def planned_inputs(folder: Path, plan: Json) -> dict[str, str]:
    """Return the digests of plan, corpus and traces, each held to what the plan names.

    Raises:
        BenchError: a file is missing, or is not the one that the plan names.
    """
    found = {"plan.json": file_digest(folder / "plan.json")}
    named = {"corpus.jsonl": plan["corpus_sha256"]}
    for run in plan["runs"]:
        named[trace_path(folder, run["trace"]).name] = run["trace_sha256"]
    for name, sha256 in named.items():
        found[name] = file_digest(folder / name)
        if found[name] != sha256:
            raise BenchError(
                f"{folder / name}: changed since the plan was made (its sha256 is "
                f"{found[name][:16]}, the plan names {sha256[:16]})"
            )
    return found


def hold_inputs(folder: Path, found: Mapping[str, Any]) -> None:
    """Write the inputs at the first run; later, refuse what differs from them.

    Raises:
        BenchError: an input has changed since the sweep began; it is named.
    """
    path = folder / FILE
    if not path.is_file():
        write_json(path, dict(found))
        return
    began = read_json(path)
    for name in sorted({*began, *found}):
        if began.get(name) != found.get(name):
            raise BenchError(
                f"{folder}: {name} changed since the sweep began (was {_short(began.get(name))}, "
                f"is {_short(found.get(name))}); put it back, or plan into a new folder"
            )


def _short(value: Any) -> str:
    return "absent" if value is None else str(value)[:16]
