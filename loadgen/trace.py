"""Draws open-loop arrivals once, from a seed, before anything runs.

`poisson-stratified`: in every block the number of arrivals and of each class is exact, the times
uniform in the block, the order of the classes shuffled. A block is 10 s, or the whole interval
where that is no multiple of 10 s; ramp and window each begin one. Bursts longer than a block are
thereby removed, on purpose: without it the luck of a trace dominates what is compared.
`poisson` and `constant` stand beside it. Offsets are integer microseconds from the run's start.
The encoding is a superset of Mooncake's JSONL; `extra.offset_us` is canonical.
Pure: no I/O, no clock.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from loadgen.record import BenchError, Prompt, canonical, digest, strict_json

__all__ = [
    "KINDS",
    "Arrival",
    "TraceSpec",
    "build_trace",
    "class_counts",
    "decode_trace",
    "draw",
    "encode_trace",
    "shorts_only",
    "trace_manifest",
]

GENERATOR = "sluicegate-trace-1"
BLOCK_S = 10.0
KINDS = ("poisson-stratified", "poisson", "constant")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One planned request: when, of which class and size, with which prompt."""

    seq: int
    size_class: str
    offset_us: int
    input_tokens: int
    output_tokens: int
    prompt_sha256: str


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """What to draw. `mix` gives each class its share by count; the shares sum to one."""

    kind: str
    seed: int
    rate_per_s: float
    mix: tuple[tuple[str, float], ...]
    ramp_s: float
    window_s: float

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if self.kind not in KINDS:
            raise BenchError(f"trace kind {self.kind!r}: expected one of {', '.join(KINDS)}")
        if abs(sum(share for _, share in self.mix) - 1.0) > 1e-9:
            raise BenchError(f"trace mix {dict(self.mix)}: the shares must sum to 1")
        if self.rate_per_s <= 0 or self.window_s <= 0 or self.ramp_s < 0:
            raise BenchError("trace: rate and window must be positive, the ramp not negative")


Drawn = list[tuple[int, str]]


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


def _any_class(spec: TraceSpec, rng: random.Random) -> str:
    names = [name for name, _ in spec.mix]
    return rng.choices(names, weights=[share for _, share in spec.mix])[0]


def _poisson(spec: TraceSpec, rng: random.Random) -> Drawn:
    drawn: Drawn = []
    at_s, end_s = rng.expovariate(spec.rate_per_s), spec.ramp_s + spec.window_s
    while at_s < end_s:
        drawn.append((int(at_s * 1e6), _any_class(spec, rng)))
        at_s += rng.expovariate(spec.rate_per_s)
    return drawn


def _constant(spec: TraceSpec, rng: random.Random) -> Drawn:
    count = round((spec.ramp_s + spec.window_s) * spec.rate_per_s)
    return [(int(n / spec.rate_per_s * 1e6), _any_class(spec, rng)) for n in range(count)]


def draw(spec: TraceSpec) -> Drawn:
    """Return (offset in microseconds, class) in time order; the same spec, the same draw."""
    rng = random.Random(f"{GENERATOR}:{spec.kind}:{spec.seed}")
    if spec.kind == "poisson":
        return _poisson(spec, rng)
    if spec.kind == "constant":
        return _constant(spec, rng)
    ramp = _stratified_interval(spec, 0.0, spec.ramp_s, rng)
    return ramp + _stratified_interval(spec, spec.ramp_s, spec.window_s, rng)


def class_counts(spec: TraceSpec) -> dict[str, int]:
    """Return how many prompts of each class the trace needs."""
    counts = Counter(name for _, name in draw(spec))
    return {name: counts[name] for name, _ in spec.mix}


def build_trace(spec: TraceSpec, prompts: Mapping[str, Sequence[Prompt]]) -> tuple[Arrival, ...]:
    """Give each drawn arrival the next unused prompt of its class.

    Raises:
        BenchError: the corpus has too few prompts of a class.
    """
    used: Counter[str] = Counter()
    arrivals = []
    for seq, (offset_us, name) in enumerate(draw(spec)):
        own = prompts.get(name, ())
        if used[name] >= len(own):
            raise BenchError(
                f"corpus: {len(own)} prompts of class {name} are too few for the trace, which "
                f"needs {sum(drawn == name for _, drawn in draw(spec))}"
            )
        prompt = own[used[name]]
        used[name] += 1
        size = prompt.prompt_tokens, prompt.output_tokens
        arrivals.append(Arrival(seq, name, offset_us, *size, prompt.sha256))
    return tuple(arrivals)


def shorts_only(trace: Sequence[Arrival], keep: str = "short") -> tuple[Arrival, ...]:
    """Delete every other class: the paired control, arrivals and prompts unchanged."""
    return tuple(a for a in trace if a.size_class == keep)


def _row(arrival: Arrival) -> dict[str, Any]:
    return {
        "timestamp": round(arrival.offset_us / 1000, 3),
        "input_length": arrival.input_tokens,
        "output_length": arrival.output_tokens,
        "session_id": f"s{arrival.seq}",
        "extra": {
            "class": arrival.size_class,
            "seq": arrival.seq,
            "offset_us": arrival.offset_us,
            "prompt_sha256": arrival.prompt_sha256,
        },
    }


def encode_trace(trace: Sequence[Arrival]) -> bytes:
    """Encode as JSONL, one arrival a line."""
    return b"".join(canonical(_row(a)) for a in trace)


def _arrival(line: bytes, name: str) -> Arrival:
    row = strict_json(line, name)
    try:
        extra, size = row["extra"], (row["input_length"], row["output_length"])
        return Arrival(
            extra["seq"], extra["class"], extra["offset_us"], *size, extra["prompt_sha256"]
        )
    except (KeyError, TypeError) as error:
        raise BenchError(f"{name}: not a trace line ({error!r})") from error


def decode_trace(data: bytes, name: str) -> tuple[Arrival, ...]:
    """Decode a trace and check that its offsets never go back.

    Raises:
        BenchError: a line is malformed or out of order; the message names file and line.
    """
    lines = data.split(b"\n")[:-1]
    trace = tuple(_arrival(line, f"{name} line {n}") for n, line in enumerate(lines, start=1))
    for n, (before, after) in enumerate(pairwise(trace), start=2):
        if after.offset_us < before.offset_us:
            raise BenchError(f"{name} line {n}: its offset lies before the line above")
    return trace


def trace_manifest(spec: TraceSpec, trace: Sequence[Arrival], corpus_sha256: str) -> dict[str, Any]:
    """Describe a trace: how it was drawn, what it counts, which corpus and bytes it names."""
    observed = Counter(a.size_class for a in trace if a.offset_us >= spec.ramp_s * 1e6)
    return {
        "generator": GENERATOR,
        "kind": spec.kind,
        "seed": spec.seed,
        "rate_per_s": spec.rate_per_s,
        "mix": dict(spec.mix),
        "ramp_s": spec.ramp_s,
        "window_s": spec.window_s,
        "block_s": BLOCK_S,
        "arrivals": len(trace),
        "observed": dict(observed),
        "corpus_sha256": corpus_sha256,
        "trace_sha256": digest(encode_trace(trace)),
    }
