"""Computes what a run showed, per class, from its records alone.

Latency counts from the planned arrival. Quantiles are by nearest rank. The offered view counts
every offered request that is not ok as unbounded: `{"value": null, "failed": n}` with the largest
finite value as `above_s`; the accepted view holds the ok ones only, the refused count beside it. A
quantile with too few requests to mean anything is `{"too_few": true}` with its n. Absent means
not measured, null means measured and unbounded. Pure: no I/O, no clock.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from loadgen.record import BenchError, Outcome, RequestRecord

__all__ = ["analyse", "analyse_class", "analyse_run", "client_faults", "counter_delta", "quantile"]

Json = dict[str, Any]
# With fewer requests the rank of the quantile is the maximum: n such that q^n < 0.05.
NEEDED = {"p50": 1, "p95": 59, "p99": 299}
LEVELS = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
NOT_ACCEPTED = frozenset({Outcome.REJECTED, Outcome.EXPIRED, Outcome.NOT_SENT})
# Beyond these the client, not the server, shaped what was measured.
LAG_P99_MS, LAG_MAX_MS, LOOP_LAG_MS, CPU_SHARE = 5.0, 50.0, 25.0, 0.85


def quantile(values: Sequence[float], q: float) -> float:
    """Return the nearest-rank quantile of a non-empty sequence; never interpolated."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(q * len(ordered) - 1e-9)) - 1]


def _cell(values: Sequence[float], name: str) -> Json:
    n = len(values)
    if n < NEEDED[name]:
        return {"too_few": True, "n": n, "needs": NEEDED[name]}
    value = quantile(values, LEVELS[name])
    if math.isfinite(value):
        return {"value": value}
    finite = [v for v in values if math.isfinite(v)]
    failed: Json = {"value": None, "failed": n - len(finite)}
    return {**failed, "above_s": max(finite)} if finite else failed


def _quantiles(values: Sequence[float]) -> Json:
    return {"n": len(values), **{name: _cell(values, name) for name in LEVELS}}


def _ttft_s(record: RequestRecord) -> float | None:
    at = record.first_event_us
    return None if at is None else (at - record.planned_us) / 1e6


def _e2e_s(record: RequestRecord) -> float | None:
    at = record.last_byte_us
    return None if at is None else (at - record.planned_us) / 1e6


def _stall_s(record: RequestRecord) -> float | None:
    return None if record.max_stall_us is None else record.max_stall_us / 1e6


MEASURES = {"ttft_s": _ttft_s, "e2e_s": _e2e_s, "max_stall_s": _stall_s}


def _view(records: Sequence[RequestRecord], name: str) -> Json:
    measure = MEASURES[name]
    ok = [v for r in records if r.outcome is Outcome.OK and (v := measure(r)) is not None]
    failed = [math.inf for r in records if r.outcome is not Outcome.OK]
    return {"offered": _quantiles(ok + failed), "accepted": _quantiles(ok)}


def _meets(record: RequestRecord, limits: Mapping[str, float]) -> bool:
    if record.outcome is not Outcome.OK:
        return False
    measured = ((measure(record), limits[name]) for name, measure in MEASURES.items())
    return all(value is None or value <= limit for value, limit in measured)


def _gaps_s(records: Iterable[RequestRecord]) -> list[float]:
    pairs = (pairwise(r.event_us) for r in records if r.event_us)
    return [(b - a) / 1e6 for pair in pairs for a, b in pair]


def analyse_class(
    records: Sequence[RequestRecord], limits: Mapping[str, float], observation_s: float
) -> Json:
    """Return counts, quantiles and goodput of one class over the observation.

    Args:
        records: every request of the class that was planned inside the observation.
        limits: the contract of the class.
        observation_s: its fixed length.
    """
    counts = Counter(r.outcome for r in records)
    codes = Counter(f"{r.outcome}:{r.outcome_code}" for r in records if r.outcome_code)
    ok = [r for r in records if r.outcome is Outcome.OK]
    met = sum(_meets(r, limits) for r in records)
    offered, accepted = len(records), sum(r.outcome not in NOT_ACCEPTED for r in records)
    # A class that was offered nothing has no ratio: absent, not zero and not one.
    ratio = (
        {"attainment": met / offered, "accepted_over_offered": accepted / offered}
        if offered
        else {}
    )
    return {
        "offered": offered,
        "accepted": accepted,
        "outcomes": {o.value: counts[o] for o in Outcome},
        "codes": dict(codes),
        **{name: _view(records, name) for name in MEASURES},
        "chunk_gap_s": _quantiles(_gaps_s(ok)),
        "stall_absent": sum(r.max_stall_us is None for r in ok),
        "met": met,
        "goodput_per_s": met / observation_s,
        **ratio,
    }


