"""Reduces the requests of one class in one run to the few numbers that analysis needs.

A sweep holds more stamps than memory should: records are reduced run by run, and strata are pooled
from what is left. Latency counts from the planned arrival. In `values` infinity stands for an
offered request that is not ok; an ok response with fewer than two events has no stall, and is
counted. A request misses if it misses any limit of its class. Pure: no I/O, no clock.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from loadgen.quantiles import summary
from loadgen.record import Outcome, RequestRecord

__all__ = [
    "MEASURES",
    "NOT_ACCEPTED",
    "CachedPrompts",
    "ClassFacts",
    "RunFacts",
    "class_facts",
    "facts_from_values",
    "pooled",
    "views",
]

Json = dict[str, Any]
NOT_ACCEPTED = frozenset({Outcome.REJECTED, Outcome.EXPIRED, Outcome.NOT_SENT})
REFUSED = (Outcome.REJECTED, Outcome.EXPIRED)


def _since_planned_s(record: RequestRecord, at_us: int | None) -> float | None:
    return None if at_us is None else (at_us - record.planned_us) / 1e6


def _ttft_s(record: RequestRecord) -> float | None:
    return _since_planned_s(record, record.first_event_us)


def _e2e_s(record: RequestRecord) -> float | None:
    return _since_planned_s(record, record.last_byte_us)


def _stall_s(record: RequestRecord) -> float | None:
    return None if record.max_stall_us is None else record.max_stall_us / 1e6


MEASURES = {"ttft_s": _ttft_s, "e2e_s": _e2e_s, "max_stall_s": _stall_s}


@dataclass(frozen=True, slots=True)
class CachedPrompts:
    """Ok responses that said how much of their prompt was cached, and the sums of tokens."""

    requests: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0

    def told(self) -> Json:
        """Return the sums and the share that was cached."""
        return {**asdict(self), "hit_rate": self.cached_tokens / self.prompt_tokens}


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """One class in one run or, pooled, in one stratum. All counts are of offered requests."""

    offered: int
    met: int
    outcomes: Mapping[str, int]
    codes: Mapping[str, int]
    values: Mapping[str, tuple[float, ...]]
    stall_absent: int = 0
    after_window: int = 0
    events: int = 0
    tokens: int = 0
    told: int = 0  # ok responses that said how many tokens they hold
    by_tokens: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    cached: CachedPrompts = CachedPrompts()

    @property
    def ok(self) -> int:
        """How many were answered validly, in time or late."""
        return self.outcomes.get(Outcome.OK, 0)

    @property
    def refused(self) -> int:
        """How many were turned away, at once or after waiting."""
        return sum(self.outcomes.get(o, 0) for o in REFUSED)

    @property
    def accepted(self) -> int:
        """How many were neither turned away nor left unsent."""
        return self.offered - sum(self.outcomes.get(o, 0) for o in NOT_ACCEPTED)

    @property
    def failed(self) -> int:
        """How many were not answered validly."""
        return self.offered - self.ok

    @property
    def late(self) -> int:
        """How many were answered validly but beyond a limit."""
        return self.ok - self.met


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run: whose it is, what analysis prints of it, and its classes' facts."""

    run_id: str
    unit: str
    mix: str
    rate: str
    repeat: int
    row: Json
    classes: Mapping[str, ClassFacts]

    @property
    def valid(self) -> bool:
        """Whether the client kept up."""
        return not self.row["faults"]


def _meets(record: RequestRecord, limits: Mapping[str, Any]) -> bool:
    if record.outcome is not Outcome.OK:
        return False
    measured = ((measure(record), limits[name]) for name, measure in MEASURES.items())
    return all(value is None or value <= limit for value, limit in measured)


def _offered(records: Sequence[RequestRecord], name: str) -> tuple[float, ...]:
    measure = MEASURES[name]
    ok = [v for r in records if r.outcome is Outcome.OK and (v := measure(r)) is not None]
    return (*ok, *(math.inf for r in records if r.outcome is not Outcome.OK))


def _by_tokens(ok: Iterable[RequestRecord]) -> dict[int, tuple[tuple[float, float], ...]]:
    """First token and end of each response, by the power of two that its length does not pass."""
    found: dict[int, list[tuple[float, float]]] = {}
    for r in ok:
        ttft_s, e2e_s = _ttft_s(r), _e2e_s(r)
        if r.completion_tokens_reported and ttft_s is not None and e2e_s is not None:
            upper = 1 << (r.completion_tokens_reported - 1).bit_length()
            found.setdefault(upper, []).append((ttft_s, e2e_s))
    return {upper: tuple(rows) for upper, rows in found.items()}


