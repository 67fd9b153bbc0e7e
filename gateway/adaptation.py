"""Decides how far an engine's limits shrink below what is configured, from what the engine says.

The ledger is the authority: what is scraped may only shrink N and U, and a scrape that is stale
or failed freezes them. Token counts dominate latency, so no latency is followed. Each second:

- preemptions rose, or requests wait for capacity inside the engine (twice running), or its KV
  cache is nearly full, or it refused a request itself: N and U times 0.8, then 10 s of rest;
- the limits stopped somebody and every signal is clean: N one more, U a quarter of a token
  budget more;
- load that is not ours takes its part of the engine's slots.

The result stays between the floors and the configured limits. Signals that jump back and forth
come from several engines behind one name: then there is nothing to follow, and the configured
limits stand. Pure: no I/O, no clock.
"""

from dataclasses import dataclass, replace

from gateway.domain import EngineLimits

__all__ = ["Adaptation", "Signals"]

SHRINK = 0.8
COOL_DOWN_S = 10.0
GROW_EVERY_S = 0.95  # a second, less what a timer may be early
KV_FULL = 0.95
WAITING_LEAST = 8
RELAPSE_WITHIN_S = 30.0
RELAPSES = 2


@dataclass(frozen=True, slots=True)
class Signals:
    """What was seen of one engine at one moment; None: it did not say.

    ``preemptions_total`` counts since the engine's start, ``engine_rejections`` the requests it
    has refused since the last look. ``capacity_waiting`` are requests that wait inside for KV
    room or a seat. ``own_slots`` is what our ledger has outstanding there; ``gate_bound`` says
    that our limits have stopped somebody since the last look. ``started_s`` is the process start.
    """

    preemptions_total: float | None = None
    capacity_waiting: float | None = None
    kv_usage: float | None = None
    engine_rejections: int = 0
    running: float | None = None
    waiting: float | None = None
    own_slots: int = 0
    gate_bound: bool = False
    started_s: float | None = None


class Adaptation:
    """The limits of one engine, adapted.

    Args:
        configured: the most it may have, and what it has while nothing is known.
        floors: the least N and U, from ``floors.least_limits``.
        whole_slots: N of the whole engine, where ``configured`` is a replica's share of it.
    """

    def __init__(
        self, configured: EngineLimits, floors: EngineLimits, whole_slots: int | None = None
    ) -> None:
        self._configured = configured
        self._floors = floors
        self._whole_slots = configured.slots if whole_slots is None else whole_slots
        self.restarted()

    def restarted(self) -> None:
        """Another epoch of the engine, or another configuration: nothing seen before counts."""
        self._slots = float(self._configured.slots)
        self._prefill_tokens = float(self._configured.prefill_tokens)
        self._foreign: tuple[float, float] = (0.0, 0.0)
        self._crowded = 0
        self._rest_until_s = float("-inf")
        self._grown_s = float("-inf")
        self._twins = _Twins()
        self.limits = self._configured

    @property
    def not_one_engine(self) -> bool:
        """Whether several engines answer behind this name: then the configured limits stand."""
        return self._twins.found

    def observe(self, signals: Signals | None, now: float) -> EngineLimits:
        """The limits from now on.

        Args:
            signals: what was seen, None for a scrape that failed or is stale.
            now: the moment.
        """
        if signals is None:
            return self.limits
        rose = self._twins.look(signals, now)
        if self.not_one_engine:
            self.limits = self._configured
            return self.limits
        strained = self._is_strained(signals, rose=rose)
        if now >= self._rest_until_s:
            if strained:
                self._shrink(now)
            elif signals.gate_bound and _is_clean(signals):
                self._grow(now)
        self._see_foreign(signals)
        self._conclude()
        return self.limits

    def _is_strained(self, signals: Signals, *, rose: bool) -> bool:
        most = max(WAITING_LEAST, self._configured.slots / 8)
        if signals.capacity_waiting is not None:
            self._crowded = self._crowded + 1 if signals.capacity_waiting > most else 0
        full = signals.kv_usage is not None and signals.kv_usage > KV_FULL
        return rose or full or self._crowded >= 2 or signals.engine_rejections > 0

    def _shrink(self, now: float) -> None:
        self._slots = max(self._slots * SHRINK, self._floors.slots)
        self._prefill_tokens = max(self._prefill_tokens * SHRINK, self._floors.prefill_tokens)
        self._rest_until_s = now + COOL_DOWN_S

    def _grow(self, now: float) -> None:
        if now - self._grown_s < GROW_EVERY_S:
            return
        self._grown_s = now
        step = self._configured.token_budget / 4
        self._slots = min(self._slots + 1, self._configured.slots)
        self._prefill_tokens = min(self._prefill_tokens + step, self._configured.prefill_tokens)

    def _see_foreign(self, signals: Signals) -> None:
        """Two looks, the lesser counts: ours and theirs are not read in the same instant."""
        if signals.running is not None and signals.waiting is not None:
            foreign = max(0.0, signals.running + signals.waiting - signals.own_slots)
            self._foreign = (self._foreign[1], foreign)

    def _conclude(self) -> None:
        most = self._configured
        slots = int(min(self._slots, self._whole_slots - min(self._foreign)))
        tokens = int(self._prefill_tokens)
        self.limits = replace(
            most,
            slots=min(most.slots, max(slots, self._floors.slots)),
            prefill_tokens=min(most.prefill_tokens, max(tokens, self._floors.prefill_tokens)),
        )


class _Twins:
    """Watches for values that one process cannot show.

    A start time that comes back, or a count that falls and soon is where it was, again and again.
    """

    def __init__(self) -> None:
        self.found = False
        self._starts: list[float] = []
        self._count: float | None = None
        self._fell: tuple[float, float] | None = None
        self._relapses = 0

    def look(self, signals: Signals, now: float) -> bool:
        """Take one look; returns whether preemptions rose since the last."""
        self._look_at_start(signals.started_s)
        count, before = signals.preemptions_total, self._count
        if count is None:
            return False
        self._count = count
        if before is None or count == before:
            return False
        if count < before:
            self._fell = (before, now)
            return False
        if self._fell is None or count < self._fell[0]:
            return True
        if now - self._fell[1] <= RELAPSE_WITHIN_S:
            self._relapses += 1
            self.found = self.found or self._relapses >= RELAPSES
        self._fell = None
        return False

    def _look_at_start(self, started_s: float | None) -> None:
        if started_s is None or (self._starts and self._starts[-1] == started_s):
            return
        self.found = self.found or started_s in self._starts
        self._starts = [*self._starts[-1:], started_s]


def _is_clean(signals: Signals) -> bool:
    """Whether the engine said everything: what is not known is no reason to let more in."""
    said = (signals.preemptions_total, signals.capacity_waiting, signals.kv_usage)
    return None not in said
