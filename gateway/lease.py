"""The values of an engine's account: why a head is stopped, a hold, a lease, the account itself.

Pure: no I/O, no clock.
"""

from dataclasses import dataclass
from enum import Enum

from gateway.domain import FlowKey
from gateway.flows import Flow

__all__ = ["EngineView", "Hold", "Lease", "Obstacle"]


class Obstacle(Enum):
    """Why a head cannot go to an engine now: the first that applies, in this order."""

    UNUSABLE = "unusable"
    CLASS_CAP = "class_cap"
    SHARED = "shared"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Hold:
    """An engine kept for one head: other flows may use only their own unused reservations.

    ``exceptional`` marks a head that fits only an engine without other load: then the
    reservations of the others are suspended too.
    """

    flow: Flow
    ticket_id: int
    since_s: float
    exceptional: bool


@dataclass(slots=True)
class Lease:
    """What one request holds of one engine, from dispatch to release."""

    id: int
    ticket_id: int
    flow: Flow
    engine: str
    slots: int
    prompt_tokens: int
    kv_tokens: int
    output_charge_tokens: int
    streamed: bool
    dispatched_s: float
    prefill_ahead_tokens: int
    principal: str
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
