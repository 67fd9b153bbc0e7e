"""The values of an engine's account: why a head is stopped, a hold, a lease, the account itself.

Pure: no I/O, no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gateway.domain import FlowKey
from gateway.flows import Flow, Ticket

__all__ = ["EngineView", "Hold", "Lease", "Obstacle", "Room"]


class Obstacle(Enum):
    """Why a head cannot go to an engine now: the first that applies, in this order.

    ``TOO_LARGE``: more than the limits of the moment allow on an empty engine (a ramp, a shrink).
    """

    UNUSABLE = "unusable"
    CLASS_CAP = "class_cap"
    TOO_LARGE = "too_large"
    SHARED = "shared"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Hold:
    """An engine kept for one head: other flows may use only their own unused reservations.

    ``exceptional`` marks a head that fits only an engine without other load: then the
    reservations of the others are suspended too.
    """

    flow: Flow
    ticket: Ticket
    since_s: float
    exceptional: bool


@dataclass(slots=True)
class Lease:
    """What one request holds of one engine, from dispatch to release."""

    id: int
    ticket: Ticket
    flow: Flow
    engine: str
    dispatched_s: float
    prefill_ahead_tokens: int
    kv_tokens: int
    output_charge_tokens: int
    prefill_until_s: float | None = None
    prefilling: bool = True


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine's account as a value, for the metrics and the operator."""

    engine: str
    usable: bool
    slots: int
    slot_limit: int
    prefill_tokens: int
    prefill_limit: int
    kv_tokens: int
    kv_limit: int
    prefilling: tuple[tuple[str, int], ...]
    held_for: FlowKey | None
    prefill_tokens_per_s: float


class Room(NamedTuple):
    """What a look at an engine saw: whether no slot was left, the full classes, the limit N."""

    spent: bool
    full: Sequence[str]
    slot_limit: int
