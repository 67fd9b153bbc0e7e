"""Says how long a class needs to recover once its arrival rate has changed.

Recovered is it from the first arrival on, after the change ended, from which every following one
over a stretch of seconds gets its first event within a multiple of the usual time: the median of
those planned before the change. A request that failed never gets it. Pure: no I/O, no clock.
"""

import math
from collections.abc import Sequence

from loadgen.quantiles import quantile
from loadgen.record import Outcome, RequestRecord

__all__ = ["recovery_s"]

USUAL_TIMES, STRETCH_S = 3.0, 3.0


def _ttft_s(record: RequestRecord) -> float:
    at = record.first_event_us
    return (at - record.planned_us) / 1e6 if record.outcome is Outcome.OK and at else math.inf


def recovery_s(
    records: Sequence[RequestRecord], changes_s: tuple[float, float], size_class: str
) -> float | None:
    """Return the seconds from the end of the change to recovery; None if it never came.

    Args:
        records: of a run, in planned order.
        changes_s: when the rate changed and when it was as before again.
        size_class: whose.
    """
    own = [(r.planned_us / 1e6, _ttft_s(r)) for r in records if r.size_class == size_class]
    before = [ttft_s for at_s, ttft_s in own if at_s < changes_s[0]]
    after = [(at_s, ttft_s) for at_s, ttft_s in own if at_s >= changes_s[1]]
    if not before or not after:
        return None
    limit_s = USUAL_TIMES * quantile(before, 0.5)
    good_since: float | None = None
    for at_s, ttft_s in after:
        if ttft_s > limit_s:
            good_since = None
        elif good_since is None:
            good_since = at_s
        if good_since is not None and at_s - good_since >= STRETCH_S:
            break
    return None if good_since is None else good_since - changes_s[1]
