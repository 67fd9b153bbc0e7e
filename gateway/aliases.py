"""Decides whether two configured engines are one server: an alias of an engine is no second one.

They are one if an address of theirs is the same, or if both say the same process start and the
same cache configuration. What is not known is never taken to be the same.
Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

__all__ = ["EngineIdentity", "Shared", "shared"]


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What tells one server from another.

    ``addresses`` are host:port pairs or socket paths, looked up; ``process_start_s`` and
    ``served`` are from its metrics page, None where it does not say.
    """

    addresses: frozenset[str] = frozenset()
    process_start_s: float | None = None
    served: str | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """Two engines that are one, the pools that name them, and how that was found."""

    engines: tuple[str, str]
    pools: tuple[str, ...]
    because: str

    @property
    def across(self) -> bool:
        """Whether several pools are concerned, which are then not isolated from each other."""
        return len(self.pools) > 1

    def __str__(self) -> str:
        word = "pools" if self.across else "pool"
        return f"{' and '.join(self.engines)} ({word} {', '.join(self.pools)}): {self.because}"


def shared(
    identities: Mapping[str, EngineIdentity], pools: Mapping[str, Iterable[str]]
) -> list[Shared]:
    """Every pair of engines that is one server, in the order of the engines' names."""
    homes = {name: frozenset(members) for name, members in pools.items()}
    found = []
    for one, other in combinations(sorted(identities), 2):
        because = _because(identities[one], identities[other])
        if because:
            users = tuple(name for name, members in homes.items() if members & {one, other})
            found.append(Shared((one, other), users, because))
    return found


def _because(one: EngineIdentity, other: EngineIdentity) -> str:
    both = one.addresses & other.addresses
    if both:
        return f"the same address {min(both)}"
    known = one.process_start_s is not None and one.served is not None
    if known and (one.process_start_s, one.served) == (other.process_start_s, other.served):
        return f"the same process start {one.process_start_s:.2f} and cache configuration"
    return ""
