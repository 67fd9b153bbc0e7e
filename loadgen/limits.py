"""Decides which admission limits the records of a sweep support, and says why.

A limit is supported as far as the records reach: the most that was outstanding on an engine of
one cell in runs whose contracts held. Beyond that nothing is known, so nothing more is given.
What follows from the engine's arguments is taken from them. Tokens and requests are per engine;
times are seconds. Pure: no I/O, no clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.engine.cost import StepCost
from loadgen.quantiles import quantile
from loadgen.record import BenchError, Outcome, RequestRecord

__all__ = ["Asked", "Found", "Gate", "RunSeen", "limits_toml", "run_seen", "supported"]

LOOK_AHEAD = 2
BLOCK_TOKENS = 16
KV_FRACTION = 0.9
KV_FRACTION_PREEMPTED = 0.8
BETA = 0.3
RESERVED_PROMPTS = 4


@dataclass(frozen=True, slots=True)
class RunSeen:
    """What one run showed of its engine.

    `beside` holds, by how many longest-class prompts were in prefill when a shortest-class one
    arrived (2 stands for more), the latter's TTFT in seconds. `alone` are tokens per second of
    prompts that had the prefill to themselves. `kv_usage` is the largest share, if exported.
    """

    run_id: str
    in_flight: int
    prefill_tokens: int
    longest_prefilling: int
    alone: tuple[float, ...]
    beside: Mapping[int, tuple[float, ...]]
    kv_usage: float | None
    preemptions: float


@dataclass(frozen=True, slots=True)
class Gate:
    """What the gateway's configuration adds: its largest prompt, and what its flows reserve."""

    largest_prompt: int
    reserved_slots: int
    reserved_prefill_tokens: int


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose limits, from which files.

    `support` names the strata that the runs are from and how well they held; `digests` the files.
    """

    cell_id: str
    args: Mapping[str, Any]
    class_order: Sequence[str]
    gate: Gate
    cost: StepCost | None
    support: Sequence[str]
    digests: Mapping[str, str]
    kv_tokens: int | None = None


def _prefill_us(record: RequestRecord) -> tuple[int, int] | None:
    """Return when the engine had the prompt until its first event."""
    if record.dispatched_us is None or record.first_event_us is None:
        return None
    queued_us = round((record.queue_ms or 0.0) * 1e3)
    return record.dispatched_us + queued_us, record.first_event_us


Interval = tuple[int, int, int]


def _most(intervals: Sequence[Interval]) -> int:
    """Return the largest sum of weights at one time."""
    steps = sorted(
        [(begin, 1, w) for begin, _, w in intervals] + [(end, 0, -w) for _, end, w in intervals]
    )
    most = now = 0
    for _, _, weight in steps:
        now += weight
        most = max(most, now)
    return most


def _alone(intervals: Sequence[Interval], longest: int) -> Iterator[float]:
    """Yield tokens per second of the largest prompts that no other one's prefill overlaps."""
    latest_end = 0
    own = sorted(intervals)
    for n, (begin, end, tokens) in enumerate(own):
        next_begin = own[n + 1][0] if n + 1 < len(own) else end
        if tokens == longest and begin >= latest_end and next_begin >= end > begin:
            yield tokens / ((end - begin) * 1e-6)
        latest_end = max(latest_end, end)


def _beside(
    records: Sequence[RequestRecord], class_order: Sequence[str]
) -> dict[int, tuple[float, ...]]:
    found: dict[int, list[float]] = {}
    held = [(r, span) for r in records if (span := _prefill_us(r)) is not None]
    longs = [span for r, span in held if r.size_class == class_order[-1]]
    for record, (begin, first) in held:
        if record.size_class == class_order[0]:
            beside = min(2, sum(b < begin < e for b, e in longs))
            found.setdefault(beside, []).append((first - record.planned_us) * 1e-6)
    return {n: tuple(values) for n, values in found.items()}


