"""Passes every request on at once: to the engine of its class's pool with the least prefill.

What the gateway does with admission off where classes have engines of their own, in virtual time.
Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence

from loadgen.record import BenchError
from loadgen.simulate import Action, PassThrough, SimArrival

__all__ = ["Spread", "pool_engines"]


def pool_engines(pools: Sequence[Mapping[str, object]]) -> dict[str, range]:
    """Return each class's engines, numbered in the order of the pools.

    Args:
        pools: with `classes` and `engines` each.
    """
    found: dict[str, range] = {}
    at = 0
    for pool in pools:
        classes, count = pool["classes"], pool["engines"]
        if not isinstance(classes, list | tuple) or not isinstance(count, int):
            raise BenchError(f"pool {pool}: needs classes and a number of engines")
        found |= dict.fromkeys(map(str, classes), range(at, at + count))
        at += count
    return found


class Spread:
    """One pass-through for each pool.

    Args:
        engines: of each class; classes that share a pool name the same engines.
    """

    def __init__(self, engines: Mapping[str, range]) -> None:
        self._engines = engines
        self._pools = {own: PassThrough(len(own)) for own in set(engines.values())}
        self._sent: dict[int, range] = {}

    def offer(self, arrival: SimArrival, now: float) -> Sequence[Action]:
        """Send it to its own pool."""
        own = self._engines[arrival.size_class]
        self._sent[arrival.seq] = own
        actions = self._pools[own].offer(arrival, now)
        return [Action(a.seq, own.start + (a.engine or 0)) for a in actions]

    def first_event(self, seq: int, now: float) -> Sequence[Action]:
        """Its prompt is no longer outstanding."""
        return self._pools[self._sent[seq]].first_event(seq, now)

    def finished(self, seq: int, now: float, output_tokens: int) -> Sequence[Action]:
        """It is over."""
        return self._pools[self._sent.pop(seq)].finished(seq, now, output_tokens)

    def cancel(self, seq: int, now: float) -> Sequence[Action]:
        """Its caller left."""
        return self._pools[self._sent.pop(seq)].cancel(seq, now)

    def tick(self, now: float) -> Sequence[Action]:
        """Nothing is due by time."""
        return []

    def next_wakeup(self, now: float) -> float | None:
        """Never."""
        return None
