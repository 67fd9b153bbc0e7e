"""Draws when requests arrive and of which class each is, from a seed, before anything runs.

`poisson-stratified`: in every block the number of arrivals and of each class is exact, the times
uniform in the block, the order of the classes shuffled. A block is 10 s, or the whole interval
where that is no multiple of 10 s; ramp and window each begin one. Bursts longer than a block are
thereby removed, on purpose: without it the luck of a trace dominates what is compared.
Beside it: `poisson`; `gamma`, whose gaps are burstier below a burstiness of 1 and more even above;
`constant`; and three whose rate changes: `step` (from one time on), `burst` (for a while) and
`ramp` (steadily, over the window), each to `factor` times the rate.
Offsets are integer microseconds from the run's start, rates per second. Pure: no I/O, no clock.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadgen.record import BenchError

__all__ = ["BLOCK_S", "GENERATOR", "KINDS", "TraceSpec", "change_of", "draw"]

GENERATOR = "sluicegate-trace-1"
BLOCK_S = 10.0
CHANGING = ("step", "burst", "ramp")
KINDS = ("poisson-stratified", "poisson", "gamma", "constant", *CHANGING)


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """What to draw. `mix` gives each class its share by count; the shares sum to one.

    `burstiness` is the shape of gamma gaps; `factor`, `at_s` and `for_s` say how far, when and
    for how long the rate changes where the kind has it change.
    """

    kind: str
    seed: int
    rate_per_s: float
    mix: tuple[tuple[str, float], ...]
    ramp_s: float
    window_s: float
    burstiness: float = 1.0
    factor: float = 2.0
    at_s: float | None = None
    for_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if self.kind not in KINDS:
            raise BenchError(f"trace kind {self.kind!r}: expected one of {', '.join(KINDS)}")
        if abs(sum(share for _, share in self.mix) - 1.0) > 1e-9:
            raise BenchError(f"trace mix {dict(self.mix)}: the shares must sum to 1")
        if self.rate_per_s <= 0 or self.window_s <= 0 or self.ramp_s < 0:
            raise BenchError("trace: rate and window must be positive, the ramp not negative")
        if self.burstiness <= 0 or self.factor <= 0:
            raise BenchError("trace: burstiness and factor must be positive")
        if self.kind in CHANGING:
            _check_change(self)

    @property
    def end_s(self) -> float:
        """When the last arrival may come."""
        return self.ramp_s + self.window_s


Drawn = list[tuple[int, str]]


def change_of(spec: TraceSpec) -> tuple[float, float] | None:
    """Return from when to when the rate is another one, in seconds; None where it never is."""
    if spec.kind not in CHANGING:
        return None
    if spec.kind == "ramp":
        return spec.ramp_s, spec.end_s
    thirds_s = spec.window_s / 3
    begin_s = spec.ramp_s + thirds_s if spec.at_s is None else spec.at_s
    if spec.kind == "step":
        return begin_s, spec.end_s
    return begin_s, begin_s + (thirds_s if spec.for_s is None else spec.for_s)


def _check_change(spec: TraceSpec) -> None:
    begin_s, end_s = change_of(spec) or (0.0, 0.0)
    if not 0 <= begin_s < end_s <= spec.end_s:
        raise BenchError(
            f"trace kind {spec.kind}: the rate changes from {begin_s:g} to {end_s:g} s, which is "
            f"not inside the {spec.end_s:g} s of the trace"
        )


def _blocks(start_s: float, length_s: float) -> list[tuple[float, float]]:
    count = round(length_s / BLOCK_S)
    if count == 0 or abs(count * BLOCK_S - length_s) > 1e-9:
        return [(start_s, length_s)] if length_s > 0 else []
    return [(start_s + n * BLOCK_S, BLOCK_S) for n in range(count)]


def _class_totals(total: int, mix: Sequence[tuple[str, float]]) -> list[int]:
    """Split a count by share so that the parts sum to it exactly: round the running sum."""
    shares = [sum(share for _, share in mix[: n + 1]) for n in range(len(mix))]
    edges = [0, *(round(total * s) for s in shares[:-1]), total]
    return [high - low for low, high in pairwise(edges)]


def _stratified_interval(
    spec: TraceSpec, start_s: float, length_s: float, rng: random.Random
) -> Drawn:
    drawn: Drawn = []
    given = [0] * len(spec.mix)
    for block_start_s, block_s in _blocks(start_s, length_s):
        due = round(spec.rate_per_s * (block_start_s + block_s - start_s))
        counts = [t - g for t, g in zip(_class_totals(due, spec.mix), given, strict=True)]
        given = [g + c for g, c in zip(given, counts, strict=True)]
        names = [n for (n, _), c in zip(spec.mix, counts, strict=True) for _ in range(c)]
        rng.shuffle(names)
        low, high = round(block_start_s * 1e6), round((block_start_s + block_s) * 1e6)
        drawn += zip(sorted(rng.randrange(low, high) for _ in names), names, strict=True)
    return drawn


def _stratified(spec: TraceSpec, rng: random.Random) -> Drawn:
    ramp = _stratified_interval(spec, 0.0, spec.ramp_s, rng)
    return ramp + _stratified_interval(spec, spec.ramp_s, spec.window_s, rng)


def _any_class(spec: TraceSpec, rng: random.Random) -> str:
    names = [name for name, _ in spec.mix]
    return rng.choices(names, weights=[share for _, share in spec.mix])[0]


def _poisson(spec: TraceSpec, rng: random.Random) -> Drawn:
    drawn: Drawn = []
    at_s = rng.expovariate(spec.rate_per_s)
    while at_s < spec.end_s:
        drawn.append((int(at_s * 1e6), _any_class(spec, rng)))
        at_s += rng.expovariate(spec.rate_per_s)
    return drawn


def _gamma(spec: TraceSpec, rng: random.Random) -> Drawn:
    drawn: Drawn = []
    shape = spec.burstiness
    at_s = rng.gammavariate(shape, 1 / (shape * spec.rate_per_s))
    while at_s < spec.end_s:
        drawn.append((int(at_s * 1e6), _any_class(spec, rng)))
        at_s += rng.gammavariate(shape, 1 / (shape * spec.rate_per_s))
    return drawn


def _constant(spec: TraceSpec, rng: random.Random) -> Drawn:
    count = round(spec.end_s * spec.rate_per_s)
    return [(int(n / spec.rate_per_s * 1e6), _any_class(spec, rng)) for n in range(count)]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of time in which the rate runs straight from one value to another."""

    begin_s: float
    end_s: float
    first_per_s: float
    last_per_s: float

    @property
    def expected(self) -> float:
        """Arrivals expected in it."""
        return (self.end_s - self.begin_s) * (self.first_per_s + self.last_per_s) / 2

    def when(self, count: float) -> float:
        """Return by when `count` arrivals are expected since its beginning."""
        slope = (self.last_per_s - self.first_per_s) / (self.end_s - self.begin_s)
        root = math.sqrt(max(0.0, self.first_per_s**2 + 2 * slope * count))
        return self.begin_s + 2 * count / (self.first_per_s + root)


