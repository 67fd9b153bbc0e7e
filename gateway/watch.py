"""Decides whether a canary holds, is fine, or breaks a threshold to abort at.

Both arms are counted over the same last seconds and compared there, so that what happens to both
at once (a flood, an outage of what they share) is seen in both. A rate is taken for too high only
where the lower end of its one-sided interval is (Wilson's; for a difference, Newcombe's from two
of Wilson's), with the confidence of ``Z``, and only with ``min_count`` requests: one error of
three is no evidence. ``python -m tests.simulation.watch_errors`` prints how often two arms that
are alike are told apart all the same, and how long real faults take.

A threshold with a margin alone is broken where the candidate is worse than the stable arm by more
than that, however good both are. With a limit alone it is broken whatever the stable arm does:
that protects callers and says nothing of who is at fault. With both, both must be: a fault of both
arms is not the candidate's, and a small difference between two good arms is none. Where both are
asked for and the stable arm has too few requests to compare with, the limit decides alone; for a
margin alone there is nothing to decide then.

What counts, of requests that arrived after the watch began:

* *ended*: it was completed, or failed by the engine's or the gateway's fault. Callers' own faults,
  pauses and drains do not count, nor callers who left, unless a limit had passed before.
* *error*: it failed. An engine's own 4xx is one too: a candidate that takes no request of its kind
  answers so, and where it is the callers' fault the stable arm shows the same.
* *late*: no first event (whole answer, where it is not streamed) within the class's TTFT limit.
* *stalled*: a silence longer than the class allows, or a stream that broke.
* *refused*: turned away for want of room or time in a queue. Part of ended plus refused.

What has not ended and is late or stalled already is counted while it lasts (``Now``): an engine
that hangs ends nothing. The oldest age is no rate: it is broken when so many samples one after
another were above. The watch decides to abort, never to promote. Pure: no I/O, no clock.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from gateway.domain import Arm, Outcome
from gateway.finished import Finished
from gateway.thresholds import Metric, Threshold

__all__ = [
    "Contract",
    "Figure",
    "Finding",
    "Judgement",
    "Now",
    "Tally",
    "Verdict",
    "Watch",
    "behind",
    "least_difference",
    "least_rate",
    "tally",
    "total",
]

# One-sided, 1 in 75,000 for one look: a watch looks again every second, for hours.
Z = 4.2
_SLICES = 20

_FAILED = frozenset(
    {
        Outcome.NO_ENGINE,
        Outcome.ENGINE_REJECTED,
        Outcome.UPSTREAM_UNREACHABLE,
        Outcome.UPSTREAM_TIMEOUT,
        Outcome.ENGINE_ERROR,
        Outcome.STREAM_INTERRUPTED,
        Outcome.INTERNAL_ERROR,
    }
)
_REFUSED = frozenset(
    {
        Outcome.QUEUE_FULL,
        Outcome.QUEUE_TOKENS_FULL,
        Outcome.QUEUE_BYTES_FULL,
        Outcome.PREDICTED_WAIT,
        Outcome.QUEUE_EXPIRED,
    }
)


class Contract(NamedTuple):
    """What the size class promises, in seconds."""

    ttft_limit_s: float
    max_stall_s: float


class Tally(NamedTuple):
    """What requests counted for; sums of these are what is judged."""

    ended: int = 0
    errors: int = 0
    late: int = 0
    stalled: int = 0
    refused: int = 0


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    return Tally(*map(sum, zip(*(Tally(), *tallies), strict=True)))


class Now(NamedTuple):
    """One arm at one moment: the age of what waits longest, and what runs and is behind already."""

    oldest_age_s: float = 0.0
    late: int = 0
    stalled: int = 0


class Verdict(StrEnum):
    """What the watch says of a threshold, or of all of them."""

    HOLD = "hold"
    FINE = "fine"
    BREACH = "breach"


@dataclass(frozen=True, slots=True)
class Figure:
    """One arm's part of what is bad: ``bad`` of ``count``; of ages, the seconds now."""

    count: int
    bad: int
    value: float | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One threshold, both arms' figures, and what follows."""

    threshold: Threshold
    candidate: Figure
    stable: Figure
    verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """All findings; ``why`` names the worst of them."""

    verdict: Verdict
    why: str
    findings: tuple[Finding, ...]


