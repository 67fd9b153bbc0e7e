"""Decides which limits are in force when operators change some at run time.

An ``Overlay`` is a value: a revision and what was set, each under a path, until it expires.
``flow.SIZE.SERVICE.KEY`` is about that flow of every model, ``flow.MODEL.SIZE.SERVICE.KEY`` of
one, ``engine.ADDRESS.KEY`` about one engine. Laid over a configuration it gives the flows and
limits in force (``apply``), which must keep the same floors as the configuration itself
(``faults``). A change names the revision that it is based on: two operators can't overwrite each
other. Times are seconds on the gateway's clock. Pure: no I/O, no clock.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any

from gateway.domain import EngineLimits, FlowSpec
from gateway.floors import broken_floors

__all__ = [
    "ENGINE_KEYS",
    "FLOW_KEYS",
    "MAX_EXPIRY_S",
    "PAUSED",
    "Entry",
    "Group",
    "InForce",
    "LimitError",
    "Overlay",
    "amended",
    "apply",
    "expired",
    "faults",
    "fitting",
]

MAX_ENTRIES = 1000
MAX_EXPIRY_S = 30 * 86400.0
PAUSED = "paused"
_LARGEST = 1 << 40

Group = tuple[str, str, str]
Value = float | int | bool
Users = Mapping[str, Collection[tuple[str, str]]]


class LimitError(Exception):
    """A change can't be made; the message begins with the path that is at fault."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one path is set to, by whom, and until when; ``None``: until it is taken back."""

    value: Value
    by: str
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Overlay:
    """All that is set at run time. ``revision`` grows with each change."""

    revision: int = 1
    entries: Mapping[str, Entry] = field(default_factory=lambda: MappingProxyType({}))

    def next_expiry_s(self) -> float | None:
        """When the next entry expires."""
        due = (e.until_s for e in self.entries.values() if e.until_s is not None)
        return min(due, default=None)


@dataclass(frozen=True, slots=True)
class InForce:
    """A configuration under an overlay."""

    flows: tuple[FlowSpec, ...]
    engines: Mapping[str, EngineLimits]
    paused_groups: frozenset[Group] = frozenset()
    paused_engines: frozenset[str] = frozenset()


def _count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _LARGEST


def _positive(value: Any) -> bool:
    return type(value) in {int, float} and isfinite(value) and 0 < value <= _LARGEST


def _flag(value: Any) -> bool:
    return type(value) is bool


Kind = tuple[Callable[[Any], bool], str]
_COUNT: Kind = (_count, "a whole number from 1 on")
_POSITIVE: Kind = (_positive, "a number above 0")
_FLAG: Kind = (_flag, "true or false")
FLOW_KEYS: Mapping[str, Kind] = MappingProxyType(
    {
        "weight": _POSITIVE,
        "max_queued": _COUNT,
        "max_queued_tokens": _COUNT,
        "max_queued_bytes": _COUNT,
        "max_age_s": _POSITIVE,
        "target_wait_s": _POSITIVE,
        PAUSED: _FLAG,
    }
)
ENGINE_KEYS: Mapping[str, Kind] = MappingProxyType(
    {"slots": _COUNT, "prefill_tokens": _COUNT, "kv_tokens": _COUNT, PAUSED: _FLAG}
)


# -- changes -------------------------------------------------------------------------------


def amended(
    overlay: Overlay, changes: Mapping[str, Any], by: str, until_s: float | None = None
) -> Overlay:
    """The overlay after ``changes``: a value by path, ``None`` takes one back.

    Whether the paths exist and the values fit is for ``faults`` to say.

    Raises:
        LimitError: a path or value that can't be one, or too many.
    """
    entries = dict(overlay.entries)
    for path, value in changes.items():
        check, words = _kind(path)
        if value is None:
            entries.pop(path, None)
        elif check(value):
            entries[path] = Entry(value, by, until_s)
        else:
            raise LimitError(
                f"{path}: must be {words}; null, or default in limits set, takes it back"
            )
    if len(entries) > MAX_ENTRIES:
        raise LimitError(f"{next(iter(changes))}: more than {MAX_ENTRIES} limits are set")
    return Overlay(overlay.revision + 1, MappingProxyType(entries))


def expired(overlay: Overlay, now: float) -> tuple[Overlay, dict[str, Entry]]:
    """The overlay without what has expired, and that; the same overlay if nothing has."""
    gone = {
        path: entry
        for path, entry in overlay.entries.items()
        if entry.until_s is not None and entry.until_s <= now
    }
    return (_without(overlay, gone), gone) if gone else (overlay, gone)


