"""Judges a rehearsed rollback: what was seen of it, against its thresholds, as one sealed record.

A rehearsal has four phases: *before* (nothing moved), *canary*, *flip* and *rollback*. A request
belongs to the phase in which it arrived; what it counts for is the watch's own rule
(``watch.tally``). A phase in which the pool that it is about served too few requests proves
nothing, and the rehearsal fails. What is asked:

* after the rollback no request goes to the candidate, the first goes to the baseline soon, and the
  last that the candidate still had ends soon; none is cut off by the drain;
* in each phase few enough fail, are refused, come late or stall; nobody waits too long; within a
  bound of seconds after the rollback everybody is served well again;
* the prompts that a cold pool gets at once do not fill its room for prefill;
* the baseline answers in both classes afterwards, and everything is back as it was.

The sealed form is canonical JSON (``manifest.canonical``) with the SHA-256 of all but itself.
Pure: no I/O, no clock.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import ceil
from typing import Any

from gateway.manifest import canonical
from gateway.manifest_fields import RecordError
from gateway.rehearsal_facts import Limits, Observed, Phase, Seen, phase_of
from gateway.watch import total

__all__ = ["FAIL", "PASS", "Check", "Judged", "judge", "sealed", "unsealed", "with_client"]

KIND = "rehearsal"
FORMAT = 1
PASS, FAIL = "pass", "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One figure and its threshold; ``most`` says whether that is an upper bound."""

    name: str
    value: float | None
    limit: float
    passed: bool
    most: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict, every check, and what the phases were like."""

    verdict: str
    why: tuple[str, ...]
    checks: tuple[Check, ...]
    phases: tuple[Mapping[str, Any], ...]


# -- judgement -----------------------------------------------------------------------------


def judge(observed: Observed, limits: Limits) -> Judged:
    """Hold what was seen against the thresholds."""
    checks = (
        *_of_the_whole(observed),
        *(c for phase in Phase for c in _of_phase(observed, phase, limits)),
        *_of_the_way_back(observed, limits),
        *_of_the_pools(observed, limits),
    )
    why = tuple(check.why for check in checks if not check.passed)
    rows = tuple(_row(observed, phase) for phase in Phase if phase in observed.began_s)
    return Judged(FAIL if why else PASS, why, checks, rows)


def _of_the_whole(observed: Observed) -> Iterator[Check]:
    missing = [str(phase) for phase in Phase if phase not in observed.began_s]
    reasons = [*observed.faults, *(f"there was no {name} phase" for name in missing)]
    yield _at_most("carried out whole", len(reasons), 0.0, "; ".join(reasons))
    differences = observed.differences
    yield _at_most("routes that differ afterwards", len(differences), 0.0, "; ".join(differences))


def _of_phase(observed: Observed, phase: Phase, limits: Limits) -> Iterator[Check]:
    if phase is Phase.BEFORE or phase not in observed.began_s:
        return
    yield _enough(observed, phase, limits.min_count)
    counted = total(seen.counted for seen in _arrived(observed, phase))
    offered = counted.ended + counted.refused
    if not offered:
        return
    ended = max(1, counted.ended)
    yield _at_most(
        f"failed, {phase}", counted.errors / ended, limits.error_rate, _outcomes(observed, phase)
    )
    yield _at_most(f"refused, {phase}", counted.refused / offered, limits.refusals)
    for name, bad, least in (
        ("first token in time", counted.late, limits.ttft_attainment),
        ("without a long gap", counted.stalled, limits.stall_attainment),
    ):
        yield _at_least(f"{name}, {phase}", 1 - bad / ended, least)
    oldest_s = observed.oldest_age_s.get(phase, 0.0)
    yield _at_most(f"oldest waiting, {phase} (s)", oldest_s, limits.oldest_age_s)


def _enough(observed: Observed, phase: Phase, least: int) -> Check:
    """Whether the pool that a phase is about served enough to say anything of it.

    What arrived in one phase and waited into the next went where that one sent it.
    """
    pool = observed.baseline if phase is Phase.ROLLBACK else observed.candidate
    arrived = list(_arrived(observed, phase))
    its = [seen for seen in arrived if seen.pool == pool and _sent(observed, seen) is phase]
    served = sum(seen.counted.ended for seen in its)
    said = f"too few requests in the {phase} phase: {pool} served {served}, at least {least}"
    if phase is Phase.CANARY:
        callers, tried = (len({seen.caller for seen in seen_}) for seen_ in (arrived, its))
        said += (
            f": {tried} of {callers} callers went to it: bring more callers (a key each), "
            "a higher weight or a longer hold"
        )
    name = f"requests, {phase} ({pool})"
    return Check(name, served, least, passed=served >= least, most=False, why=said)


def _sent(observed: Observed, seen: Seen) -> Phase | None:
    """The phase in which a request went to its engine; None: in none, or it never did."""
    return None if seen.dispatched_s is None else phase_of(observed.began_s, seen.dispatched_s)


def _of_the_way_back(observed: Observed, limits: Limits) -> Iterator[Check]:
    back_s = observed.began_s.get(Phase.ROLLBACK)
    if back_s is None:
        return
    sent = [s for s in observed.seen if s.dispatched_s is not None and s.dispatched_s > back_s]
    astray = sum(s.pool == observed.candidate for s in sent)
    yield _at_most("sent to the candidate after the rollback", astray, 0.0)
    first = [
        s.dispatched_s - back_s for s in sent if s.dispatched_s and s.pool == observed.baseline
    ]
    yield _soon("first request back (s)", min(first, default=None), limits.first_back_s)
    held = [s for s in observed.seen if _on_candidate_at(observed, s, back_s)]
    ends = [s.ended_s - back_s for s in held if s.ended_s is not None]
    last_s = None if len(ends) < len(held) else max(ends, default=0.0)
    yield _soon("last affected request ended (s)", last_s, limits.last_affected_s)
    bad = [
        s.arrived_s - back_s
        for s in _arrived(observed, Phase.ROLLBACK)
        if s.counted.errors or s.counted.late or s.counted.refused
    ]
    yield _at_most("recovered after (s)", max(bad, default=0.0), limits.recovery_s)
    yield _at_most("streams cut off by the drain", observed.ended, limits.streams_ended)


def _of_the_pools(observed: Observed, limits: Limits) -> Iterator[Check]:
    for phase, pool in ((Phase.FLIP, observed.candidate), (Phase.ROLLBACK, observed.baseline)):
        if phase in observed.began_s:
            part = observed.prefill.get(phase, 0.0)
            yield _at_most(f"prefill room taken, {phase} ({pool})", part, limits.prefill_peak)
    bad = [probe.why for probe in observed.probes_after if probe.why is not None]
    if not observed.probes_after:
        bad.append("the baseline was not probed afterwards")
    yield _at_most("warm probes that failed afterwards", len(bad), 0.0, "; ".join(bad))


def _on_candidate_at(observed: Observed, seen: Seen, at_s: float) -> bool:
    if seen.pool != observed.candidate or seen.dispatched_s is None:
        return False
    return seen.dispatched_s <= at_s and (seen.ended_s is None or seen.ended_s > at_s)


def _at_most(name: str, value: float, limit: float, why: str = "") -> Check:
    said = f"{name}: {_shown(value)}, at most {_shown(limit)}"
    return Check(
        name, round(value, 6), limit, value <= limit, why=f"{said}: {why}" if why else said
    )


def _at_least(name: str, value: float, limit: float) -> Check:
    said = f"{name}: {_shown(value)}, at least {_shown(limit)}"
    return Check(name, round(value, 6), limit, value >= limit, most=False, why=said)


def _soon(name: str, value: float | None, limit: float) -> Check:
    if value is None:
        return Check(name, None, limit, passed=False, why=f"{name}: not until the end")
    return _at_most(name, value, limit)


def _shown(value: float) -> str:
    return f"{value:.4g}"


# -- phases --------------------------------------------------------------------------------


def _arrived(observed: Observed, phase: Phase) -> Iterator[Seen]:
    return (s for s in observed.seen if phase_of(observed.began_s, s.arrived_s) is phase)


def _outcomes(observed: Observed, phase: Phase) -> str:
    rows = [s for s in _arrived(observed, phase) if s.counted.errors]
    counts = Counter(f"{s.outcome} on {s.pool}" for s in rows)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _row(observed: Observed, phase: Phase) -> dict[str, Any]:
    """What a phase was like, for the record."""
    seen = list(_arrived(observed, phase))
    counted = total(s.counted for s in seen)
    return {
        "phase": str(phase),
        "at_s": round(observed.began_s[phase] - min(observed.began_s.values()), 3),
        "requests": len(seen),
        "by_pool": dict(sorted(Counter(s.pool or "none" for s in seen).items())),
        "outcomes": dict(sorted(Counter(s.outcome or "running" for s in seen).items())),
        **counted._asdict(),
        "ttft_s": _ttft(seen),
        "ttft_s_by_pool": {
            pool: _ttft([s for s in seen if s.pool == pool])
            for pool in (observed.baseline, observed.candidate)
            if any(s.pool == pool for s in seen)
        },
        "prefill_peak": round(observed.prefill.get(phase, 0.0), 4),
        "oldest_age_s": round(observed.oldest_age_s.get(phase, 0.0), 4),
    }


def _ttft(seen: Iterable[Seen]) -> dict[str, float] | None:
    waits = sorted(s.first_s - s.arrived_s for s in seen if s.first_s is not None)
    if not waits:
        return None
    at = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    return {k: round(waits[max(0, ceil(q * len(waits)) - 1)], 4) for k, q in at.items()}


# -- the record ----------------------------------------------------------------------------


def sealed(told: Mapping[str, Any], judged: Judged) -> dict[str, Any]:
    """The record: what is told of the rehearsal, the verdict, all figures, and the digest."""
    body = {
        **told,
        "kind": KIND,
        "format": FORMAT,
        "verdict": judged.verdict,
        "why": list(judged.why),
        "checks": [asdict(check) for check in judged.checks],
        "phases": list(judged.phases),
        "surge": _surge(judged.phases),
    }
    return {**body, "digest": _digest(body)}


def _surge(phases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """How many times what was before: first tokens and prefill, on a cold pool and back again."""
    by_name = {row["phase"]: row for row in phases}
    before = by_name.get(Phase.BEFORE, {})
    return {
        str(phase): {
            "ttft_p95": _times(_p95(by_name[phase]), _p95(before)),
            "prefill_peak": _times(by_name[phase]["prefill_peak"], before.get("prefill_peak")),
        }
        for phase in (Phase.FLIP, Phase.ROLLBACK)
        if phase in by_name
    }


def _p95(row: Mapping[str, Any]) -> float | None:
    ttft = row.get("ttft_s")
    return ttft["p95"] if ttft else None


def _times(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else round(value / other, 3)


def with_client(record: Mapping[str, Any], client: Mapping[str, Any]) -> dict[str, Any]:
    """The record with what the load's own client saw, sealed anew over the first one.

    Callers' failures that the gateway does not know of count as its own do.

    Args:
        record: a sealed one.
        client: counts ``ended`` and ``failed``, and whatever else it says.

    Raises:
        RecordError: these are no counts.
    """
    failed, ended = client.get("failed", 0), client.get("ended", 0)
    if not (isinstance(failed, int) and isinstance(ended, int)):
        raise RecordError("client: failed and ended must be counts")
    part = failed / max(1, ended)
    check = _at_most("failed, as callers saw it", part, record["limits"]["error_rate"])
    why = [*record["why"], *([] if check.passed else [check.why])]
    body = {
        **{key: value for key, value in record.items() if key != "digest"},
        "parent": record["digest"],
        "client": dict(client),
        "checks": [*record["checks"], asdict(check)],
        "why": why,
        "verdict": FAIL if why else PASS,
    }
    return {**body, "digest": _digest(body)}


def unsealed(found: Any) -> dict[str, Any]:
    """A sealed record's content, whole.

    Raises:
        RecordError: it is none, or was changed since.
    """
    if not isinstance(found, Mapping) or found.get("kind") != KIND:
        raise RecordError(f"not the record of a rehearsal (kind {KIND!r})")
    body = {key: value for key, value in found.items() if key != "digest"}
    says, has = found.get("digest"), _digest(body)
    if says != has:
        raise RecordError(
            f"changed after it was sealed: it says digest {says}, its content's is {has}"
        )
    return dict(found)


def _digest(body: Mapping[str, Any]) -> str:
    return sha256(canonical(body)).hexdigest()
