"""Decides what route table an operator's order makes of the present one.

An order says what is wanted in the operator's words; ``moves`` knows what each move does.
Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway import moves
from gateway.audit import Note
from gateway.moves import RouteError
from gateway.routing import RouteTable

__all__ = ["ACTIONS", "Move", "PoolMove", "note_of", "ordered"]

ACTIONS = ("flip", "canary", "promote", "abort", "drain", "undrain", "rollback")
_DRAINS = frozenset({"drain", "undrain"})


@dataclass(frozen=True, slots=True)
class Move:
    """What an operator asks for. ``weight`` is a fraction; ``route`` a MODEL/SIZE, or a MODEL.

    ``revision`` is the one it is based on; None: whichever is in force. ``everything`` drains all
    routes, ``force`` goes to a pool that can't serve now, ``check`` changes nothing. ``options``
    are for followers.
    """

    action: str
    route: str | None = None
    pool: str | None = None
    to: str | None = None
    weight: float | None = None
    to_revision: int | None = None
    deadline_s: float | None = None
    why: str = ""
    everything: bool = False
    force: bool = False
    check: bool = False
    revision: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolMove:
    """The engines, by address, that a pool is to have: all of them. The rest is as of ``Move``."""

    pool: str
    engines: Sequence[str]
    why: str = ""
    check: bool = False
    revision: int | None = None


def ordered(before: RouteTable, move: Move, pools: moves.Pools) -> RouteTable:
    """The table after any move but a rollback, which needs to know the tables before.

    Raises:
        RouteError: it can't be made.
    """
    if move.action in _DRAINS:
        turn = moves.drain if move.action == "drain" else moves.undrain
        return turn(before, _drained(before, move), pools)
    return _redirected(before, move, pools)


def note_of(
    who: str, move: Move, tables: tuple[RouteTable, RouteTable], detail: Mapping[str, Any]
) -> Note:
    """What is written down of a move from the first table to the second."""
    name = move.route or move.pool or ("*" if move.everything else None)
    before, after = tables
    return Note(who, move.action, name, before.revision, after.revision, _why(move), detail)


def _why(move: Move) -> str:
    """The reason that is shown: also the one for a canary that goes without a rollback record."""
    reason = move.options.get("without_record")
    given = reason.strip() if isinstance(reason, str) and move.action == "canary" else ""
    if not given or given in move.why:
        return move.why
    return f"{move.why}; without a record: {given}" if move.why else f"without a record: {given}"


def _redirected(before: RouteTable, move: Move, pools: moves.Pools) -> RouteTable:
    if move.action not in ACTIONS:
        raise RouteError(f"action: must be one of {', '.join(ACTIONS)}, not {move.action[:80]!r}")
    if move.route is None:
        raise RouteError(f"route: {move.action} needs one, as MODEL/SIZE or MODEL")
    keys = moves.selected(before, move.route)
    if move.action == "flip":
        return moves.flip(before, keys, move.to, pools)
    if move.action == "promote":
        return moves.promote(before, keys, pools)
    if move.action == "abort":
        return moves.abort(before, keys)
    if move.weight is None:
        raise RouteError("weight: canary needs one, from 0 to 100 percent")
    return moves.canary(before, keys, move.to, move.weight, pools)


def _drained(table: RouteTable, move: Move) -> list[str]:
    """The names of what a drain or undrain is about: pools, or routes as MODEL/SIZE."""
    given = [move.pool is not None, move.route is not None, move.everything]
    if sum(given) != 1:
        raise RouteError(f"{move.action}: needs exactly one of pool, route and all")
    if move.pool is not None:
        if "/" in move.pool:
            raise RouteError(f"{move.pool[:200]}: is no pool")
        return [move.pool]
    keys = list(table.routes) if move.route is None else moves.selected(table, move.route)
    names = [table.routes[key].name for key in keys]
    drains = move.action == "drain"
    # Of several those are meant that are not so yet; of one it is said that it is so already.
    several = [name for name in names if (name in table.draining) is not drains]
    return several or names