def tally(finished: Finished, contract: Contract) -> Tally:
    """What one request counts for; nothing, where it says nothing of its arm."""
    outcome = finished.outcome
    if outcome in _REFUSED:
        return Tally(refused=1)
    first_s = finished.first_event_s
    seen_s = finished.ended_s if first_s is None else first_s
    late = seen_s - finished.arrived_s > contract.ttft_limit_s
    stalled = (finished.max_stall_s or 0.0) > contract.max_stall_s
    if outcome is Outcome.COMPLETED:
        return Tally(1, 0, int(late), int(stalled))
    if outcome in _FAILED:
        return Tally(1, 1, int(late or first_s is None), 1)
    if outcome is Outcome.CLIENT_CANCELLED and (late or stalled):
        return Tally(1, 0, int(late), int(stalled))
    return Tally()


def behind(
    arrived_s: float, first_s: float | None, last_s: float | None, now: float, contract: Contract
) -> tuple[bool, bool]:
    """Whether a request that runs is late, and whether it is stalled, by its events until now."""
    late = first_s is None and now - arrived_s > contract.ttft_limit_s
    return late, last_s is not None and now - last_s > contract.max_stall_s


class Watch:
    """The last seconds of both arms. Memory is bounded by the windows, not by the traffic.

    Args:
        thresholds: what to abort for; one per metric.
        contract: of the size class.
    """

    def __init__(self, thresholds: Sequence[Threshold], contract: Contract) -> None:
        self.thresholds = tuple(thresholds)
        self._contract = contract
        self._slice_s = min(t.window_s for t in self.thresholds) / _SLICES
        self._longest_s = max(t.window_s for t in self.thresholds)
        self._arms: dict[Arm, deque[tuple[int, Tally]]] = {arm: deque() for arm in Arm}
        self._now = dict.fromkeys(Arm, Now())
        self._above: dict[Metric, int] = {}

    def finished(self, arm: Arm, finished: Finished, now: float) -> None:
        """Count a request at its end."""
        self.add(arm, tally(finished, self._contract), now)

    def add(self, arm: Arm, counted: Tally, now: float) -> None:
        """Count what was tallied elsewhere."""
        if not any(counted):
            return
        slices, index = self._arms[arm], int(now // self._slice_s)
        if slices and slices[-1][0] == index:
            slices[-1] = (index, total((slices[-1][1], counted)))
        else:
            slices.append((index, counted))
            self._forget(slices, now)

    def sample(self, stable: Now, candidate: Now) -> None:
        """Note how both arms are at this moment; ages count samples one after another."""
        self._now = {Arm.STABLE: stable, Arm.CANDIDATE: candidate}
        for threshold in self.thresholds:
            if threshold.metric is Metric.OLDEST_AGE:
                above = _too_old(threshold, candidate.oldest_age_s, stable.oldest_age_s)
                self._above[threshold.metric] = (
                    self._above.get(threshold.metric, 0) + 1 if above else 0
                )

    def judge(self, now: float) -> Judgement:
        """Look at every threshold; a breach counts before a hold."""
        findings = tuple(self._finding(threshold, now) for threshold in self.thresholds)
        for verdict in (Verdict.BREACH, Verdict.HOLD):
            found = [f.why for f in findings if f.verdict is verdict]
            if found:
                return Judgement(verdict, "; ".join(found), findings)
        return Judgement(Verdict.FINE, "no threshold is broken", findings)

    # -- one threshold ---------------------------------------------------------------------

    def _finding(self, threshold: Threshold, now: float) -> Finding:
        if threshold.metric is Metric.OLDEST_AGE:
            return self._of_age(threshold)
        candidate, stable = (
            _figure(threshold.metric, self._in_window(arm, threshold.window_s, now))
            for arm in (Arm.CANDIDATE, Arm.STABLE)
        )
        verdict, why = _judged(threshold, candidate, stable)
        return Finding(threshold, candidate, stable, verdict, f"{threshold.metric}: {why}")

    def _of_age(self, threshold: Threshold) -> Finding:
        samples = self._above.get(threshold.metric, 0)
        old_s, stable_s = (self._now[arm].oldest_age_s for arm in (Arm.CANDIDATE, Arm.STABLE))
        broken = samples >= threshold.min_count
        why = f"{old_s:.1f} s on candidate, {stable_s:.1f} s on stable"
        if broken:
            why += f", {_asked(threshold, ' s')} in {samples} samples one after another"
        return Finding(
            threshold,
            Figure(samples, samples, round(old_s, 3)),
            Figure(samples, 0, round(stable_s, 3)),
            Verdict.BREACH if broken else Verdict.FINE,
            f"{threshold.metric}: {why}",
        )

    def _in_window(self, arm: Arm, window_s: float, now: float) -> Tally:
        since = int((now - window_s) // self._slice_s)
        ended = total(counted for index, counted in self._arms[arm] if index > since)
        behind = self._now[arm]
        return total(
            (
                ended,
                Tally(max(behind.late, behind.stalled), 0, behind.late, behind.stalled),
            )
        )

    def _forget(self, slices: deque[tuple[int, Tally]], now: float) -> None:
        oldest = int((now - self._longest_s) // self._slice_s)
        while slices and slices[0][0] <= oldest:
            slices.popleft()

    # -- over a restart --------------------------------------------------------------------

    def state(self, now: float) -> dict[str, list[list[float]]]:
        """What was counted, by arm: age in seconds, then the counts. Plain JSON."""
        return {
            str(arm): [[now - index * self._slice_s, *counted] for index, counted in slices]
            for arm, slices in self._arms.items()
        }

    def resume(self, state: Mapping[str, Sequence[Sequence[Any]]], now: float) -> None:
        """Take up what ``state`` gave; the time between counts for nothing."""
        for arm in Arm:
            self._arms[arm].clear()
            for age_s, *counts in state.get(str(arm), ()):
                self.add(arm, Tally(*map(int, counts)), now - float(age_s))


# -- evidence ------------------------------------------------------------------------------


def least_rate(bad: int, count: int) -> float:
    """The lower end of Wilson's one-sided interval for a rate; 0 without data."""
    return _wilson(bad, count)[0]


def least_difference(bad: int, count: int, other_bad: int, other_count: int) -> float:
    """The lower end of Newcombe's one-sided interval for the first rate less the other."""
    if not count or not other_count:
        return -1.0
    rate, other = bad / count, other_bad / other_count
    low, high = _wilson(bad, count)[0], _wilson(other_bad, other_count)[1]
    return rate - other - math.hypot(rate - low, high - other)


def _wilson(bad: int, count: int) -> tuple[float, float]:
    if not count:
        return 0.0, 1.0
    rate, part = bad / count, Z * Z / count
    middle = rate + part / 2
    half = Z * math.sqrt(rate * (1 - rate) / count + part / (4 * count))
    return max(0.0, (middle - half) / (1 + part)), min(1.0, (middle + half) / (1 + part))


def _judged(threshold: Threshold, candidate: Figure, stable: Figure) -> tuple[Verdict, str]:
    least, limit, margin = threshold.min_count, threshold.bad_limit, threshold.margin
    if candidate.count < least:
        return Verdict.HOLD, f"too little data: {candidate.count} of {least} on candidate"
    shown = f"{_shown(candidate)} on candidate, {_shown(stable)} on stable"
    over = limit is None or least_rate(candidate.bad, candidate.count) > limit
    comparable = stable.count >= least
    if limit is None and not comparable:
        return Verdict.HOLD, f"too little data: {stable.count} of {least} on stable"
    if margin is not None and comparable:
        counts = (candidate.bad, candidate.count, stable.bad, stable.count)
        over = over and least_difference(*counts) > margin
    if over:
        alone = "" if margin is None or comparable else ", too few on stable to compare"
        return Verdict.BREACH, f"{shown}: {_asked(threshold)}{alone}"
    return Verdict.FINE, shown


def _too_old(threshold: Threshold, age_s: float, stable_s: float) -> bool:
    over = threshold.limit is None or age_s > threshold.limit
    return over and (threshold.margin is None or age_s - stable_s > threshold.margin)


def _figure(metric: Metric, counted: Tally) -> Figure:
    count = counted.ended + (counted.refused if metric is Metric.REFUSALS else 0)
    bad = {
        Metric.ERROR_RATE: counted.errors,
        Metric.REFUSALS: counted.refused,
        Metric.TTFT_ATTAINMENT: counted.late,
        Metric.STALL_ATTAINMENT: counted.stalled,
    }[metric]
    if not count:
        return Figure(0, 0, None)
    return Figure(count, bad, round((count - bad if metric.wants_much else bad) / count, 6))


def _shown(figure: Figure) -> str:
    return f"{figure.bad} of {figure.count} bad"


def _asked(threshold: Threshold, unit: str = "") -> str:
    """What was broken, in words."""
    much = threshold.metric.wants_much
    parts = []
    if threshold.limit is not None:
        parts.append(f"{'below' if much else 'above'} {threshold.limit:g}{unit}")
    if threshold.margin is not None:
        parts.append(f"worse than stable by more than {threshold.margin:g}{unit}")
    return " and ".join(parts)
