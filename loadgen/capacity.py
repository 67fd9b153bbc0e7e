"""Says how much of a pool's engine time its offered requests need, before anything runs.

Work of a request, from the step costs: its prefill, its own share of every decode step, the
context each of its steps attends, and the base time of the steps that its prefill fills. A
prompt at least as large as the token budget spills into one step more, because running decodes
take part of the budget. The base time of decode steps is shared by the whole batch and left out:
the figure is a lower bound, so a pool above 1 cannot carry its load however it is batched.
Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Demand", "Pool", "StepCosts", "pool_utilisation", "request_work_s"]


class StepCosts(Protocol):
    """Coefficients of an engine step, in seconds per unit."""

    @property
    def base_s(self) -> float:
        """Time of a step that does nothing."""

    @property
    def prefill_token_s(self) -> float:
        """Per prompt token."""

    @property
    def decode_sequence_s(self) -> float:
        """Per decoding sequence."""

    @property
    def kv_token_s(self) -> float:
        """Per token of attended context."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one class offers: arrivals per second and the size of each."""

    rate_per_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Engines that share the work of some classes."""

    name: str
    classes: tuple[str, ...]
    engines: int


def request_work_s(costs: StepCosts, demand: Demand, budget_tokens: int) -> float:
    """Return the engine seconds that one request of this size needs at least."""
    prompt, output = demand.prompt_tokens, demand.output_tokens
    filled_steps = prompt // budget_tokens
    base_s = costs.base_s * (filled_steps + 1) if filled_steps else 0.0
    context_tokens = output * (prompt + output / 2)
    return (
        base_s
        + costs.prefill_token_s * prompt
        + costs.decode_sequence_s * output
        + costs.kv_token_s * context_tokens
    )


def pool_utilisation(
    pools: Sequence[Pool], demands: Mapping[str, Demand], costs: StepCosts, budget_tokens: int
) -> dict[str, float]:
    """Return offered work over capacity for each pool; above 1 the pool must fall behind."""
    work = {n: d.rate_per_s * request_work_s(costs, d, budget_tokens) for n, d in demands.items()}
    return {p.name: sum(work.get(c, 0.0) for c in p.classes) / p.engines for p in pools}