def run_seen(
    run_id: str,
    records: Sequence[RequestRecord],
    samples: Sequence[Mapping[str, Any]],
    class_order: Sequence[str],
) -> RunSeen:
    """Reduce one run; its ramp counts too, since what ran then ran beside the rest."""
    ok = [r for r in records if r.outcome is Outcome.OK and _prefill_us(r) is not None]
    spans = [(*span, r.prompt_tokens_planned) for r in ok if (span := _prefill_us(r)) is not None]
    whole = [(s[0], r.last_byte_us or s[1], 1) for r, s in zip(ok, spans, strict=True)]
    longs = [(b, e, 1) for (b, e, _), r in zip(spans, ok, strict=True) if _last(r, class_order)]
    engine = [row for row in samples if row.get("source") == "engine" and row.get("up", True)]
    usage = [row["kv_usage"] for row in engine if "kv_usage" in row]
    preempted = [row["preemptions_total"] for row in engine if "preemptions_total" in row]
    return RunSeen(
        run_id,
        _most(whole),
        _most(spans),
        _most(longs),
        tuple(_alone(spans, max((s[2] for s in spans), default=0))),
        _beside(ok, class_order),
        max(usage, default=None),
        max(preempted) - min(preempted) if preempted else 0.0,
    )


def _last(record: RequestRecord, class_order: Sequence[str]) -> bool:
    return record.size_class == class_order[-1]


@dataclass(frozen=True, slots=True)
class Found:
    """The limits and, for each, the line that says what it rests on."""

    limits: Mapping[str, Any]
    beta: float
    caps: Mapping[str, int]
    evidence: Mapping[str, str]


def _kv(asked: Asked) -> int | None:
    """Return the engine's KV tokens; one block is never used."""
    blocks = asked.args.get("num_gpu_blocks_override")
    if asked.kv_tokens is not None:
        return asked.kv_tokens
    return (
        None
        if blocks is None
        else (int(blocks) - 1) * int(asked.args.get("block_size", BLOCK_TOKENS))
    )


