"""Tells what the admission core does with named requests, one line a verdict.

``Gate.offer("a", "short")`` answers ``["a -> e0"]``, ``["a waits"]`` or ``["a: queue_full"]``,
after whatever else fell in the same call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.admission import Admission
from gateway.domain import AdmissionMode, Arm, EngineLimits, FlowKey, FlowSpec
from gateway.verdicts import Dispatched, Offer, Queued, RouteView, Topology, Verdict

TOKENS = {"short": 512, "long": 8192}
LIMITS = EngineLimits(
    slots=128, prefill_tokens=60_000, kv_tokens=1_000_000, max_prefilling=(("long", 1),)
)
SHORT = FlowSpec("m", "short", "chat", weight=4.0, largest_prompt_tokens=512)
LONG = FlowSpec("m", "long", "chat", largest_prompt_tokens=8192)
SHORT_SEATS = replace(SHORT, reserved_slots=2, reserved_prefill_tokens=1024)


class Gate:
    """A core at ``now`` seconds whose requests have names."""

    def __init__(
        self,
        specs: Sequence[FlowSpec] = (SHORT, LONG),
        engines: Mapping[str, EngineLimits] | None = None,
        routes: Mapping[tuple[str, str], RouteView] | None = None,
        pools: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        engines = {"e0": LIMITS} if engines is None else engines
        self.routes = routes or {(s.model, s.size_class): RouteView("all") for s in specs}
        self.specs = specs
        self.topology = Topology(engines, {"all": tuple(engines), **(pools or {})}, self.routes)
        self.core = Admission(specs, self.topology, 0.0)
        self.now = 0.0
        self.names: dict[int, str] = {}
        self.tickets: dict[str, int] = {}
        self.leases: dict[str, int] = {}
        for engine in engines:
            self.core.set_engine(engine, 0.0, up=True)

    def offer(
        self, name: str, size: str = "short", *, arm: Arm = Arm.STABLE, service: str = "chat",
        model: str = "m", **facts: object,
    ) -> list[str]:  # fmt: skip
        defaults: dict[str, object] = {"principal": name, "prompt_tokens": TOKENS[size]}
        key = FlowKey(model, size, service, arm)
        offer = Offer(key, arrived_s=self.now, **(defaults | facts))  # type: ignore[arg-type]
        ticket, verdicts = self.core.offer(offer, self.now)
        self.names[ticket], self.tickets[name] = name, ticket
        return self.tell(verdicts)

    def ask(self, name: str, size: str = "short", **facts: object) -> str:
        """The new request's own answer: an engine, ``waits``, or why it was refused."""
        line = self.offer(name, size, **facts)[-1]  # type: ignore[arg-type]
        return line.removeprefix(name).removeprefix(":").removeprefix(" ->").strip()

    def first_event(self, name: str) -> list[str]:
        return self.tell(self.core.prefill_done(self.leases[name], self.now))

    def done(self, name: str, output_tokens: int | None = None) -> list[str]:
        return self.tell(self.core.release(self.leases.pop(name), self.now, output_tokens))

    def fails(self, name: str, *, avoid: bool = True) -> list[str]:
        """The engine failed before the first byte of this request."""
        lease = self.leases.pop(name)
        ticket, verdicts = self.core.requeue(lease, self.now, avoid=avoid)
        self.names[ticket], self.tickets[name] = name, ticket
        return self.tell(verdicts)

    def leaves(self, name: str) -> list[str]:
        return self.tell(self.core.cancel(self.tickets[name], self.now))

    def wait(self, seconds: float) -> list[str]:
        """Let time pass; the timer fires whenever the core asked for it, and at the end."""
        end, told = self.now + seconds, []
        while (due := self.core.next_wakeup(self.now)) is not None and due <= end:
            self.now = max(self.now, due)
            told += self.tell(self.core.tick(self.now))
        self.now = end
        return told + self.tell(self.core.tick(end))

    def engine(self, name: str, **change: bool) -> list[str]:
        return self.tell(self.core.set_engine(name, self.now, **change))

    def limits(self, name: str, limits: EngineLimits) -> list[str]:
        return self._change(engines={**self.topology.engines, name: limits})

    def route(self, stable: str, candidate: str | None = None, weight: float = 0.0,
              mode: AdmissionMode = AdmissionMode.ENFORCE) -> list[str]:  # fmt: skip
        view = RouteView(stable, candidate, weight, mode)
        return self.reroute(dict.fromkeys(self.routes, view))

    def reroute(self, routes: Mapping[tuple[str, str], RouteView]) -> list[str]:
        return self._change(routes=routes)

    def _change(self, **what: object) -> list[str]:
        self.topology = replace(self.topology, **what)  # type: ignore[arg-type]
        return self.tell(self.core.reconfigure(self.specs, self.topology, self.now))

    def tell(self, verdicts: Sequence[Verdict]) -> list[str]:
        return [self._line(v) for v in verdicts]

    def _line(self, verdict: Verdict) -> str:
        name = self.names[verdict.ticket_id]
        if isinstance(verdict, Dispatched):
            self.leases[name] = verdict.lease_id
            return f"{name} -> {verdict.engine}"
        if isinstance(verdict, Queued):
            return f"{name} waits"
        return f"{name}: {verdict.outcome}"

    def prefilling(self, engine: str = "e0") -> dict[str, int]:
        views = {v.engine: dict(v.prefilling) for v in self.core.engine_views()}
        return {size: n for size, n in views[engine].items() if n}
