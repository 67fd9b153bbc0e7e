"""Decides whether a caller stays within its rates: requests and prompt tokens per minute.

One token bucket per (flow group, caller) and rate, holding up to one minute's worth. A bucket
that has filled up again is forgotten, so memory is bounded by who called in the last minute.
Pure: no I/O, no clock.
"""

from dataclasses import dataclass

from gateway.domain import FlowSpec

__all__ = ["PrincipalRates"]

SWEEP_EVERY = 1024


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float
    per_minute: float

    def level(self, now: float) -> float:
        return min(self.per_minute, self.left + (now - self.at_s) * self.per_minute / 60.0)


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
            level = per_minute if bucket is None else bucket.level(now)
            needed = min(amount, per_minute)
            waits.append((needed - level) * 60.0 / per_minute)
        return max(waits)

    def charge(self, spec: FlowSpec, principal: str, tokens: int, now: float) -> None:
        """Count one admitted request."""
        for kind, per_minute, amount in _rates(spec, tokens):
            key = (spec.group, principal, kind)
            bucket = self._buckets.get(key)
            level = per_minute if bucket is None else bucket.level(now)
            self._buckets[key] = _Bucket(level - amount, now, per_minute)
            self._since_sweep += 1
        if self._since_sweep >= SWEEP_EVERY:
            self._since_sweep = 0
            filling = self._buckets.items()
            self._buckets = {k: b for k, b in filling if b.level(now) < b.per_minute}


def _rates(spec: FlowSpec, tokens: int) -> list[tuple[str, float, int]]:
    rates = []
    if spec.principal_requests_per_minute is not None:
        rates.append(("requests", spec.principal_requests_per_minute, 1))
    if spec.principal_tokens_per_minute is not None:
        rates.append(("tokens", spec.principal_tokens_per_minute, tokens))
    return rates
