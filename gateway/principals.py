"""Decides whether a caller stays within its rates: requests and prompt tokens per minute.

One token bucket per (flow group, caller) and rate, holding up to one minute's worth. A bucket
that has filled up again is forgotten, so memory is bounded by who called in the last minute.
Another rate holds at once: what was spent before counts as so many tokens or as so much time,
whichever is less, so that no change shuts a caller out. Pure: no I/O, no clock.
"""

from dataclasses import dataclass

from gateway.domain import FlowSpec

__all__ = ["PrincipalRates"]

SWEEP_EVERY = 1024


@dataclass(slots=True)
class _Bucket:
    spent: float
    at_s: float
    per_minute: float

    def missing(self, now: float, per_minute: float) -> float:
        """What a bucket of the rate that is in force now lacks."""
        filled = (now - self.at_s) * max(self.per_minute, per_minute) / 60.0
        return max(0.0, self.spent - filled) * min(1.0, per_minute / self.per_minute)


class PrincipalRates:
    """All callers' buckets."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[tuple[str, str, str], str, str], _Bucket] = {}
        self._since_sweep = 0

    def wait_s(self, spec: FlowSpec, principal: str, tokens: int, now: float) -> float:
        """Seconds until the caller may send this; 0 if it may now."""
        waits = [0.0]
        for kind, per_minute, amount in _rates(spec, tokens):
            bucket = self._buckets.get((spec.group, principal, kind))
            missing = 0.0 if bucket is None else bucket.missing(now, per_minute)
            needed = min(amount, per_minute)
            waits.append((needed + missing - per_minute) * 60.0 / per_minute)
        return max(waits)

    def charge(self, spec: FlowSpec, principal: str, tokens: int, now: float) -> None:
        """Count one admitted request."""
        for kind, per_minute, amount in _rates(spec, tokens):
            key = (spec.group, principal, kind)
            bucket = self._buckets.get(key)
            missing = 0.0 if bucket is None else bucket.missing(now, per_minute)
            self._buckets[key] = _Bucket(missing + amount, now, per_minute)
            self._since_sweep += 1
        if self._since_sweep >= SWEEP_EVERY:
            self._since_sweep = 0
            filling = self._buckets.items()
            self._buckets = {k: b for k, b in filling if b.missing(now, b.per_minute) > 0}


def _rates(spec: FlowSpec, tokens: int) -> list[tuple[str, float, int]]:
    rates = []
    if spec.principal_requests_per_minute is not None:
        rates.append(("requests", spec.principal_requests_per_minute, 1))
    if spec.principal_tokens_per_minute is not None:
        rates.append(("tokens", spec.principal_tokens_per_minute, tokens))
    return rates
