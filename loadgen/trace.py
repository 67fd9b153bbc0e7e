"""Turns drawn arrivals into a trace file and back: which prompt each request takes.

The encoding is a superset of Mooncake's JSONL, so that its tools can replay it;
`extra.offset_us`, whole microseconds from the run's start, is canonical and `timestamp` the same
in milliseconds. Pure: no I/O, no clock.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from loadgen.arrivals import BLOCK_S, GENERATOR, KINDS, TraceSpec, change_of, draw
from loadgen.record import BenchError, Prompt, canonical, digest, strict_json

__all__ = [
    "KINDS",
    "Arrival",
    "TraceSpec",
    "assign",
    "build_trace",
    "class_counts",
    "decode_trace",
    "draw",
    "encode_trace",
    "keep_classes",
    "planned_part",
    "recorded_manifest",
    "shorts_only",
    "trace_manifest",
]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One planned request: when, of which class and size, with which prompt.

    Where prompts begin alike on purpose, `session` says which, and `hash_ids` number the blocks of
    the prompt: an equal number means that everything up to the block's end is equal.
    """

    seq: int
    size_class: str
    offset_us: int
    input_tokens: int
    output_tokens: int
    prompt_sha256: str
    session: str | None = None
    hash_ids: tuple[int, ...] = ()


def class_counts(spec: TraceSpec) -> dict[str, int]:
    """Return how many prompts of each class the trace needs."""
    counts = Counter(name for _, name in draw(spec))
    return {name: counts[name] for name, _ in spec.mix}


def build_trace(spec: TraceSpec, prompts: Mapping[str, Sequence[Prompt]]) -> tuple[Arrival, ...]:
    """Give each drawn arrival the next unused prompt of its class.

    Raises:
        BenchError: the corpus has too few prompts of a class.
    """
    return assign(draw(spec), prompts)


def assign(
    drawn: Sequence[tuple[int, str]], prompts: Mapping[str, Sequence[Prompt]]
) -> tuple[Arrival, ...]:
    """Give each (offset in microseconds, class) the next unused prompt of its class.

    Raises:
        BenchError: there are too few prompts of a class.
    """
    needed = Counter(name for _, name in drawn)
    for name, count in needed.items():
        if count > len(prompts.get(name, ())):
            raise BenchError(
                f"corpus: {len(prompts.get(name, ()))} prompts of class {name} are too few for "
                f"the trace, which needs {count}"
            )
    own = {name: iter(prompts[name]) for name in needed}
    arrivals = []
    for seq, (offset_us, name) in enumerate(drawn):
        prompt = next(own[name])
        size = prompt.prompt_tokens, prompt.output_tokens
        arrivals.append(Arrival(seq, name, offset_us, *size, prompt.sha256, prompt.session))
    return tuple(arrivals)


def shorts_only(trace: Sequence[Arrival], keep: str = "short") -> tuple[Arrival, ...]:
    """Delete every other class: the paired control, arrivals and prompts unchanged."""
    return keep_classes(trace, (keep,))


def keep_classes(trace: Sequence[Arrival], keep: Sequence[str]) -> tuple[Arrival, ...]:
    """Delete every class but these, arrivals, numbers and prompts unchanged."""
    return tuple(a for a in trace if a.size_class in keep)


def planned_part(arrival: Arrival, ramp_s: float) -> dict[str, Any]:
    """Return the fields of a request's record that are planned; see `RequestRecord`.

    Args:
        arrival: the request.
        ramp_s: arrivals before this are not observed.
    """
    return {
        "seq": arrival.seq,
        "size_class": arrival.size_class,
        "phase": "ramp" if arrival.offset_us < ramp_s * 1e6 else "observed",
        "planned_us": arrival.offset_us,
        "prompt_tokens_planned": arrival.input_tokens,
        "completion_tokens_planned": arrival.output_tokens,
        "prompt_sha256": arrival.prompt_sha256,
    }


def _own_session(seq: int) -> str:
    """The name of a session that holds nothing but one request."""
    return f"s{seq}"


def _row(arrival: Arrival) -> dict[str, Any]:
    return {
        "timestamp": round(arrival.offset_us / 1000, 3),
        "input_length": arrival.input_tokens,
        "output_length": arrival.output_tokens,
        "session_id": _own_session(arrival.seq) if arrival.session is None else arrival.session,
        **({"hash_ids": list(arrival.hash_ids)} if arrival.hash_ids else {}),
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
        seq, session = extra["seq"], row.get("session_id")
        return Arrival(
            seq,
            extra["class"],
            extra["offset_us"],
            *size,
            extra["prompt_sha256"],
            None if session == _own_session(seq) else session,
            tuple(row.get("hash_ids", ())),
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


def _shape_of(spec: TraceSpec) -> dict[str, Any]:
    """Return what only some kinds have: the gaps' burstiness, and when the rate changes."""
    shape: dict[str, Any] = {"burstiness": spec.burstiness} if spec.kind == "gamma" else {}
    if (change := change_of(spec)) is not None:
        shape |= {"factor": spec.factor, "changes_s": list(change)}
    return shape


def trace_manifest(spec: TraceSpec, trace: Sequence[Arrival], corpus_sha256: str) -> dict[str, Any]:
    """Describe a trace: how it was drawn, what it counts, which corpus and bytes it names."""
    return {
        "kind": spec.kind,
        "seed": spec.seed,
        "rate_per_s": spec.rate_per_s,
        "mix": dict(spec.mix),
        "window_s": spec.window_s,
        "block_s": BLOCK_S,
        **_shape_of(spec),
        **_counted(spec.ramp_s, trace, corpus_sha256),
    }


def recorded_manifest(
    rate_per_s: float, ramp_s: float, trace: Sequence[Arrival], corpus_sha256: str
) -> dict[str, Any]:
    """Describe a trace that replays recorded times and sizes, stretched to a mean rate."""
    told = {"kind": "replay", "rate_per_s": rate_per_s}
    return {**told, **_counted(ramp_s, trace, corpus_sha256)}


def _counted(ramp_s: float, trace: Sequence[Arrival], corpus_sha256: str) -> dict[str, Any]:
    observed = Counter(a.size_class for a in trace if a.offset_us >= ramp_s * 1e6)
    return {
        "generator": GENERATOR,
        "ramp_s": ramp_s,
        "arrivals": len(trace),
        "observed": dict(observed),
        "corpus_sha256": corpus_sha256,
        "trace_sha256": digest(encode_trace(trace)),
    }
