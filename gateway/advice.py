"""Decides how many seconds a refused caller is told to wait, by its outcome's rule.

What is remembered is remembered of the one whose bound it was: of a flow, of a caller, of the
gateway. So nobody is told to stay away for long because of what somebody else did.
Pure: no I/O, no clock.
"""

from collections.abc import Callable, Iterable, Mapping

from gateway.contract import MAX_RETRY_AFTER_S, MIN_RETRY_AFTER_S, Advice

__all__ = ["MAX_CALLERS", "SHORT_S", "Advisor", "Group", "RetryAfter"]

Group = tuple[str, str, str]
SHORT_S = 5.0
MAX_CALLERS = 1024


class RetryAfter:
    """Seconds to advise to refused callers; one for each bound, so that its memory is bounded.

    The advice is the time the queue needs to drain, and at least a patience that remembers how
    the last advice went. Time is cut into windows as long as the patience: a window with three
    or more refusals per second means that callers returned too early, and doubles it; one with
    less than one per second halves it. As a window lasts as long as the advice, one burst
    raises it once. ``jitter`` gives numbers in [0, 1) and spreads callers by up to a quarter.
    """

    __slots__ = ("_jitter", "_patience_s", "_refusals", "_window_end_s")

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._patience_s = float(MIN_RETRY_AFTER_S)
        self._refusals = 0
        self._window_end_s: float | None = None

    def refused(self, now: float, drain_s: float) -> float:
        """Count one refusal and return the advice in seconds, within [1, 30].

        ``drain_s`` is how long the queue needs to drain at its measured rate, 0 if not known.
        """
        self._roll(now)
        self._refusals += 1
        advice_s = max(drain_s, self._patience_s) * (1.0 + 0.25 * self._jitter())
        return min(max(advice_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)

    def _roll(self, now: float) -> None:
        if self._window_end_s is None:
            self._window_end_s = now + self._patience_s
        while now >= self._window_end_s:
            per_s = self._refusals / self._patience_s
            self._refusals = 0
            if per_s >= 3.0:
                self._patience_s = min(self._patience_s * 2.0, MAX_RETRY_AFTER_S)
            elif per_s < 1.0:
                self._patience_s = max(self._patience_s / 2.0, MIN_RETRY_AFTER_S)
            self._advance(now)

    def _advance(self, now: float) -> None:
        end_s = self._window_end_s if self._window_end_s is not None else now
        rested = self._patience_s <= MIN_RETRY_AFTER_S and now >= end_s + self._patience_s
        # Fully rested, all further windows are alike: skip them at once, however long the gap.
        self._window_end_s = now + self._patience_s if rested else end_s + self._patience_s


class Advisor:
    """The rules of ``Advice``; ``flows``, ``callers`` and ``gateway`` hold what they remember.

    Args:
        jitter: numbers in [0, 1).
        groups: the flows there are, as (model, size class, service class).
        fixed_s: the seconds of the rules that the configuration decides.
        before: whose memory is taken over.
    """

    def __init__(
        self,
        jitter: Callable[[], float],
        groups: Iterable[Group],
        fixed_s: Mapping[Advice, float],
        before: "Advisor | None" = None,
    ) -> None:
        self._jitter = jitter
        self._fixed_s = fixed_s
        known: Mapping[Group, RetryAfter] = before.flows if before else {}
        # With an empty size class: of what is refused while it may still turn out to be in several.
        wanted = {own for m, size, s in groups for own in ((m, size, s), (m, "", s))}
        self.flows: Mapping[Group, RetryAfter] = {
            own: known.get(own) or RetryAfter(jitter) for own in wanted
        }
        self.callers: dict[str, RetryAfter] = before.callers if before else {}
        self.gateway: RetryAfter = before.gateway if before else RetryAfter(jitter)

    def seconds(
        self, rule: Advice, told_s: float | None, now: float, group: Group, caller: str
    ) -> float | None:
        """Count one refusal; the seconds to advise, or None where no advice is given.

        Args:
            rule: of the outcome's row.
            told_s: the refusal's own figure: until a queue has drained, or what an engine said.
            now: the moment.
            group: the flow, as far as it is known.
            caller: the caller's key id.
        """
        if rule is Advice.NONE:
            return None
        fixed_s = self._fixed_s.get(rule)
        if fixed_s is not None:
            return fixed_s
        memory = self._memory(rule, group, caller)
        if memory is not None:
            return memory.refused(now, told_s or 0.0)
        if rule is Advice.ENGINE and told_s is not None:
            return told_s
        return SHORT_S * self._jitter()

    def _memory(self, rule: Advice, group: Group, caller: str) -> RetryAfter | None:
        if rule is Advice.QUEUE:
            return self.flows.get(group, self.gateway)
        if rule is Advice.CALLER:
            return self._own(caller)
        return self.gateway if rule is Advice.GATEWAY else None

    def _own(self, caller: str) -> RetryAfter:
        """The caller's memory; who has not been refused for the longest time is forgotten."""
        own = self.callers.pop(caller, None) or RetryAfter(self._jitter)
        self.callers[caller] = own
        if len(self.callers) > MAX_CALLERS:
            del self.callers[next(iter(self.callers))]
        return own
