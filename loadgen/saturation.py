"""Decides the rates of a sweep from what B0 completes per second in a closed loop at saturation.

A closed loop keeps a fixed number of requests in flight: the next is sent when one ends. That
number is doubled until completions hardly rise; the first seconds settle and don't count. Low,
near and stress are fixed shares of the completions found. Here too the loop itself, in virtual
time. Rates are per second. Pure: no I/O, no clock.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.engine.cost import StepCost
from loadgen.engine.scheduler import SchedulerConfig
from loadgen.forecast import DELAYS
from loadgen.simulate import Action, SimArrival, simulate

__all__ = [
    "LEVELS",
    "MEASURED_S",
    "SETTLE_S",
    "SHARES",
    "Saturation",
    "class_sequence",
    "completions_per_s",
    "level_search",
    "rates_file",
    "rates_from",
]

SETTLE_S, MEASURED_S = 12.0, 30.0
SHARES = {"low": 0.60, "near": 0.75, "stress": 0.85}
LEVELS = (8, 16, 32, 64, 128, 256)
# Twice as many in flight that complete less than this much more are not worth their waiting.
RISE = 0.03
BLOCK = 20


@dataclass(frozen=True, slots=True)
class Saturation:
    """What a closed loop completed per second at each number in flight, and the most of it."""

    by_level: Mapping[int, float]

    @property
    def level(self) -> int:
        """The number in flight at which most was completed."""
        return max(self.by_level, key=lambda n: self.by_level[n])

    @property
    def per_s(self) -> float:
        """The most that was completed per second."""
        return self.by_level[self.level]


def class_sequence(shares: Mapping[str, float], seed: int = 1) -> Iterator[str]:
    """Yield classes for ever, exact by count in every block of twenty, in a shuffled order."""
    rng = random.Random(f"sluicegate-closed-loop:{seed}")
    names = list(shares)
    owed = dict.fromkeys(names, 0.0)
    while True:
        block = []
        for _ in range(BLOCK):
            owed = {name: owed[name] + shares[name] for name in names}
            name = max(names, key=lambda n: owed[n])
            owed[name] -= 1
            block.append(name)
        rng.shuffle(block)
        yield from block


def level_search(measure: Callable[[int], float], levels: Sequence[int] = LEVELS) -> Saturation:
    """Measure at one level after another until completions hardly rise.

    Args:
        measure: completions per second at a number in flight.
        levels: the numbers in flight, rising.
    """
    found: dict[int, float] = {}
    for level in levels:
        before = max(found.values(), default=0.0)
        found[level] = measure(level)
        if found[level] < before * (1 + RISE):
            break
    return Saturation(found)


def rates_from(per_s: float) -> dict[str, float]:
    """Return the named rates, in hundredths of a request per second."""
    return {name: round(per_s * share, 2) for name, share in SHARES.items()}


class _ClosedLoop:
    """Holds all requests back and keeps a fixed number of them in flight until the end."""

    def __init__(self, in_flight: int, end_s: float) -> None:
        self._free = in_flight
        self._end_s = end_s
        self._held: deque[int] = deque()

    def _next(self, now: float) -> list[Action]:
        actions = []
        while self._free and self._held and now < self._end_s:
            self._free -= 1
            actions.append(Action(self._held.popleft(), 0))
        return actions

    def offer(self, arrival: SimArrival, now: float) -> Sequence[Action]:
        """Take a request that may be sent from now on."""
        self._held.append(arrival.seq)
        return self._next(now)

    def first_event(self, seq: int, now: float) -> Sequence[Action]:
        """Its answer began: it is in flight all the same."""
        return []

    def finished(self, seq: int, now: float, output_tokens: int) -> Sequence[Action]:
        """One is over: the next is sent."""
        self._free += 1
        return self._next(now)

    def cancel(self, seq: int, now: float) -> Sequence[Action]:
        """One has left, as if it were over."""
        return self.finished(seq, now, 0)

    def tick(self, now: float) -> Sequence[Action]:
        """Nothing is due by time."""
        return []

    def next_wakeup(self, now: float) -> float | None:
        """Never."""
        return None


def completions_per_s(
    shares: Mapping[str, float],
    sizes: Mapping[str, tuple[int, int]],
    engine: tuple[SchedulerConfig, StepCost],
    in_flight: int,
) -> float:
    """Return what one engine completes per second of a closed loop, in virtual time.

    Args:
        shares: of each class, by count.
        sizes: prompt and output tokens of each class.
        engine: its limits and its step cost.
        in_flight: how many requests at any time.
    """
    config, cost = engine
    end_s = SETTLE_S + MEASURED_S
    # More than can be completed: a step takes its base time, and yields a token per sequence.
    least_output = min(output for _, output in sizes.values())
    count = in_flight + int(end_s / cost.base_s * in_flight / least_output)
    names = class_sequence(shares)
    arrivals = [
        SimArrival(n, 0.0, name, *sizes[name]) for n, name in zip(range(count), names, strict=False)
    ]
    loop = _ClosedLoop(in_flight, end_s)
    results = simulate(arrivals, loop, [config], cost, DELAYS)
    ended = [r.last_s for r in results if r.done and r.last_s is not None]
    return sum(SETTLE_S <= at < end_s for at in ended) / MEASURED_S


def rates_file(found: Mapping[str, Saturation], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the file of rates holds: the rates, and how they were found.

    Args:
        found: per mix.
        said: of the engine that was measured.
    """
    source = {
        **said,
        "completions_per_s": {mix: s.per_s for mix, s in found.items()},
        "in_flight": {mix: s.level for mix, s in found.items()},
        "by_level": {m: {str(n): v for n, v in s.by_level.items()} for m, s in found.items()},
        "shares": SHARES,
        "settle_s": SETTLE_S,
        "measured_s": MEASURED_S,
    }
    rates = {mix: rates_from(s.per_s) for mix, s in found.items()}
    return {"kind": "rates", "rates": rates, "source": source}
