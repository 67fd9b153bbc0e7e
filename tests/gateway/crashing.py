"""Kills processes while they write route tables, and looks at what they left behind.

``python -m tests.gateway.crashing [ROUNDS]`` prints how many crash points there were. A child
of this process commits a few moves and is killed with SIGKILL before its k-th SQL statement, for
every k there is, and at moments in between. What it was told to be committed must be there when
the state is opened again; of the move it was at, all or nothing.
"""

import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway import state as state_module
from gateway.audit import Note
from gateway.moves import PoolFacts, canary, configured, drain, flip, promote, rollback
from gateway.route_record import kept, read_back
from gateway.routing import Route, RouteTable
from gateway.state import State
from gateway.trail import Draft, Trail

POOLS = {name: PoolFacts() for name in ("a", "b", "c")}
SHORT = ("m", "short")
ROUTES = {SHORT: Route("m", "short", "a"), ("m", "long"): Route("m", "long", "a")}
ROUNDS = 100


def tables() -> list[RouteTable]:
    """The tables of the moves, in order."""
    first = configured(None, RouteTable(0, bytes(32), ROUTES, {}), POOLS)
    second = flip(first, ROUTES, "b", POOLS)
    third = canary(second, [SHORT], "c", 0.1, POOLS)
    fourth = promote(third, [SHORT], POOLS)
    fifth = drain(fourth, ["b"], POOLS)
    return [first, second, third, fourth, fifth, rollback(fifth, first.routes, POOLS)]


def drafts() -> Iterator[Draft]:
    """What is committed of each, with a record beside it."""
    for table in tables():
        note = Note("ben", "move", None, table.revision - 1, table.revision, "a crash test")
        record = ("watch", "m/short", {"revision": table.revision})
        yield Draft(table, note, "digest", [record])


def write(folder: Path, told: Callable[[int], None], before: Callable[[str], None]) -> None:
    """Commit all moves; ``told`` gets each revision once it is committed."""
    open_file = state_module._connect

    def traced(uri: str) -> sqlite3.Connection:
        connection = open_file(uri)
        connection.set_trace_callback(before)
        return connection

    state_module._connect = traced
    trail = Trail(State(folder), lambda: datetime.now(UTC))
    for draft in drafts():
        trail.commit_now(draft)
        told(draft.table.revision)
    trail.state.close()


def child(folder: Path, before: Callable[[str], None], limit_s: float | None = None) -> int | None:
    """Run ``write`` in a child; the last revision it was told of, or None if it was not killed."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        write(folder, lambda revision: os.write(write_end, bytes([revision])) and None, before)
        os._exit(0)
    os.close(write_end)
    if limit_s is not None:
        time.sleep(limit_s)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(read_end, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return told[-1] if told else 0
    assert os.waitstatus_to_exitcode(status) == 0
    return None


def check(folder: Path, told: int) -> int:
    """What is there is the last table told of, or the next, whole; returns which."""
    state = State(folder)
    try:
        assert state.broken_at() is None
        revisions = state.revisions(100)
        found = revisions[0].revision if revisions else 0
        assert found in {told, told + 1}, (found, told)
        assert [row.revision for row in revisions] == list(range(found, 0, -1))
        assert [entry.to_revision for entry in state.audit(100)[0]] == list(range(found, 0, -1))
        if found:
            wanted = tables()[found - 1]
            assert revisions[0].table == json.loads(json.dumps(kept(wanted)))
            back = read_back(revisions[0].table, found, bytes(32), {})
            assert back == replace(wanted, revision=found)
            assert state.get_all("watch") == {"m/short": {"revision": found}}
        return found
    finally:
        state.close()


def at_every_statement(folder: Path) -> int:
    """Kill before every statement; returns how many there were."""
    number = 0
    while True:
        number += 1
        left = number

        def before(_: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        told = child(folder / f"at-{number}", before)
        if told is None:
            return number - 1
        check(folder / f"at-{number}", told)


def at_any_moment(folder: Path, rounds: int) -> int:
    """Kill after random times; returns how many children were still at it."""
    clock = random.Random(9)
    began_s = time.monotonic()
    child(folder / "whole", lambda _: None)
    whole_s, cut = time.monotonic() - began_s, 0
    for number in range(rounds):
        told = child(folder / f"in-{number}", lambda _: None, clock.random() * whole_s)
        cut += told is not None
        if told is not None:
            check(folder / f"in-{number}", told)
    return cut


def main(rounds: int) -> int:
    """Print the counts as one line of JSON."""
    # A killed process leaves to any file system what it wrote: memory is quickest.
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        counts: dict[str, Any] = {"statements": at_every_statement(Path(folder))}
        counts["moments"] = at_any_moment(Path(folder), rounds)
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
