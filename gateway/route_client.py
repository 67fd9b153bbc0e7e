"""Moves traffic on several gateways as an operator: on all of them or on none.

First all are looked at and asked whether they would make the move; then it is made on one after
another; then all are looked at again. Where one fails after others have moved, those are put back
as they were, and what could not be put back is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.admin_client import AdminError, Operated, put_back

__all__ = ["Asked", "ask_all", "carry_out", "set_pool"]

ROUTES = "/admin/routes"
POOLS = "/admin/pools"


@dataclass(frozen=True, slots=True)
class Asked:
    """One gateway that would make a move: its revision, and what would change."""

    admin: Operated
    revision: int
    would: Mapping[str, Any]


def ask_all(admins: Sequence[Operated], body: Mapping[str, Any]) -> list[Asked]:
    """What the move would change on each gateway; nothing is changed.

    Raises:
        AdminError: one can't be reached, or would not.
    """
    asked = []
    for admin in admins:
        revision = admin.get(ROUTES)["revision"]
        would = admin.post(ROUTES, {**body, "revision": revision, "check": True})
        asked.append(Asked(admin, revision, would))
    return asked


def carry_out(asked: Sequence[Asked], body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make the move on all gateways that were asked; returns their answers.

    Raises:
        AdminError: one could not, or would not; all are as they were.
        PartialError: some could not be put back.
    """
    told: list[dict[str, Any]] = []
    try:
        for one in asked:
            answer = one.admin.post(ROUTES, {**body, "revision": one.revision})
            told.append(answer)
        for one, answer in zip(asked, told, strict=True):
            _verify(one, answer)
    except AdminError as error:
        # The one that failed may have moved before it fell silent.
        why = _why(error)
        put_back(asked[: len(told) + 1], lambda one: _restore(one, why), error)
        raise
    return told


def set_pool(
    admins: Sequence[Operated], body: Mapping[str, Any], *, check: bool = False
) -> list[dict[str, Any]]:
    """Give a pool other engines on all gateways, or only check; returns their answers.

    Raises:
        AdminError: one could not, or would not; all are as they were.
        PartialError: some could not be put back.
    """
    would = [admin.post(POOLS, {**body, "check": True}) for admin in admins]
    if check:
        return would
    told: list[dict[str, Any]] = []
    try:
        for admin in admins:
            told.append(admin.post(POOLS, dict(body)))  # noqa: PERF401  it counts who has
    except AdminError as error:
        # The one that failed may have changed before it fell silent.
        tried = len(told) + (not error.answered)
        again = {**body, "why": _why(error)}
        put_back(
            list(zip(admins, would, strict=True))[:tried], lambda one: _reset(*one, again), error
        )
        raise
    return told


def _reset(admin: Operated, would: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    admin.post(POOLS, {**body, "engines": would["changed"][0]["before"]["engines"]})


def _why(cause: AdminError) -> str:
    return f"taken back, because of {cause}"[:1000]


def _verify(one: Asked, answer: Mapping[str, Any]) -> None:
    seen = one.admin.get(ROUTES)
    if seen["table_digest"] != answer["table_digest"]:
        reason = f"its routes are not as moved afterwards (revision {seen['revision']})"
        raise AdminError(one.admin.url, reason)


def _restore(one: Asked, why: str) -> None:
    """Routes as at the revision before, then what drained or did not."""
    if one.admin.get(ROUTES)["revision"] == one.revision:
        return
    changed = one.would["changed"]
    for row in changed:
        if "stable" in row["before"]:
            back = {"action": "rollback", "route": row["route"], "to_revision": one.revision}
            one.admin.post(ROUTES, {**back, "why": why})
    draining = {name for name, drains in _draining(one.admin.get(ROUTES)) if drains}
    for row in changed:
        if "draining" in row["before"]:
            word = "pool" if "pool" in row else "route"
            if row["before"]["draining"] != (row[word] in draining):
                action = "drain" if row["before"]["draining"] else "undrain"
                one.admin.post(ROUTES, {"action": action, word: row[word], "why": why})


def _draining(seen: Mapping[str, Any]) -> list[tuple[str, bool]]:
    routes = [(row["route"], row["draining"]) for row in seen["routes"]]
    return routes + [(name, pool["draining"]) for name, pool in seen["pools"].items()]
