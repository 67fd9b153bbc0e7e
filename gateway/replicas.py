"""Decides which part of every engine one of several gateway replicas may fill.

Replicas do not talk to each other, so each keeps to a part that the others leave it: N, U and K
are divided by their number. A cap on prefills of a class, mostly 1, cannot be divided: of each
engine one replica owns it, by rendezvous hashing of the engine's name, and for the others the cap
there is 0, which means never. The engines of a class are dealt evenly, so that every replica owns
one where there are enough. Pure: no I/O, no clock.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from hashlib import sha256

from gateway.domain import EngineLimits

__all__ = ["faults", "owners", "share", "share_all"]


def owners(engines: Iterable[str], n: int) -> dict[str, int]:
    """Which replica owns each engine: the highest hash that is not dealt out already."""
    names = sorted(set(engines))
    most, extra = divmod(len(names), n)
    owned = [0] * n
    found: dict[str, int] = {}
    for engine, index in sorted(((e, i) for e in names for i in range(n)), key=_weight):
        full = owned[index] >= most
        if engine in found or (full and (owned[index] > most or not extra)):
            continue
        extra -= full
        owned[index] += 1
        found[engine] = index
    return found


def share(
    limits: EngineLimits,
    engine: str,
    index: int,
    n: int,
    capped: Mapping[str, Collection[str]] | None = None,
) -> EngineLimits:
    """The part of ``engine`` that replica ``index`` of ``n`` may fill.

    Args:
        limits: of the whole engine.
        engine: its name.
        index: from 0.
        n: how many replicas there are.
        capped: the engines that serve each capped class, this one included; where a class is
            missing, this engine alone decides.
    """
    if n == 1:
        return limits
    caps = []
    for size, cap in limits.max_prefilling:
        owner = owners((capped or {}).get(size) or (engine,), n).get(engine)
        caps.append((size, cap if owner in {index, None} else 0))
    return replace(
        limits,
        slots=limits.slots // n,
        prefill_tokens=limits.prefill_tokens // n,
        kv_tokens=limits.kv_tokens // n,
        max_prefilling=tuple(caps),
    )


def share_all(
    engines: Mapping[str, EngineLimits],
    index: int,
    n: int,
    served: Mapping[str, Collection[str]] | None = None,
) -> dict[str, EngineLimits]:
    """The part of every engine that replica ``index`` of ``n`` may fill.

    ``served`` names the engines that the routes of each size class use; None: all of them.
    """
    capped = _capped(engines, served)
    return {name: share(limits, name, index, n, capped) for name, limits in engines.items()}


def faults(
    engines: Mapping[str, EngineLimits], n: int, served: Mapping[str, Collection[str]] | None = None
) -> list[str]:
    """Why ``n`` replicas cannot share these engines; empty if they can."""
    found = [
        f"{name}: {n} replicas cannot share {limits.slots} slots"
        for name, limits in engines.items()
        if limits.slots < n
    ]
    return found + [
        f"size class {size} has a cap on prefills and {len(names)} engines, fewer than the {n} "
        f"replicas: a replica that owns none could never start such a request; use one replica, "
        f"or lift the cap of the class"
        for size, names in _capped(engines, served).items()
        if len(names) < n
    ]


def _capped(
    engines: Mapping[str, EngineLimits], served: Mapping[str, Collection[str]] | None
) -> dict[str, list[str]]:
    """The engines that serve each class and cap it."""
    found: dict[str, list[str]] = {}
    for name, limits in engines.items():
        for size, cap in limits.max_prefilling:
            if cap and (served is None or name in served.get(size, ())):
                found.setdefault(size, []).append(name)
    return found


def _weight(pair: tuple[str, int]) -> bytes:
    return sha256(f"{pair[1]}\0{pair[0]}".encode()).digest()
