"""Replays a journal with and without the calls that concern other flows, and compares.

Ids differ between the two replays, so calls and verdicts are translated to the journal's own ids.
A call whose ticket or lease does not exist in a replay is left out there: the replays have then
differed already.
"""

from collections.abc import Callable, Sequence

from gateway.admission import Admission
from gateway.domain import FlowKey, MisuseError
from gateway.verdicts import Dispatched, Offer, Queued, RouteView, Topology, Verdict
from tests.gateway.admission_machine import Entry
from tests.gateway.admission_worlds import World

Kept = Callable[[FlowKey], bool]
OF_A_LEASE = {"prefill_done", "release", "grow", "requeue"}


def verdicts_of(result: object) -> list[Verdict]:
    found = result[1] if isinstance(result, tuple) else result
    return found if isinstance(found, list) else []


class Replay:
    """One replay on a fresh core, for the flows that ``kept`` names."""

    def __init__(self, world: World, journal: Sequence[Entry], kept: Kept) -> None:
        self.core = Admission(world.specs, world.topology, 0.0)
        self.kept = kept
        self.key_of: dict[int, FlowKey] = {}
        self.ticket_of: dict[int, int] = {}
        for _, args, _, result in journal:
            if isinstance(result, tuple) and isinstance(result[0], int):
                first = args[0]
                self.key_of[result[0]] = (
                    first.key if isinstance(first, Offer) else self.key_of[self.ticket_of[first]]  # type: ignore[index]
                )
            for verdict in verdicts_of(result):
                if isinstance(verdict, Dispatched):
                    self.ticket_of[verdict.lease_id] = verdict.ticket_id
        self.ours: dict[int, int] = {}
        self.theirs: dict[int, int] = {}
        self.leases: dict[int, int] = {}
        self.said: list[object] = []

    def concerned(self, name: str, args: tuple[object, ...], engines: set[str]) -> bool:
        """Whether a call may matter to the kept flows."""
        first = args[0] if args else None
        if name == "offer" and isinstance(first, Offer):
            return self.kept(first.key)
        if name == "cancel" and isinstance(first, int):
            return first in self.key_of and self.kept(self.key_of[first])
        if name in OF_A_LEASE and isinstance(first, int):
            return self.kept(self.key_of[self.ticket_of[first]])
        if name in {"set_engine", "adapt", "restarted", "gate_bound"}:
            return first in engines
        return True

    def perform(self, entry: Entry) -> None:
        name, args, kwargs, result = entry
        own = args
        if name in OF_A_LEASE:
            ticket = self.theirs.get(self.ticket_of[args[0]])  # type: ignore[index]
            if ticket not in self.leases:
                return
            own = (self.leases[ticket], *args[1:])
        elif name == "cancel":
            if args[0] not in self.theirs:
                return
            own = (self.theirs[args[0]], *args[1:])
        try:
            answer = getattr(self.core, name)(*own, **kwargs)
        except MisuseError:
            return
        if name in {"offer", "requeue"} and isinstance(result, tuple):
            self.ours[answer[0]], self.theirs[result[0]] = result[0], answer[0]
        for verdict in verdicts_of(answer):
            self.hear(verdict)

    def hear(self, verdict: Verdict) -> None:
        """Note a verdict under the journal's ticket id."""
        ticket = self.ours[verdict.ticket_id]
        if isinstance(verdict, Dispatched):
            self.leases[verdict.ticket_id] = verdict.lease_id
        if self.kept(self.key_of[ticket]):
            self.said.append(_sense(ticket, verdict))


def _sense(ticket: int, verdict: Verdict) -> object:
    if isinstance(verdict, Dispatched):
        return (ticket, "to", verdict.engine)
    if isinstance(verdict, Queued):
        return (ticket, "until", verdict.deadline_s)
    return (ticket, verdict.outcome, verdict.wait_s)


def _engines_of(world: World, kept: Kept) -> set[str]:
    """Engines that the kept flows use while the routes stand as they began."""
    names: set[str] = set()
    for spec in world.specs:
        if kept(FlowKey(*spec.group)):
            route = world.topology.routes[(spec.model, spec.size_class)]
            names.update(world.topology.pools[route.stable])
    return names


def _routes_kept(topology: object, kept: Kept) -> dict[object, RouteView]:
    assert isinstance(topology, Topology)
    return {k: v for k, v in topology.routes.items() if kept(FlowKey(k[0], k[1], ""))}


def first_difference(world: World, journal: Sequence[Entry], kept: Kept) -> object:
    """Where the kept flows' verdicts begin to depend on the others' calls; None if nowhere."""
    everything, alone = (Replay(world, journal, kept) for _ in range(2))
    engines = _engines_of(world, kept)
    routes = _routes_kept(world.topology, kept)
    for entry in journal:
        name, args = entry[:2]
        everything.perform(entry)
        concerned = alone.concerned(name, args, engines)
        if name == "reconfigure":
            concerned = routes != _routes_kept(args[1], kept)
            routes = _routes_kept(args[1], kept)
        if concerned:
            alone.perform(entry)
        if everything.said != alone.said:
            return entry, everything.said[-3:], alone.said[-3:]
        everything.said.clear()
        alone.said.clear()
    return None
