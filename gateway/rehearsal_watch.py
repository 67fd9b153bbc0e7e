"""Watches a route while it is rehearsed: its requests, its queue, the engines of both pools.

Requests are heard at their end; room and ages are sampled; the baseline is asked itself.
"""

import asyncio
from collections.abc import Sequence

from gateway.app import Gateway
from gateway.finished import Finished
from gateway.lease import EngineView
from gateway.rehearsal_facts import Capacity, Phase, Probe, Seen, phase_of
from gateway.routing import Route
from gateway.visit import Visit
from gateway.warm_probe import questions, warm_probe
from gateway.watch import Contract, Tally, behind, tally, total

__all__ = ["LOOK_S", "RouteWatch"]

LOOK_S = 0.05
MOST_SEEN = 200_000


class RouteWatch:
    """What is seen of one route between its stable pool and a candidate.

    Args:
        gateway: whose route it is.
        route: as it was before anything moved.
        candidate: the pool it is to move to.
    """

    def __init__(self, gateway: Gateway, route: Route, candidate: str) -> None:
        self.began_s: dict[Phase, float] = {}
        self.seen: list[Seen] = []
        self.counted = dict.fromkeys(Phase, Tally())
        self.prefill = dict.fromkeys(Phase, 0.0)
        self.oldest_s = dict.fromkeys(Phase, 0.0)
        self.tried = 0  # requests of the canary phase that the candidate served
        self._gateway, self._clock = gateway, gateway.parts.clock
        self._baseline, self._candidate = route.stable_pool, candidate
        self._key = route.model, route.size_class
        self._served: list[tuple[int, float]] = []  # by the baseline before: tokens, seconds

    # -- requests --------------------------------------------------------------------------

    def hear(self, finished: Finished) -> None:
        """Take a request at its end."""
        if not self.began_s or len(self.seen) >= MOST_SEEN:
            return
        if Phase.CANARY not in self.began_s:
            self._note_served(finished)
        if (finished.model, finished.size_class) != self._key:
            return
        counted = tally(finished, self.contract())
        began = finished.arrived_s, finished.dispatched_s, finished.first_event_s
        ended = finished.ended_s, finished.pool, str(finished.outcome)
        self.seen.append(Seen(*began, *ended, counted, finished.key_id))
        phase = phase_of(self.began_s, finished.arrived_s)
        if phase is not None:
            self.counted[phase] = total((self.counted[phase], counted))
        if phase is Phase.CANARY and finished.pool == self._candidate:
            self.tried += counted.ended

    def _note_served(self, finished: Finished) -> None:
        if finished.pool == self._baseline and finished.dispatched_s is not None:
            held_s = finished.ended_s - finished.dispatched_s
            self._served.append((finished.prompt_tokens or 0, held_s))

    def note_running(self) -> None:
        """Take what still runs: late or stalled already, or just not over."""
        for visit in list(self._gateway.running):
            if (visit.model, visit.size_class) == self._key:
                self.seen.append(self._running(visit))

    def _running(self, visit: Visit) -> Seen:
        marks, now, contract = visit.marks, self._clock(), self.contract()
        began = visit.arrived_s, marks.dispatched_s, marks.first_event_s
        late, stalled = behind(
            visit.arrived_s, marks.first_event_s, marks.last_event_s, now, contract
        )
        counted = Tally(1, 0, int(late), int(stalled)) if late or stalled else Tally()
        caller = None if visit.principal is None else visit.principal.key_id
        return Seen(*began, None, visit.pool, None, counted, caller)

    def offered(self, phase: Phase) -> int:
        """Requests of a phase that count for something."""
        return self.counted[phase].ended + self.counted[phase].refused

    def contract(self) -> Contract:
        """What the route's size class promises."""
        size = self._gateway.setup.settings.document.size[self._key[1]]
        return Contract(size.ttft_limit_s, size.max_stall_s)

    # -- engines ---------------------------------------------------------------------------

    async def sample(self) -> None:
        """Note room and ages until cancelled."""
        while True:
            phase = phase_of(self.began_s, self._clock())
            if phase is not None:
                pool = self._candidate if phase is Phase.FLIP else self._baseline
                self.prefill[phase] = max(self.prefill[phase], self._prefill_part(pool))
                self.oldest_s[phase] = max(self.oldest_s[phase], self._oldest_now_s())
            await asyncio.sleep(LOOK_S)

    def _prefill_part(self, pool: str) -> float:
        views = self.usable(pool)
        room = sum(view.prefill_limit for view in views)
        return sum(view.prefill_tokens for view in views) / room if room else 0.0

    def _oldest_now_s(self) -> float:
        now, flows = self._clock(), self._gateway.parts.turnstile.core.flows.items()
        ages = (flow.oldest_age_s(now) for key, flow in flows if key[:2] == self._key)
        return max(ages, default=0.0)

    def usable(self, pool: str) -> list[EngineView]:
        """The engines of a pool that may get work now."""
        names = self._gateway.parts.fleet.pools.get(pool, ())
        views = self._gateway.parts.turnstile.core.engine_views()
        return [view for view in views if view.engine in names and view.usable]

    def capacity(self) -> Capacity:
        """What the baseline has, and what it served since the first phase began."""
        up = self.usable(self._baseline)
        span_s = max(self._clock() - self.began_s.get(Phase.BEFORE, self._clock()), 1e-3)
        count, offered = len(self._served), self.offered(Phase.BEFORE)
        return Capacity(
            engines=len(self._gateway.parts.fleet.pools.get(self._baseline, ())),
            usable=len(up),
            seats=sum(view.slot_limit for view in up),
            busy=sum(view.slots for view in up),
            requests_per_s=count / span_s,
            mean_s=sum(held_s for _, held_s in self._served) / count if count else 0.0,
            prefill_tokens_per_s=sum(view.prefill_tokens_per_s for view in up),
            prefill_needed_per_s=sum(tokens for tokens, _ in self._served) / span_s,
            refused=self.counted[Phase.BEFORE].refused / offered if offered else 0.0,
        )

    async def probe(self, ratio: float = 1.0) -> Sequence[Probe]:
        """A warm probe of every engine of the baseline, in each size class.

        Args:
            ratio: of a class's TTFT limit, within which the first token is due.
        """
        settings, model = self._gateway.setup.settings, self._key[0]
        asked = questions(settings.sizes, settings.document.model[model].max_model_len, ratio)
        engine_model = self._gateway.setup.table.models[model].engine_model
        prober = self._gateway.parts.prober
        names = self._gateway.parts.fleet.pools.get(self._baseline, ())
        work = (warm_probe(prober.endpoint(n), engine_model, asked, self._clock) for n in names)
        return [probe for found in await asyncio.gather(*work) for probe in found]
