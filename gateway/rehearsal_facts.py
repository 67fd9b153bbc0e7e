"""The words of a rehearsal: its phases, what is seen, what it must keep, what its baseline needs.

Decides too whether a rehearsal may begin, as the baseline could take the load back, and when a
phase is cut short for its callers' sake. Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple

from gateway.manifest_fields import RecordError
from gateway.thresholds import Threshold
from gateway.watch import Tally

__all__ = [
    "CANARY_HOLDS",
    "Capacity",
    "Limits",
    "Observed",
    "Phase",
    "Probe",
    "Seen",
    "broken_already",
    "capacity_fault",
    "limits_of",
    "phase_of",
]

CANARY_HOLDS = 4  # so many times its usual length a canary lasts, where its candidate has little


class Phase(StrEnum):
    """The parts of a rehearsal, in their order."""

    BEFORE = "before"
    CANARY = "canary"
    FLIP = "flip"
    ROLLBACK = "rollback"


class Seen(NamedTuple):
    """One request, at its end or still running. Seconds are on the gateway's clock."""

    arrived_s: float
    dispatched_s: float | None
    first_s: float | None
    ended_s: float | None
    pool: str | None
    outcome: str | None
    counted: Tally
    caller: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rehearsal must keep. Rates and attainments are parts of 1.

    ``oldest_age_s``: nobody waits longer. ``first_back_s``: from the rollback to the first request
    that the baseline gets. ``last_affected_s``: to the end of the last that the candidate had.
    ``recovery_s``: to the arrival of the last that was not served well. ``streams_ended``: cut off
    by the drain. ``prefill_peak``: part of a pool's room for prefill. ``warm_probe_ratio``: of a
    size class's TTFT limit, within which a warm probe's first token comes. ``min_count``: requests
    in a phase, served by the pool that the phase is about.
    """

    error_rate: float = 0.02
    refusals: float = 0.05
    ttft_attainment: float = 0.9
    stall_attainment: float = 0.9
    oldest_age_s: float = 5.0
    first_back_s: float = 5.0
    last_affected_s: float = 60.0
    recovery_s: float = 10.0
    streams_ended: float = 0.0
    prefill_peak: float = 0.95
    warm_probe_ratio: float = 1.0
    min_count: int = 10


@dataclass(frozen=True, slots=True)
class Probe:
    """A warm probe: one request to one engine, of one size class."""

    engine: str
    size_class: str
    prompt_tokens: int
    limit_s: float
    ttft_s: float | None = None
    fault: str | None = None

    @property
    def why(self) -> str | None:
        """What is wrong with the answer; None: nothing."""
        if self.ttft_s is None:
            return f"{self.engine} does not answer a {self.size_class} prompt: {self.fault}"
        if self.ttft_s > self.limit_s:
            return (
                f"{self.engine} answers a {self.size_class} prompt after {self.ttft_s:.2f} s, "
                f"later than {self.limit_s:g} s"
            )
        return None


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the baseline has, and what the load that it serves needs."""

    engines: int
    usable: int
    seats: int
    busy: int
    requests_per_s: float
    mean_s: float
    prefill_tokens_per_s: float
    prefill_needed_per_s: float
    refused: float = 0.0

    @property
    def seats_needed(self) -> float:
        """By Little's law: arrivals a second times the seconds that each holds a seat."""
        return self.requests_per_s * self.mean_s


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a rehearsal saw.

    ``began_s`` has the phases that came; ``prefill`` the largest part of the prefill room that was
    taken in a phase, of the pool that got the work; ``running`` those that still run at its end.
    """

    baseline: str
    candidate: str
    began_s: Mapping[Phase, float]
    seen: Sequence[Seen] = ()
    prefill: Mapping[Phase, float] = field(default_factory=dict)
    oldest_age_s: Mapping[Phase, float] = field(default_factory=dict)
    drained: int = 0
    ended: int = 0
    probes_after: Sequence[Probe] = ()
    differences: Sequence[str] = ()
    faults: Sequence[str] = ()


# -- before anything moves -----------------------------------------------------------------


def limits_of(
    rules: Iterable[Threshold], given: Mapping[str, float], contract_s: float = 5.0
) -> Limits:
    """The thresholds: those given, else the record's, else the usual ones.

    Args:
        rules: of the rollback record; a margin to a stable arm has no meaning here.
        given: by the names of ``Limits``.
        contract_s: the class's TTFT limit, beyond which nobody should wait by default.

    Raises:
        RecordError: a name or value of ``given`` can't be.
    """
    limits = replace(Limits(), oldest_age_s=contract_s)
    names = {f.name for f in fields(Limits)}
    for name, value in given.items():
        if name not in names:
            raise RecordError(f"limits: {name!r} is none; known are {', '.join(sorted(names))}")
        if not 0.0 <= value < float("inf"):
            raise RecordError(f"limits.{name}: must be a number from 0 on")
    own = {str(rule.metric): rule.limit for rule in rules if rule.limit is not None}
    named: dict[str, Any] = {**own, **given}
    if "min_count" in named:
        named["min_count"] = max(1, int(named["min_count"]))
    return replace(limits, **named)


def capacity_fault(has: Capacity, limits: Limits) -> str | None:
    """Why the baseline could not take the load back, with the figures; None: it could."""
    if not has.usable:
        return f"none of its {has.engines} engines is up"
    if has.busy >= has.seats:
        return f"its {has.usable} engines that are up are full: {has.busy} of {has.seats} seats"
    load = f"{has.requests_per_s:.1f} requests a second"
    if has.seats_needed > has.seats:
        return (
            f"{load} that take {has.mean_s:.2f} s each need {has.seats_needed:.0f} seats; its "
            f"{has.usable} of {has.engines} engines that are up have {has.seats}"
        )
    if has.prefill_needed_per_s > has.prefill_tokens_per_s:
        return (
            f"{load} bring {has.prefill_needed_per_s:.0f} prompt tokens a second; its "
            f"{has.usable} of {has.engines} engines that are up read "
            f"{has.prefill_tokens_per_s:.0f}"
        )
    if has.refused > limits.refusals:
        return f"it refuses {has.refused:.1%} of {load} already"
    return None


def broken_already(counted: Tally, limits: Limits) -> str | None:
    """Why a phase is to be cut short for its callers' sake; None: it is not."""
    offered = counted.ended + counted.refused
    if offered < limits.min_count:
        return None
    if counted.errors > 2 * limits.error_rate * offered:
        return f"{counted.errors} of {offered} requests failed"
    if counted.refused > 2 * limits.refusals * offered:
        return f"{counted.refused} of {offered} requests were refused"
    return None


def phase_of(began_s: Mapping[Phase, float], at_s: float) -> Phase | None:
    """The phase at a moment; None: before all of them."""
    found = None
    for phase in Phase:
        if phase in began_s and at_s >= began_s[phase]:
            found = phase
    return found
