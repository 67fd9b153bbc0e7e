"""Decides which flows there are, which engines each may use, and which flows compete.

The layout changes in whole steps. What a new configuration no longer names is not cut off. A flow
that is gone accepts nothing, and what waits in it drains on the engines it had for as long as those
exist; an engine that is gone takes nothing new, and its leases run to their end. Both are dropped
when they are at rest. What was learnt of groups and engines that stay is kept.
Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence

from gateway.domain import Arm, EngineLimits, FlowKey, FlowSpec, MisuseError
from gateway.flows import Flow, Group
from gateway.ledger import EngineLedger
from gateway.ring import Ring, shape_of
from gateway.verdicts import RouteView, Topology

__all__ = ["Layout", "rings_of"]

Routes = Mapping[tuple[str, str], RouteView]
LEAST_SPLIT = 0.01


class Layout:
    """Flows, engines and rings as the configuration in force has them.

    Args:
        specs: one per (model, size class, service class).
        topology: engines, pools and routes.
        now: the current moment.
        quantum: cost units per turn and weight; ``beta``: an output token's cost in prompt tokens.

    Raises:
        MisuseError: the topology names something that it does not define.
    """

    def __init__(
        self, specs: Sequence[FlowSpec], topology: Topology, now: float, quantum: float, beta: float
    ) -> None:
        self._quantum = quantum
        self._beta = beta
        self.engines: dict[str, EngineLedger] = {}
        self.groups: dict[tuple[str, str, str], Group] = {}
        self.flows: dict[FlowKey, Flow] = {}
        self.rings: dict[Flow, Ring] = {}
        self.engine_rings: dict[str, Ring] = {}
        self.leaving = False
        self._specs: dict[tuple[str, str, str], FlowSpec] = {}
        self._pools: dict[str, tuple[str, ...]] = {}
        self._routes: Routes = {}
        self.replace(specs, topology, now)

    # -- whole steps -----------------------------------------------------------------------

    def replace(self, specs: Sequence[FlowSpec], topology: Topology, now: float) -> None:
        """Put another configuration in force; nothing is changed if it does not hold together."""
        _check_pools(topology)
        _check_routes(topology.routes, topology.pools)
        by_group = {spec.group: spec for spec in specs}
        if len(by_group) < len(specs):
            raise MisuseError("two specifications of one flow")
        self._specs = by_group
        self._pools = {name: tuple(members) for name, members in topology.pools.items()}
        for group, spec in by_group.items():
            if group in self.groups:
                self.groups[group].spec = spec
            else:
                self.groups[group] = Group(spec)
        for name in self.engines.keys() - topology.engines.keys():
            self.engines[name].retire(now)
        for name, limits in topology.engines.items():
            self._keep_engine(name, limits, now)
        self._arrange(dict(topology.routes), now)

    # -- what leaves -----------------------------------------------------------------------

    def settle(self) -> None:
        """Drop what the configuration no longer names and is at rest now."""
        for key in [k for k, f in self.flows.items() if not (f.accepts or f.queue or f.running)]:
            del self.flows[key]
        for name in [n for n, e in self.engines.items() if e.retired and not e.slots_by_flow]:
            del self.engines[name]
        used = {flow.key.group for flow in self.flows.values()}
        gone = self.groups.keys() - self._specs.keys() - used
        for group in [g for g in gone if not self.groups[g].counting]:
            del self.groups[group]
        self.leaving = (
            any(not f.accepts for f in self.flows.values())
            or any(e.retired for e in self.engines.values())
            or self.groups.keys() != self._specs.keys()
        )

    # -- parts -----------------------------------------------------------------------------

    def _keep_engine(self, name: str, limits: EngineLimits, now: float) -> None:
        engine = self.engines.get(name)
        if engine is None:
            self.engines[name] = EngineLedger(name, limits, now)
        elif engine.retired:
            engine.revive(limits, now)
        elif engine.configured != limits:
            engine.set_limits(limits, now)

    def _arrange(self, routes: Routes, now: float) -> None:
        self._routes = routes
        for spec in self._specs.values():
            for arm in Arm:
                self._place(FlowKey(spec.model, spec.size_class, spec.service_class, arm))
        for flow in self.flows.values():
            if flow.key.group not in self._specs:
                self._dismiss(flow)
        for engine in self.engines.values():
            named = (f for f in self.flows.values() if engine in f.engines and f.routed)
            engine.reserve(named, now)
        rings = rings_of(self.flows.values(), self._quantum, self.rings)
        self.rings = {flow: ring for ring in rings for flow in ring.flows}
        self.engine_rings = {e.name: ring for ring in rings for e in ring.engines}
        for ring in rings:
            ring.look_again()
        self.settle()

    def _place(self, key: FlowKey) -> None:
        """Create or move one flow to where the route table says."""
        route = self._routes.get((key.model, key.size_class))
        flow = self.flows.get(key)
        if flow is None:
            if route is None or (key.arm is Arm.CANDIDATE and route.candidate is None):
                return
            flow = self.flows[key] = Flow(key, self.groups[key.group], 1.0, self._beta)
        if route is None:
            self._dismiss(flow)
            return
        flow.promise(self._beta)
        flow.accepts = True
        flow.routed = key.arm is Arm.STABLE or route.candidate is not None
        share = route.candidate_weight if route.candidate else 0.0
        part = share if key.arm is Arm.CANDIDATE else 1.0 - share
        flow.weigh(flow.group.spec.weight * max(part, LEAST_SPLIT), self._quantum)
        flow.mode, flow.draining = route.mode, route.draining
        pool = () if route.draining else self._pools[route.pool(key.arm)]
        flow.use(self.engines[e] for e in pool)

    def _dismiss(self, flow: Flow) -> None:
        flow.accepts = flow.routed = False
        flow.use(e for e in flow.engines if not e.retired)


def rings_of(flows: Iterable[Flow], quantum: float, before: Mapping[Flow, Ring]) -> list[Ring]:
    """Part the flows: those whose engines meet, directly or through others, share a ring.

    A ring of ``before`` whose flows, engines and weights are the same is kept as it is, with its
    turn and its holds; the holds of all others end.
    """
    parts: list[tuple[set[EngineLedger], list[Flow]]] = []
    for flow in flows:
        engines, members, apart = set(flow.engines), [flow], []
        for part in parts:
            if part[0] & engines:
                engines |= part[0]
                members = part[1] + members
            else:
                apart.append(part)
        parts = [*apart, (engines, members)]
    rings = []
    for _, members in parts:
        known = before.get(members[0])
        if known is None or known.shape != shape_of(members):
            for flow in members:
                if flow.hold is not None:
                    before[flow].end_hold(flow)
            known = Ring(members, quantum)
        rings.append(known)
    return rings


def _check_pools(topology: Topology) -> None:
    for name, members in topology.pools.items():
        for engine in members:
            if engine not in topology.engines:
                raise MisuseError(f"pool {name} names an unknown engine: {engine}")


def _check_routes(routes: Routes, pools: Mapping[str, Iterable[str]]) -> None:
    for (model, size), route in routes.items():
        for pool in {route.stable, route.candidate} - {None}:
            if pool not in pools:
                raise MisuseError(f"route {model}/{size} names an unknown pool: {pool}")