def _slots(runs: Sequence[RunSeen], asked: Asked) -> tuple[int, str]:
    seen = max(run.in_flight for run in runs)
    seats = asked.args.get("max_num_seqs")
    most = seen if seats is None else min(seen, int(seats) + LOOK_AHEAD)
    # The reserved ones must leave two, and a quarter of all.
    reserved = asked.gate.reserved_slots
    floor = max(reserved + 2, -(-reserved * 4 // 3))
    said = f"{seen} requests were in flight at once where contracts held"
    if floor > most:
        said += f"; raised to {floor} for the {asked.gate.reserved_slots} reserved slots"
    seats_said = "" if seats is None else f" (max_num_seqs {seats})"
    return max(most, floor), said + seats_said


def _prefill(runs: Sequence[RunSeen], asked: Asked, budget: int) -> tuple[int, str]:
    seen = max(run.prefill_tokens for run in runs)
    gate = asked.gate
    floor = gate.largest_prompt + gate.reserved_prefill_tokens + 2 * budget
    said = f"{seen} prompt tokens were in prefill at once; the floor is {floor}: one prompt of "
    said += f"{gate.largest_prompt}, {gate.reserved_prefill_tokens} reserved, two token budgets"
    return max(seen, floor), said


def _kv_fraction(runs: Sequence[RunSeen]) -> tuple[float, str]:
    usage = [run.kv_usage for run in runs if run.kv_usage is not None]
    preempted = sum(run.preemptions for run in runs)
    seen = f"KV use up to {max(usage):.0%}" if usage else "KV use was not exported"
    said = f"{seen}, {preempted:.0f} preemptions (of engines as a whole)"
    return (KV_FRACTION_PREEMPTED if preempted else KV_FRACTION), said


def _beta(asked: Asked) -> tuple[float, str]:
    cost = asked.cost
    if cost is None or not cost.prefill_token_s:
        return BETA, "the default: no step model was given, and the records alone don't show it"
    beta = cost.decode_sequence_s / cost.prefill_token_s
    context = cost.kv_token_s / cost.prefill_token_s * 1000
    said = (
        f"decode over prefill of the step model; 1,000 tokens of context add {context:.2g}, which "
    )
    return beta, f"{said}is left out since it depends on each request's length"


def _beside_said(runs: Sequence[RunSeen], asked: Asked) -> str:
    pooled: dict[int, list[float]] = {}
    for run in runs:
        for n, values in run.beside.items():
            pooled.setdefault(n, []).extend(values)
    words = {0: "none", 1: "one", 2: "two or more"}
    parts = [
        f"{quantile(values, 0.95):.3f} s beside {words[n]} (n {len(values)})"
        for n, values in sorted(pooled.items())
    ]
    most = max(run.longest_prefilling for run in runs)
    name = asked.class_order[-1]
    said = f"p95 TTFT of {asked.class_order[0]} by {name} prompts in prefill: {', '.join(parts)}"
    return f"{said}; up to {most} were in prefill at once"


def _rate(runs: Sequence[RunSeen]) -> tuple[float | None, str]:
    alone = [rate for run in runs for rate in run.alone]
    if not alone:
        return None, "no prompt had the prefill to itself: take it from bench calibrate-engine"
    return quantile(
        alone, 0.5
    ), f"median of {len(alone)} largest prompts that were alone in prefill"


def supported(runs: Sequence[RunSeen], asked: Asked) -> Found:
    """Return the limits that these runs support.

    Raises:
        BenchError: there are no such runs, or the cell's token budget is unknown.
    """
    if not runs:
        raise BenchError(
            f"limits: no run of {asked.cell_id} is in a stratum whose contracts held: its records "
            "support none"
        )
    budget = asked.args.get("max_num_batched_tokens")
    if budget is None:
        raise BenchError(f"limits: {asked.cell_id}: max_num_batched_tokens is not recorded")
    made: dict[str, tuple[Any, str]] = {
        "slots": _slots(runs, asked),
        "prefill_tokens": _prefill(runs, asked, int(budget)),
        "kv_fraction": _kv_fraction(runs),
        "kv_tokens": (_kv(asked), "the engine's KV cache, from its arguments or its own words"),
        "token_budget": (int(budget), "max_num_batched_tokens"),
        "prefill_tokens_per_s": _rate(runs),
        "policy": (asked.args.get("scheduling_policy", "fcfs"), "scheduling_policy"),
    }
    beta, beta_said = _beta(asked)
    caps = {asked.class_order[-1]: 1} if len(asked.class_order) > 1 else {}
    evidence = {name: said for name, (_, said) in made.items()}
    evidence |= {"beta": beta_said, "caps": _beside_said(runs, asked) if caps else ""}
    return Found({name: value for name, (value, _) in made.items()}, beta, caps, evidence)


def _number(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value) if isinstance(value, int) else repr(float(f"{value:.6g}"))


def limits_toml(found: Found, runs: Sequence[RunSeen], asked: Asked) -> str:
    """Return the limits as TOML for a gateway's configuration, the evidence in comments."""
    lines = [f"# Limits that the records of {asked.cell_id} support: {len(runs)} runs."]
    lines += [f"#   {line}" for line in asked.support]
    lines += [f"# {name}: sha256 {sha256}" for name, sha256 in asked.digests.items()]
    lines += ["", "[limits]"]
    for name, value in found.limits.items():
        lines.append(f"# {found.evidence[name]}")
        lines.append(f"# {name} is unknown" if value is None else f"{name} = {_number(value)}")
    lines += ["", "[scheduling]", f"# {found.evidence['beta']}", f"beta = {_number(found.beta)}"]
    for name, cap in found.caps.items():
        lines += ["", f"[size.{name}]", f"# {found.evidence['caps']}"]
        lines.append(f"max_prefilling_per_engine = {cap}")
    return "\n".join([*lines, ""])
