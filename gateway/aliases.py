"""Decides whether two configured engines are one server: an alias of an engine is no second one.

They are one if an address of theirs is the same. If both say the same process start and cache
configuration they are suspects: two processes may start in the same hundredth of a second. Then
both are asked in turn, twice each. What one process counts never falls, whoever asks; of two
processes each must be behind the other once, unless they are level to within what they count in
that moment. Who was told apart once stays so until it restarts. What is not known is never taken
to be the same. Pure: no I/O, no clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from operator import attrgetter

from gateway.scrape import Scrape

__all__ = ["EngineIdentity", "Pair", "Shared", "Told", "judged", "shared", "suspects"]

Pair = tuple[str, str]
_COUNTERS = tuple(map(attrgetter, ("cpu_s", "iterations", "prompt_tokens", "preemptions")))


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
class Told:
    """What their counters told of two suspects that both say ``process_start_s``."""

    process_start_s: float
    one: bool


@dataclass(frozen=True, slots=True)
class Shared:
    """Two engines that are one, the pools that name them, and how that was found."""

    engines: Pair
    pools: tuple[str, ...]
    because: str

    @property
    def across(self) -> bool:
        """Whether several pools are concerned, which are then not isolated from each other."""
        return len(self.pools) > 1

    def __str__(self) -> str:
        word = "pools" if self.across else "pool"
        return f"{' and '.join(self.engines)} ({word} {', '.join(self.pools)}): {self.because}"


def suspects(identities: Mapping[str, EngineIdentity]) -> list[tuple[str, ...]]:
    """Engines that say the same of themselves, by name: ask each group in turn, twice."""
    alike = defaultdict(list)
    for name in sorted(identities):
        says = identities[name].process_start_s, identities[name].served
        if None not in says:
            alike[says].append(name)
    return [tuple(names) for names in alike.values() if len(names) > 1]


def judged(before: Told | None, pages: Sequence[Scrape]) -> Told | None:
    """What is known of two suspects after another look.

    Args:
        before: what was known.
        pages: theirs in turn, each asked for when the one before it had come.
    """
    start_s = pages[0].process_start_s
    if start_s is None or {page.process_start_s for page in pages} != {start_s}:
        return before  # one restarted meanwhile
    if before is not None and before.process_start_s == start_s and not before.one:
        return before
    counts = [values for read in _COUNTERS if None not in (values := [read(p) for p in pages])]
    falls = any(later < earlier for values in counts for earlier, later in pairwise(values))
    told = any(any(values) for values in counts)  # zeros alone are anybody's
    return Told(start_s, not falls) if told else before


def shared(
    identities: Mapping[str, EngineIdentity],
    pools: Mapping[str, Iterable[str]],
    told: Mapping[Pair, Told],
) -> list[Shared]:
    """Every pair of engines that is one server, in the order of the engines' names.

    ``told`` is what is known of suspects, by their names in order.
    """
    homes = {name: frozenset(members) for name, members in pools.items()}
    found = []
    for pair in combinations(sorted(identities), 2):
        one, other = pair
        because = _because(identities[one], identities[other], told.get(pair))
        if because:
            users = tuple(name for name, members in homes.items() if members & set(pair))
            found.append(Shared(pair, users, because))
    return found


def _because(one: EngineIdentity, other: EngineIdentity, told: Told | None) -> str:
    both = one.addresses & other.addresses
    if both:
        return f"the same address {min(both)}"
    starts = {one.process_start_s, other.process_start_s}
    if told is None or not told.one or starts != {told.process_start_s}:
        return ""
    if one.served is None or one.served != other.served:
        return ""
    return (
        f"the same process start {told.process_start_s:.2f} and cache configuration, "
        "and one count of work"
    )
