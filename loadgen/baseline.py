"""Captures B0, the baseline's arguments, from a running engine; nothing in it is typed.

An engine in development mode tells its whole configuration. Where it does not, the record of its
start (its log) holds what was given; what was left at its default is then not known, and the file
says so.
"""

from pathlib import Path
from typing import Any

from loadgen.asking import configuration, served_model, version
from loadgen.confirm import effective_of, facts_of, logged
from loadgen.files import file_digest, write_json
from loadgen.record import BenchError, canonical, digest

__all__ = ["capture_baseline"]

# Where an engine listens and what it is called is no setting of a cell.
PLACE = frozenset({"host", "port", "model", "served_model_name", "kv_tokens", "api_key"})
UNCAPTURED = (
    "the engine does not tell its configuration (/server_info needs VLLM_SERVER_DEV_MODE=1, on "
    "loopback test capacity only); give its start-up log with --start-log"
)


def _from_log(path: Path) -> dict[str, Any]:
    found = logged(path.read_text(errors="replace"))
    args = {k: v for k, v in found.items() if k not in PLACE}
    if not args:
        raise BenchError(f"{path}: shows no arguments ('non-default args: ...')")
    told = "launch record: defaults are not in it"
    facts = {"kv_tokens": found["kv_tokens"]} if "kv_tokens" in found else {}
    return {
        "args": args,
        "captured_from": told,
        "complete": False,
        "launch_record_sha256": file_digest(path),
        "facts": facts,
    }


async def capture_baseline(
    url: str, out: Path, start_log: Path | None, approved_by: str | None
) -> dict[str, Any]:
    """Write what an engine runs with as a baseline; returns it.

    Args:
        url: of the running engine.
        out: the file that a sweep file names as `captured`.
        start_log: its start-up log, used where the engine does not tell.
        approved_by: who stands for its being the baseline.

    Raises:
        BenchError: neither the engine nor a log tells.
    """
    config = await configuration(url)
    if config is not None:
        own: dict[str, Any] = {
            "args": effective_of(config, nulls=True),
            "captured_from": "the engine's own configuration (/server_info)",
            "complete": True,
            "configuration_sha256": digest(canonical(config)),
            "facts": facts_of(config),
        }
    elif start_log is not None:
        own = _from_log(start_log)
    else:
        raise BenchError(f"{url}: {UNCAPTURED}")
    engine = {"model": await served_model(url), "version": await version(url)}
    approval = {} if approved_by is None else {"approved_by": approved_by}
    found = {"kind": "baseline", "engine": engine, **approval, **own}
    write_json(out, found)
    return found
