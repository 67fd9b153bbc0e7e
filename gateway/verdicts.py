"""The vocabulary of the admission core: what is asked of it, and what it answers.

Plain values, keyed by the core's own counters. Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.domain import AdmissionMode, Arm, EngineLimits, FlowKey, Outcome

__all__ = [
    "Dispatched",
    "FlowView",
    "Offer",
    "Queued",
    "Refusal",
    "RouteView",
    "Topology",
    "Verdict",
]


class Offer(NamedTuple):
    """A classified request, as it asks for admission.

    ``slots`` is n times the number of prompts, ``prompt_tokens`` the sum over prompts.
    ``affinity`` is a hash of the prompt's beginning and the caller, 0 for none.
    ``arrived_s`` is when its headers were complete; it ages from then.
    """

    key: FlowKey
    principal: str
    prompt_tokens: int
    arrived_s: float
    slots: int = 1
    max_tokens: int | None = None
    body_bytes: int = 0
    streamed: bool = True
    affinity: int = 0
    max_wait_s: float | None = None
    principal_cap: int | None = None


class Dispatched(NamedTuple):
    """Send it to this engine now, under this lease."""

    ticket_id: int
    engine: str
    lease_id: int


@dataclass(frozen=True, slots=True)
class Queued:
    """It waits; a later call dispatches it or refuses it by ``deadline_s``."""

    ticket_id: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """It is over. ``wait_s`` is how long the queue needs to drain, where that is known."""

    ticket_id: int
    outcome: Outcome
    wait_s: float | None = None


Verdict = Dispatched | Queued | Refusal


@dataclass(frozen=True, slots=True)
class RouteView:
    """Where the requests of one (model, size class) go now.

    ``draining``: none goes anywhere; what arrives or waits is refused as such.
    """

    stable: str
    candidate: str | None = None
    candidate_weight: float = 0.0
    mode: AdmissionMode = AdmissionMode.ENFORCE
    draining: bool = False

    def pool(self, arm: Arm) -> str:
        """The pool of an arm; without a candidate both arms are the stable pool."""
        return self.candidate if arm is Arm.CANDIDATE and self.candidate else self.stable


@dataclass(frozen=True, slots=True)
class Topology:
    """Limits by engine name, engine names by pool name, and (model, size class) to pools."""

    engines: Mapping[str, EngineLimits]
    pools: Mapping[str, Sequence[str]]
    routes: Mapping[tuple[str, str], RouteView]


@dataclass(frozen=True, slots=True)
class FlowView:
    """One flow's queue as a value; ``running`` are its requests that hold a lease."""

    key: FlowKey
    depth: int
    tokens: int
    bytes: int
    oldest_age_s: float
    max_age_s: float
    running: int
