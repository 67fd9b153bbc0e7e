"""Drives the admission core where there is no network: in virtual time, by sequence numbers.

The command line hands this to the load generator's simulation, whose policy protocol it meets
by shape; neither package imports the other. Pure: no I/O, no clock.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gateway.admission import Admission
from gateway.domain import FlowSpec
from gateway.verdicts import Dispatched, Offer, Refusal, Topology, Verdict

__all__ = ["VirtualGate", "core_of"]

Arrival = TypeVar("Arrival")
Action = TypeVar("Action")


def core_of(specs: Sequence[FlowSpec], topology: Topology) -> Admission:
    """A core at time 0 whose engines are all up."""
    core = Admission(specs, topology, 0.0)
    for name in topology.engines:
        core.set_engine(name, 0.0, up=True)
    return core


class VirtualGate(Generic[Arrival, Action]):
    """An admission core whose requests are numbers and whose engines are positions in a list.

    Args:
        core: the core, with its engines already up.
        engines: engine names in the simulation's order.
        classify: makes (seq, offer) of a simulated arrival at this moment.
        send: makes the simulation's action for a dispatch: (seq, engine position).
        refuse: makes its action for a refusal: (seq, outcome word).
    """

    def __init__(
        self,
        core: Admission,
        engines: Sequence[str],
        classify: Callable[[Arrival, float], tuple[int, Offer]],
        send: Callable[[int, int], Action],
        refuse: Callable[[int, str], Action],
    ) -> None:
        self.core = core
        self._index = {name: i for i, name in enumerate(engines)}
        self._classify = classify
        self._send = send
        self._refuse = refuse
        self._seqs: dict[int, int] = {}
        self._tickets: dict[int, int] = {}
        self._leases: dict[int, int] = {}

    def offer(self, arrival: Arrival, now: float) -> list[Action]:
        """Ask for admission."""
        seq, offer = self._classify(arrival, now)
        ticket_id, verdicts = self.core.offer(offer, now)
        self._seqs[ticket_id] = seq
        self._tickets[seq] = ticket_id
        return self._actions(verdicts)

    def first_event(self, seq: int, now: float) -> list[Action]:
        """A streamed answer began."""
        return self._actions(self.core.prefill_done(self._leases[seq], now))

    def finished(self, seq: int, now: float, output_tokens: int) -> list[Action]:
        """An answer is complete."""
        return self._actions(self.core.release(self._leases.pop(seq), now, output_tokens))

    def cancel(self, seq: int, now: float) -> list[Action]:
        """Its caller left: what it waited in or held is given back."""
        if seq in self._leases:
            return self._actions(self.core.release(self._leases.pop(seq), now))
        ticket_id = self._tickets.pop(seq, None)
        if ticket_id is None:
            return []
        # What is due at this moment may still name the leaver: its number goes last.
        actions = self._actions(self.core.cancel(ticket_id, now))
        self._seqs.pop(ticket_id, None)
        return actions

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        return self._actions(self.core.tick(now))

    def next_wakeup(self, now: float) -> float | None:
        """When something is due."""
        return self.core.next_wakeup(now)

    def _actions(self, verdicts: Sequence[Verdict]) -> list[Action]:
        actions = []
        for verdict in verdicts:
            if isinstance(verdict, Dispatched):
                seq = self._seqs.pop(verdict.ticket_id)
                self._tickets.pop(seq, None)
                self._leases[seq] = verdict.lease_id
                actions.append(self._send(seq, self._index[verdict.engine]))
            elif isinstance(verdict, Refusal):
                seq = self._seqs.pop(verdict.ticket_id)
                self._tickets.pop(seq, None)
                actions.append(self._refuse(seq, verdict.outcome))
        return actions
