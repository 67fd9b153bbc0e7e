"""Computes what a run showed, per class, from its records alone.

Latency counts from the planned arrival. Quantiles are by nearest rank. The offered view counts
every offered request that is not ok as unbounded; the accepted view holds the ok ones only, the
refused count beside it. Absent means not measured, null means measured and unbounded.
Pure: no I/O, no clock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from loadgen.breakdown import ttft_parts
from loadgen.facts import MEASURES, ClassFacts, RunFacts, class_facts, views
from loadgen.quantiles import LEVELS, quantile, summary
from loadgen.record import BenchError, Outcome, RequestRecord
from loadgen.sample_summary import (
    engines,
    oldest_ages,
    oldest_unanswered,
    prefix_counters,
    prefix_hit_share,
    queue_depths,
)

__all__ = [
    "analyse",
    "analyse_class",
    "analyse_run",
    "client_faults",
    "quantile",
    "reduce_run",
    "unit_of",
]

Json = dict[str, Any]
# Beyond these the client, not the server, shaped what was measured.
LAG_P99_MS, LAG_MAX_MS, LOOP_LAG_MS, CPU_SHARE = 5.0, 50.0, 25.0, 0.85
COPIED = (
    "run_id",
    "name",
    "label",
    "cell_id",
    "arm",
    "topology",
    "mix",
    "rate",
    "repeat",
    "trace",
    "control",
    "pools",
)
PREFIX_HITS_NOTED = 0.01
UNIT_KEYS = {"arms": "arm", "topology": "topology"}


def _gaps_s(records: Iterable[RequestRecord]) -> list[float]:
    pairs = (pairwise(r.event_us) for r in records if r.event_us)
    return [(b - a) / 1e6 for pair in pairs for a, b in pair]


def _class_row(records: Sequence[RequestRecord], facts: ClassFacts, observation_s: float) -> Json:
    ok = [r for r in records if r.outcome is Outcome.OK]
    row = {**views(facts, observation_s), "chunk_gap_s": summary(_gaps_s(ok))}
    parts = ttft_parts(ok)
    return {**row, "ttft_parts": parts} if parts else row


def analyse_class(
    records: Sequence[RequestRecord], limits: Mapping[str, Any], observation_s: float
) -> Json:
    """Return counts, quantiles and goodput of one class over the observation.

    Args:
        records: every request of the class that was planned inside the observation.
        limits: the contract of the class.
        observation_s: its fixed length.
    """
    return _class_row(records, class_facts(records, limits), observation_s)


def _lags_ms(records: Iterable[RequestRecord]) -> list[float]:
    return [
        (r.dispatched_us - r.planned_us - (r.connect_wait_us or 0)) / 1e3
        for r in records
        if r.dispatched_us is not None
    ]


def client_faults(
    records: Sequence[RequestRecord],
    samples: Sequence[Mapping[str, Any]],
    planned: int,
    *,
    virtual: bool = False,
) -> list[str]:
    """Return why the client's own conduct invalidates a run; empty if it does not.

    Server behaviour never appears here: a server that crashes must not be rerun until it looks
    good. Waiting for a connection is the server's part of the dispatch.

    Args:
        records: of all requests, ramp included.
        samples: the rows of every second.
        planned: how many arrivals the trace holds.
        virtual: the run took no real time, so there was no loop and no processor to watch.
    """
    lags = _lags_ms(records) or [0.0]
    seconds = [s for s in samples if s.get("source") == "client"]
    nothing = 0.0 if virtual else math.inf
    loop_ms = max((s["loop_lag_ms"] for s in seconds), default=nothing)
    share = max((s["cpu_share"] for s in seconds), default=nothing)
    unsent = sum(r.outcome in {Outcome.NOT_SENT, Outcome.CANCELLED} for r in records)
    p99 = quantile(lags, 0.99)
    checks = (
        (len(records) != planned, f"offered {len(records)} requests, planned {planned}"),
        (unsent > 0, f"{unsent} requests were not sent or were cancelled by the client"),
        (p99 > LAG_P99_MS, f"dispatch lag p99 {p99:.1f} ms, limit {LAG_P99_MS:.0f} ms"),
        (max(lags) > LAG_MAX_MS, f"dispatch lag max {max(lags):.1f} ms, limit {LAG_MAX_MS:.0f} ms"),
        (loop_ms > LOOP_LAG_MS, f"loop lag {loop_ms:.1f} ms, limit {LOOP_LAG_MS:.0f} ms"),
        (
            share > CPU_SHARE,
            f"client used {share:.0%} of a core in a second, limit {CPU_SHARE:.0%}",
        ),
    )
    return [reason for failed, reason in checks if failed]


def _equality(records: Sequence[RequestRecord], reported: str, planned: str) -> Json:
    told = [r for r in records if getattr(r, reported) is not None]
    return {
        "equal": sum(getattr(r, reported) == getattr(r, planned) for r in told),
        "of": len(told),
    }


def _checks(
    records: Sequence[RequestRecord],
    samples: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    plan_kind: str,
) -> list[str]:
    """What should hold and does not; shown, and never a reason to run again."""
    prompt = _equality(records, "prompt_tokens_reported", "prompt_tokens_planned")
    ok = [r for r in records if r.outcome is Outcome.OK]
    output = _equality(ok, "completion_tokens_reported", "completion_tokens_planned")
    hits = prefix_hit_share(samples) or 0.0
    checks = (
        (prompt["equal"] < prompt["of"], f"prompt tokens differ from plan: {_short(prompt)}"),
        (
            bool(config.get("synthetic_length")) and output["equal"] < output["of"],
            f"output tokens differ from plan: {_short(output)}",
        ),
        (
            hits >= PREFIX_HITS_NOTED and plan_kind != "prefix_reuse",
            f"prefix cache served {hits:.1%} of prompt tokens",
        ),
    )
    return [said for failed, said in checks if failed]


def _short(equality: Json) -> str:
    return f"{equality['of'] - equality['equal']} of {equality['of']}"


def unit_of(run: Mapping[str, Any], plan_kind: str) -> str:
    """Return what a run is one measurement of: its policy arm, its topology or its cell."""
    return str(run[UNIT_KEYS.get(plan_kind, "cell_id")])


def _facts(
    observed: Sequence[RequestRecord], plan: Mapping[str, Any]
) -> dict[str, tuple[list[RequestRecord], ClassFacts]]:
    names = dict.fromkeys(r.size_class for r in observed)
    if missing := [n for n in names if n not in plan["contract"]]:
        raise BenchError(f"plan: class {missing[0]} has no contract")
    intervals = plan["intervals"]
    end_s = intervals["ramp_s"] + intervals["window_s"]
    by_class = {n: [r for r in observed if r.size_class == n] for n in names}
    return {n: (own, class_facts(own, plan["contract"][n], end_s)) for n, own in by_class.items()}


def reduce_run(
    run: Mapping[str, Any],
    plan: Mapping[str, Any],
    planned: int,
    records: Sequence[RequestRecord],
    samples: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any] | None = None,
) -> RunFacts:
    """Reduce a run to what it showed: the row that is printed, and its classes' values.

    Args:
        run: its entry in the plan.
        plan: the whole plan, for contracts and intervals.
        planned: how many arrivals its trace holds.
        records: of all requests, ramp included.
        samples: the rows of every second.
        config: what the run was, as recorded.

    Raises:
        BenchError: a class has no contract.
    """
    config = config or {}
    facts = _facts([r for r in records if r.phase == "observed"], plan)
    window_s, lags = plan["intervals"]["window_s"], _lags_ms(records) or [0.0]
    virtual = bool(config.get("virtual"))
    faults = client_faults(records, samples, planned, virtual=virtual)
    row = {
        **{k: run[k] for k in COPIED if k in run},
        "unit": unit_of(run, plan["kind"]),
        "valid": not faults,
        "faults": faults,
        "checks": _checks(records, samples, config, plan["kind"]),
        "classes": {n: _class_row(own, made, window_s) for n, (own, made) in facts.items()},
        "prompt_tokens": _equality(records, "prompt_tokens_reported", "prompt_tokens_planned"),
        "dispatch_lag_ms": {**{k: quantile(lags, q) for k, q in LEVELS.items()}, "max": max(lags)},
        "oldest_age_s": oldest_ages(samples),
        "oldest_unanswered_s": oldest_unanswered(samples),
        "queue_depth": queue_depths(samples),
        "engines": engines(samples),
        **{k: config[k] for k in ("effective_source", "incompatible") if k in config},
        **({"virtual": True} if virtual else {}),
        **_engines_cache(samples, plan["kind"]),
    }
    return RunFacts(
        run_id=run["run_id"],
        unit=unit_of(run, plan["kind"]),
        mix=run.get("mix", ""),
        rate=run.get("rate", ""),
        repeat=run["repeat"],
        row=row,
        classes={n: made for n, (_, made) in facts.items()},
    )


def _engines_cache(samples: Sequence[Mapping[str, Any]], plan_kind: str) -> Json:
    """What the engines' own counters say of their prefix caches, where these are the subject."""
    found = prefix_counters(samples) if plan_kind == "prefix_reuse" else None
    return {} if found is None else {"prefix_cache": found}