def _lags_ms(records: Iterable[RequestRecord]) -> list[float]:
    return [
        (r.dispatched_us - r.planned_us - (r.connect_wait_us or 0)) / 1e3
        for r in records
        if r.dispatched_us is not None
    ]


def client_faults(
    records: Sequence[RequestRecord], samples: Sequence[Mapping[str, Any]], planned: int
) -> list[str]:
    """Return why the client's own conduct invalidates a run; empty if it does not.

    Server behaviour never appears here: a server that crashes must not be rerun until it looks
    good. Waiting for a connection is the server's part of the dispatch.
    """
    lags = _lags_ms(records) or [0.0]
    seconds = [s for s in samples if s.get("source") == "client"]
    loop_ms = max((s["loop_lag_ms"] for s in seconds), default=math.inf)
    share = max((s["cpu_share"] for s in seconds), default=math.inf)
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


def counter_delta(rows: Sequence[Mapping[str, Any]], key: str) -> Json | None:
    """Return a counter's rise and its restarts: a fall begins again from zero."""
    values = [row[key] for row in rows if key in row]
    if not values:
        return None
    steps = list(pairwise(values))
    rise = sum(b - a if b >= a else b for a, b in steps)
    return {"delta": rise, "restarts": sum(b < a for a, b in steps)}


def _engines(samples: Sequence[Mapping[str, Any]]) -> list[Json]:
    rows = [s for s in samples if s.get("source") == "engine"]
    found = []
    for number in sorted({r["engine"] for r in rows}):
        own = [r for r in rows if r["engine"] == number]
        summary = {
            "engine": number,
            "scrapes_failed": sum(not r["up"] for r in own),
            "max_running": max((r["running"] for r in own if "running" in r), default=None),
            "max_waiting": max((r["waiting"] for r in own if "waiting" in r), default=None),
            "preemptions": counter_delta(own, "preemptions_total"),
        }
        found.append({k: v for k, v in summary.items() if v is not None})
    return found


def _oldest_ages(samples: Sequence[Mapping[str, Any]]) -> Json:
    rows = [s["oldest_age_s"] for s in samples if s.get("source") == "gateway" and s["up"]]
    names = sorted({name for row in rows for name in row})
    return {name: max(row.get(name, 0.0) for row in rows) for name in names}


def _prompt_equality(records: Sequence[RequestRecord]) -> Json:
    told = [r for r in records if r.prompt_tokens_reported is not None]
    equal = sum(r.prompt_tokens_reported == r.prompt_tokens_planned for r in told)
    return {"equal": equal, "of": len(told)}


def analyse_run(
    run: Mapping[str, Any],
    plan: Mapping[str, Any],
    planned: int,
    records: Sequence[RequestRecord],
    samples: Sequence[Mapping[str, Any]],
) -> Json:
    """Return everything a run showed.

    Args:
        run: its entry in the plan.
        plan: the whole plan, for contracts and intervals.
        planned: how many arrivals its trace holds.
        records: of all requests, ramp included.
        samples: the rows of every second.

    Raises:
        BenchError: a class has no contract.
    """
    faults = client_faults(records, samples, planned)
    observed = [r for r in records if r.phase == "observed"]
    names = dict.fromkeys(r.size_class for r in observed)
    if missing := [n for n in names if n not in plan["contract"]]:
        raise BenchError(f"plan: class {missing[0]} has no contract")
    window_s, lags = plan["intervals"]["window_s"], _lags_ms(records) or [0.0]
    classes = {
        n: analyse_class([r for r in observed if r.size_class == n], plan["contract"][n], window_s)
        for n in names
    }
    return {
        **{k: run[k] for k in ("run_id", "name", "label", "cell_id", "repeat", "control", "pools")},
        "valid": not faults,
        "faults": faults,
        "classes": classes,
        "prompt_tokens": _prompt_equality(records),
        "dispatch_lag_ms": {**{k: quantile(lags, q) for k, q in LEVELS.items()}, "max": max(lags)},
        "oldest_age_s": _oldest_ages(samples),
        "engines": _engines(samples),
    }


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