def fitting(
    overlay: Overlay,
    flows: Sequence[FlowSpec],
    engines: Mapping[str, EngineLimits],
    users: Users,
) -> tuple[Overlay, dict[str, str]]:
    """What of the overlay fits another configuration, and why the rest does not.

    Arguments as of ``faults``. Entries are tried one by one in the order in which they were set.
    """
    kept, dropped = Overlay(overlay.revision), dict[str, str]()
    for path, entry in overlay.entries.items():
        tried = replace(kept, entries={**kept.entries, path: entry})
        reason = next(faults(tried, flows, engines, users), None)
        if reason is None:
            kept = tried
        else:
            dropped[path] = reason
    if not dropped:
        return overlay, dropped
    return _without(overlay, dropped), dropped


def _without(overlay: Overlay, gone: Mapping[str, object]) -> Overlay:
    left = {path: entry for path, entry in overlay.entries.items() if path not in gone}
    return Overlay(overlay.revision + 1, MappingProxyType(left))


# -- what is in force ----------------------------------------------------------------------


def apply(
    overlay: Overlay, flows: Sequence[FlowSpec], engines: Mapping[str, EngineLimits]
) -> InForce:
    """The flows and limits in force. Paths that lead nowhere have no effect."""
    specs, limits = {f.group: f for f in flows}, dict(engines)
    groups, paused = set[Group](), set[str]()
    for path, entry in overlay.entries.items():
        target, _, key = path.rpartition(".")
        if target.startswith("flow."):
            matched = _groups(target, specs)
            if key == PAUSED:
                groups.update(matched if entry.value else ())
                continue
            changes: dict[str, Any] = {key: entry.value}
            specs.update((group, replace(specs[group], **changes)) for group in matched)
            continue
        engine = target.removeprefix("engine.")
        if key == PAUSED:
            paused.update({engine} if entry.value and engine in limits else ())
        elif engine in limits:
            more: dict[str, Any] = {key: entry.value}
            limits[engine] = replace(limits[engine], **more)
    return InForce(
        tuple(specs.values()), MappingProxyType(limits), frozenset(groups), frozenset(paused)
    )


def faults(
    overlay: Overlay,
    flows: Sequence[FlowSpec],
    engines: Mapping[str, EngineLimits],
    users: Users,
) -> Iterator[str]:
    """Why the overlay does not fit: paths that lead nowhere, then floors that it would break.

    Args:
        overlay: what is set.
        flows: as configured.
        engines: the configured limits of all engines there are.
        users: by engine, which (model, size class) its pools serve.
    """
    specs = {f.group: f for f in flows}
    for path in overlay.entries:
        target = path.rpartition(".")[0]
        if target.startswith("flow."):
            if not _groups(target, specs):
                known = ", ".join(dict.fromkeys(f"{s}.{c}" for _, s, c in specs))
                yield f"{path}: there is no such flow (known: {known})"
        elif target.removeprefix("engine.") not in engines:
            yield f"{path}: there is no such engine (known: {', '.join(engines)})"
    now = apply(overlay, flows, engines)
    changed = {p.rpartition(".")[0].removeprefix("engine.") for p in overlay.entries}
    for engine in changed & set(engines):
        served = users.get(engine, ())
        specs_there = [f for f in now.flows if (f.model, f.size_class) in served]
        for reason in broken_floors(specs_there, now.engines[engine]):
            yield f"engine.{engine}: {reason}"


def _groups(target: str, specs: Mapping[Group, FlowSpec]) -> list[Group]:
    """The flows that ``flow.SIZE.SERVICE`` or ``flow.MODEL.SIZE.SERVICE`` is about."""
    # A model's name may hold dots; those of classes don't.
    *model, size, service = target.removeprefix("flow.").rsplit(".", 2)
    return [g for g in specs if g[1:] == (size, service) and model in ([], [g[0]])]


def _kind(path: str) -> Kind:
    target, _, key = path.rpartition(".")
    kind, dot, name = target.partition(".")
    keys = {"flow": FLOW_KEYS, "engine": ENGINE_KEYS}.get(kind)
    if keys is None or not dot or not name or (kind == "flow" and "." not in name):
        raise LimitError(
            f"{path[:200]}: must be flow.SIZE.SERVICE.KEY, flow.MODEL.SIZE.SERVICE.KEY or "
            "engine.ADDRESS.KEY"
        )
    if key not in keys:
        raise LimitError(f"{path[:200]}: {key!r} can't be set (only {', '.join(keys)})")
    return keys[key]