def class_facts(
    records: Sequence[RequestRecord], limits: Mapping[str, Any], window_end_s: float = math.inf
) -> ClassFacts:
    """Reduce the observed requests of one class.

    Args:
        records: every request of the class that was planned inside the observation.
        limits: the contract of the class.
        window_end_s: when the observation ended, on the axis of the records.
    """
    ok = [r for r in records if r.outcome is Outcome.OK]
    told = [r for r in ok if r.completion_tokens_reported is not None]
    return ClassFacts(
        offered=len(records),
        met=sum(_meets(r, limits) for r in records),
        outcomes=Counter(r.outcome.value for r in records),
        codes=Counter(f"{r.outcome}:{r.outcome_code}" for r in records if r.outcome_code),
        values={name: _offered(records, name) for name in MEASURES},
        stall_absent=sum(r.max_stall_us is None for r in ok),
        after_window=sum((r.last_byte_us or 0) > window_end_s * 1e6 for r in ok),
        events=sum(len(r.event_us or ()) for r in told),
        tokens=sum(r.completion_tokens_reported or 0 for r in told),
        told=len(told),
        by_tokens=_by_tokens(told),
        cached=_cached(ok),
    )


def _cached(ok: Iterable[RequestRecord]) -> CachedPrompts:
    pairs = [(r.cached_tokens, r.prompt_tokens_planned) for r in ok if r.cached_tokens is not None]
    return CachedPrompts(len(pairs), sum(c for c, _ in pairs), sum(p for _, p in pairs))


def facts_from_values(
    values: Mapping[str, Sequence[float]], limits: Mapping[str, Any]
) -> ClassFacts:
    """Make facts of bare latencies, for forecasts: aligned by request, infinity for a failure."""
    rows = list(zip(*(values[name] for name in MEASURES), strict=True))
    ok = sum(all(map(math.isfinite, row)) for row in rows)
    met = sum(all(v <= limits[n] for n, v in zip(MEASURES, row, strict=True)) for row in rows)
    outcomes = {Outcome.OK.value: ok, Outcome.ERROR.value: len(rows) - ok}
    held = {name: tuple(values[name]) for name in MEASURES}
    return ClassFacts(len(rows), met, outcomes, {}, held)


def pooled(parts: Sequence[ClassFacts]) -> ClassFacts:
    """Join the facts of one class over rounds."""
    outcomes: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    by_tokens: dict[int, tuple[tuple[float, float], ...]] = {}
    for part in parts:
        outcomes.update(part.outcomes)
        codes.update(part.codes)
        for upper, rows in part.by_tokens.items():
            by_tokens[upper] = (*by_tokens.get(upper, ()), *rows)
    return ClassFacts(
        offered=sum(p.offered for p in parts),
        met=sum(p.met for p in parts),
        outcomes=outcomes,
        codes=codes,
        values={name: tuple(v for p in parts for v in p.values[name]) for name in MEASURES},
        stall_absent=sum(p.stall_absent for p in parts),
        after_window=sum(p.after_window for p in parts),
        events=sum(p.events for p in parts),
        tokens=sum(p.tokens for p in parts),
        told=sum(p.told for p in parts),
        by_tokens=by_tokens,
        cached=CachedPrompts(
            sum(p.cached.requests for p in parts),
            sum(p.cached.cached_tokens for p in parts),
            sum(p.cached.prompt_tokens for p in parts),
        ),
    )


def _both(values: Sequence[float]) -> Json:
    return {"offered": summary(values), "accepted": summary([v for v in values if v != math.inf])}


def views(facts: ClassFacts, observation_s: float) -> Json:
    """Return counts, both views of every measure, goodput and ratios.

    Args:
        facts: of one class.
        observation_s: the fixed length observed, summed over the runs that were pooled.
    """
    # A class that was offered nothing has no ratio: absent, not zero and not one.
    ratio = (
        {
            "attainment": facts.met / facts.offered,
            "accepted_over_offered": facts.accepted / facts.offered,
        }
        if facts.offered
        else {}
    )
    if facts.told:
        ratio["output_tokens_per_ok"] = facts.tokens / facts.told
    if facts.events:
        ratio["tokens_per_event"] = facts.tokens / facts.events
    cached = {"prefix_cache": facts.cached.told()} if facts.cached.prompt_tokens else {}
    return {
        "offered": facts.offered,
        "accepted": facts.accepted,
        "refused": facts.refused,
        "outcomes": {o.value: facts.outcomes.get(o.value, 0) for o in Outcome},
        "codes": dict(facts.codes),
        **{name: _both(facts.values[name]) for name in MEASURES},
        "stall_absent": facts.stall_absent,
        "met": facts.met,
        "late": facts.late,
        "after_window": facts.after_window,
        "goodput_per_s": facts.met / observation_s,
        **ratio,
        **cached,
    }
