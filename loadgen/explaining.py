"""Gathers the numbers that the explaining table walks: waits, stalls, preemptions, starvation.

Per unit and stratum, over its valid runs. Preemptions are of whole engines: which class caused them
is not known. Without recorded oldest ages nothing is claimed about fairness.
Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.record import Outcome

__all__ = ["explain"]

Json = dict[str, Any]
STARVED = (Outcome.UNFINISHED, Outcome.TIMEOUT, Outcome.EXPIRED)


def _largest(runs: Sequence[Mapping[str, Any]], key: str) -> Json:
    names = sorted({name for run in runs for name in run.get(key, {})})
    return {name: max(run.get(key, {}).get(name, 0.0) for run in runs) for name in names}


def _preempted(runs: Sequence[Mapping[str, Any]]) -> Json | None:
    told = [e["preemptions"] for r in runs for e in r.get("engines", ()) if "preemptions" in e]
    if not told:
        return None
    usage = [e["max_kv_usage"] for r in runs for e in r["engines"] if "max_kv_usage" in e]
    found: Json = {
        "delta": sum(t["delta"] for t in told),
        "restarts": sum(t["restarts"] for t in told),
        "runs": len(runs),
    }
    return {**found, "max_kv_usage": max(usage)} if usage else found


def _class_row(row: Mapping[str, Any]) -> Json:
    outcomes = row["outcomes"]
    return {
        "offered": row["offered"],
        "met": row["met"],
        "attainment": row.get("attainment"),
        "goodput_per_s": row["goodput_per_s"],
        "ttft_p95": row["ttft_s"]["offered"]["p95"],
        "ttft_p95_accepted": row["ttft_s"]["accepted"]["p95"],
        "stall_p95": row["max_stall_s"]["offered"]["p95"],
        "e2e_p95": row["e2e_s"]["offered"]["p95"],
        "refused": row["refused"],
        "starved": sum(outcomes[o.value] for o in STARVED),
        **{k: row[k] for k in ("tokens_per_event", "ttft_parts") if k in row},
    }


def _stratum(
    key: tuple[str, str, str],
    rows: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
) -> Json:
    unit, mix, rate = key
    found: Json = {
        "cell_id": unit,
        "mix": mix,
        "rate": rate,
        "classes": {r["size_class"]: _class_row(r) for r in rows},
        "goodput_per_s": sum(r["goodput_per_s"] for r in rows),
        "oldest_age_s": _largest(runs, "oldest_age_s"),
        "oldest_unanswered_s": _largest(runs, "oldest_unanswered_s"),
        "queue_depth": _largest(runs, "queue_depth"),
    }
    preempted = _preempted(runs)
    return {**found, "preemptions": preempted} if preempted else found


def explain(
    rows: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]], base: str
) -> Json:
    """Return the table's numbers per unit and stratum.

    Args:
        rows: the strata's, per class.
        runs: the rows of the valid runs.
        base: the baseline's name.
    """
    by_key: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        by_key.setdefault((row["cell_id"], row["mix"], row["rate"]), []).append(row)
    own: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        own.setdefault((run["unit"], run.get("mix", ""), run.get("rate", "")), []).append(run)
    ages = bool(runs) and all(run.get("oldest_age_s") for run in runs)
    return {
        "base": base,
        "ages_recorded": ages,
        "fairness": "oldest waits recorded"
        if ages
        else "no fairness claim: no oldest ages recorded",
        "strata": [_stratum(key, found, own.get(key, ())) for key, found in by_key.items()],
    }
