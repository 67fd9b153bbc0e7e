"""Keeps the revisions of the route table while the gateway runs: committed first, then in force.

At start the committed table is in force if the configured routes are still those that it rests on;
edited ones make a new revision. What is committed goes to the state (``state``) in a thread; the
last revisions are kept here, for operators to see.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gateway.audit import CONFIGURATION, GATEWAY, AuditEntry, Note
from gateway.config import ConfigError, Settings
from gateway.moves import configured, unknown_pools
from gateway.route_record import changes, kept, read_back, routes_digest, touched
from gateway.routing import RouteTable
from gateway.state import Record, Revision, State, StateError
from gateway.table_rules import table_faults

__all__ = ["Draft", "Trail", "begin", "in_memory", "state_warnings", "taken_back"]

SHOWN = 20
LOOKED_BACK = 1000


@dataclass(frozen=True, slots=True)
class Draft:
    """A table that is to be committed.

    ``configuration`` is the digest of the configured routes it rests on, ``was`` that of the table
    before; None: the same.
    """

    table: RouteTable
    note: Note
    configuration: str | None = None
    records: Sequence[Record] = ()
    was: str | None = None


class Trail:
    """The committed revisions of one gateway.

    Args:
        state: where they are kept.
        wall: the time of day, in UTC.
    """

    def __init__(self, state: State, wall: Callable[[], datetime]) -> None:
        self.state = state
        self._wall = wall
        # One more than is shown: the oldest that is shown has one before it.
        self.history: tuple[Revision, ...] = tuple(state.revisions(SHOWN + 1))

    @property
    def standing(self) -> str:
        """In a word, whether changes can be kept: "ok", "read_only", or "none" beyond memory."""
        if not self.state.kept:
            return "none"
        return "ok" if self.state.fault is None else "read_only"

    @property
    def last(self) -> Revision | None:
        """The last committed revision."""
        return self.history[0] if self.history else None

    def moves(self) -> list[dict[str, Any]]:
        """The last revisions, newest first, as operators see them."""
        told = ("revision", "at", "who", "action", "why", "from_revision")
        return [
            {
                **{key: getattr(row, key) for key in told},
                "touched": touched(before.table, row.table) if before else [],
            }
            for row, before in zip_longest(self.history[:SHOWN], self.history[1:])
        ]

    async def commit(self, draft: Draft) -> AuditEntry:
        """Write a table down; it may take effect afterwards, and not before.

        Raises:
            StateError: it could not be written; nothing was.
        """
        return await asyncio.to_thread(self.commit_now, draft)

    def commit_now(self, draft: Draft) -> AuditEntry:
        """As ``commit``; blocks."""
        at, note, last = self.at(), draft.note, self.last
        digest = draft.configuration or (last.configuration if last else "")
        row = Revision(
            draft.table.revision, at, note.who, note.action, note.why, note.from_revision,
            digest, kept(draft.table),
        )  # fmt: skip
        entry = self.state.commit(at, note, row, draft.records)
        self.history = (row, *self.history)[: SHOWN + 1]
        return entry

    async def note(
        self,
        who: str,
        action: str,
        route: str | None = None,
        why: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> AuditEntry:
        """Write an entry of the audit trail alone; raises ``StateError``."""
        written = Note(who, action, route, why=why, detail=detail or {})
        return await asyncio.to_thread(self.state.commit, self.at(), written)

    async def put(self, kind: str, key: str, body: Mapping[str, Any]) -> None:
        """Keep a record; raises ``StateError``."""
        await asyncio.to_thread(self.state.put, kind, key, body)

    async def get_all(self, kind: str) -> dict[str, dict[str, Any]]:
        """All records of a kind; raises ``StateError``."""
        return await asyncio.to_thread(self.state.get_all, kind)

    async def delete(self, kind: str, key: str) -> None:
        """Forget a record; raises ``StateError``."""
        await asyncio.to_thread(self.state.delete, kind, key)

    async def table(self, revision: int, now: RouteTable) -> RouteTable | None:
        """The table of a revision, with the names of the models as they are now.

        Raises:
            StateError: it can't be read.
        """
        row = await asyncio.to_thread(self.state.revision, revision)
        return None if row is None else self._read(row, now)

    async def tables(self, now: RouteTable) -> list[RouteTable]:
        """The tables since the configured routes changed, newest first; raises ``StateError``."""
        rows, found = await asyncio.to_thread(self.state.revisions, LOOKED_BACK), []
        for row in rows:
            found.append(self._read(row, now))
            if row.action == CONFIGURATION:
                break
        return found

    def _read(self, row: Revision, now: RouteTable) -> RouteTable:
        try:
            return read_back(row.table, row.revision, now.salt, now.models)
        except ValueError as error:
            raise StateError(f"{self.state.name}: {error}") from error

    async def audit(self, limit: int) -> dict[str, Any]:
        """The last entries of the audit trail, newest first, and whether these are whole.

        The entries before them were looked at when the gateway started.
        """
        entries, broken = await asyncio.to_thread(self.state.audit, limit)
        chain = "whole" if broken is None else f"broken at {broken}"
        return {"entries": entries, "chain": chain}

    def draft(self, settings: Settings, who: str) -> Draft | None:
        """What a configuration makes of the last table; None where that stays in force.

        Raises:
            ConfigError: the last table leads to pools that are gone.
        """
        fresh = settings.route_table(self.state.salt)
        digest, last = routes_digest(fresh.routes), self.last
        before = None if last is None else _read(last, fresh, settings.path)
        if last is None or before is None or last.configuration != digest:
            table = configured(before, fresh, settings.document.pool)
            draft = _draft(table, before, who, digest)
            return draft if last is None else replace(draft, was=last.configuration)
        for route, pool in unknown_pools(before, settings.document.pool):
            raise ConfigError(
                settings.path,
                f"pool.{pool}",
                f"is not configured any more, but route {route} goes there since revision "
                f"{last.revision} (by {last.who}): put it back, or change [[route]]",
            )
        found = table_faults(settings.document, settings.flows, settings.pool_limits, before)
        for key, reason in found:
            at = f"revision {last.revision} of the routes (by {last.who}) can't be in force"
            raise ConfigError(settings.path, key, f"{at}: {reason}")
        return None

    def present(self, settings: Settings) -> RouteTable:
        """The last table, under this configuration.

        Raises:
            ConfigError: it can't be read.
        """
        fresh = settings.route_table(self.state.salt)
        return fresh if self.last is None else _read(self.last, fresh, settings.path)

    def at(self) -> str:
        """The time of day now, to the millisecond, as everything kept here has it."""
        return self._wall().isoformat(timespec="milliseconds")


def begin(settings: Settings, wall: Callable[[], datetime]) -> tuple[Trail, RouteTable]:
    """Open the state that the configuration names; returns the table that is in force.

    Where the state can't be written, an edited configuration is in force uncommitted.

    Raises:
        ConfigError: the state can't be read or is in use, or its table can't be in force.
    """
    named = settings.document.state.directory
    try:
        trail = Trail(State(None if named is None else settings.file(named)), wall)
        draft = trail.draft(settings, CONFIGURATION)
        if draft is not None and trail.state.fault is None:
            trail.commit_now(draft)
    except StateError as error:
        raise ConfigError(settings.path, "state.directory", str(error)) from error
    except BaseException:
        trail.state.close()
        raise
    return trail, trail.present(settings) if draft is None else draft.table


def state_warnings(trail: Trail) -> list[str]:
    """What an operator should know of the state at start."""
    if not trail.state.kept:
        return []
    found = []
    if trail.state.fault is not None:
        found.append(f"state.directory: {trail.state.fault}: routes can't be changed")
    broken = trail.state.broken_at()
    if broken is not None:
        found.append(f"state.directory: {trail.state.name}: the audit trail is broken at {broken}")
    return found


def in_memory(table: RouteTable) -> Trail:
    """A trail that begins with ``table`` and is gone with the process."""
    state = State(None)
    state.salt = table.salt
    trail = Trail(state, _now)
    digest = routes_digest(table.routes)
    trail.commit_now(_draft(table, None, CONFIGURATION, digest))
    return trail


def taken_back(table: RouteTable, draft: Draft, why: str) -> Draft:
    """The draft that puts ``table`` after one that was committed and did not take effect."""
    revision = draft.table.revision
    again = replace(table, revision=revision + 1)
    note = Note(GATEWAY, "take_back", None, revision, again.revision, why)
    return Draft(again, note, draft.was)


def _now() -> datetime:
    return datetime.now(UTC)


def _draft(table: RouteTable, before: RouteTable | None, who: str, digest: str) -> Draft:
    told = {"changed": changes(before or table, table)}
    old, why = None if before is None else before.revision, "the routes of the configuration"
    note = Note(who, CONFIGURATION, None, old, table.revision, why, told)
    return Draft(table, note, digest)


def _read(last: Revision, fresh: RouteTable, path: Path) -> RouteTable:
    try:
        return read_back(last.table, last.revision, fresh.salt, fresh.models)
    except ValueError as error:
        raise ConfigError(path, "state.directory", str(error)) from error