def analyse_run(
    run: Mapping[str, Any],
    plan: Mapping[str, Any],
    planned: int,
    records: Sequence[RequestRecord],
    samples: Sequence[Mapping[str, Any]],
) -> Json:
    """Return everything a run showed; the arguments are those of `reduce_run`."""
    return reduce_run(run, plan, planned, records, samples).row


def _p95(analysed: Mapping[str, Any], size_class: str, measure: str) -> float | None:
    found = analysed["classes"].get(size_class, {}).get(measure, {})
    value = found.get("offered", {}).get("p95", {}).get("value")
    return None if value is None else float(value)


def _change(base: Json, other: Json, size_class: str) -> Json:
    change: Json = {"run_id": other["run_id"], "class": size_class, "against": base["run_id"]}
    for measure in MEASURES:
        before, after = _p95(base, size_class, measure), _p95(other, size_class, measure)
        if before and after:
            change[f"{measure.removesuffix('_s')}_p95_ratio"] = after / before
    before_met, after_met = (r["classes"][size_class]["goodput_per_s"] for r in (base, other))
    return {**change, "goodput_per_s_difference": after_met - before_met}


def analyse(plan: Mapping[str, Any], inputs: Mapping[str, Any], analysed: Sequence[Json]) -> Json:
    """Join the runs: each way against the first, per class.

    Args:
        plan: the plan they belong to.
        inputs: digests of all files that were read.
        analysed: what `analyse_run` returned, in the plan's order.
    """
    base = analysed[0]
    changes = [
        _change(base, other, name)
        for other in analysed[1:]
        for name in other["classes"]
        if name in base["classes"]
    ]
    return {
        "kind": "analysis",
        "plan_kind": plan["kind"],
        "synthetic": plan["synthetic"],
        "inputs": inputs,
        "contract": plan["contract"],
        "intervals": plan["intervals"],
        "rate_per_s": plan["rate_per_s"],
        "rounds": plan["rounds"],
        "class_order": sorted(plan["demands"], key=lambda n: plan["demands"][n]["prompt_tokens"]),
        "runs": list(analysed),
        "changes": changes,
    }