def _pieces(spec: TraceSpec) -> Iterator[_Piece]:
    begin_s, end_s = change_of(spec) or (0.0, 0.0)
    usual, other = spec.rate_per_s, spec.rate_per_s * spec.factor
    if begin_s > 0:
        yield _Piece(0.0, begin_s, usual, usual)
    yield _Piece(begin_s, end_s, usual if spec.kind == "ramp" else other, other)
    if end_s < spec.end_s:
        yield _Piece(end_s, spec.end_s, usual, usual)


def _changing(spec: TraceSpec, rng: random.Random) -> Drawn:
    """Draw at rate one in expected arrivals, then go back from expected arrivals to time."""
    drawn: Drawn = []
    ahead = rng.expovariate(1.0)
    for piece in _pieces(spec):
        while ahead < piece.expected:
            drawn.append((int(piece.when(ahead) * 1e6), _any_class(spec, rng)))
            ahead += rng.expovariate(1.0)
        ahead -= piece.expected
    return drawn


_DRAW = {
    "poisson-stratified": _stratified,
    "poisson": _poisson,
    "gamma": _gamma,
    "constant": _constant,
    **dict.fromkeys(CHANGING, _changing),
}


def draw(spec: TraceSpec) -> Drawn:
    """Return (offset in microseconds, class) in time order; the same spec, the same draw."""
    rng = random.Random(f"{GENERATOR}:{spec.kind}:{spec.seed}")
    return _DRAW[spec.kind](spec, rng)
