"""Says what a run should measure before it is run: the same trace in virtual time.

The policy is handed in (the load generator never imports the gateway); the engines are the
simulated ones' scheduler and cost. Pure: no I/O, no clock.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from loadgen.analyse import quantile
from loadgen.engine.cost import StepCost
from loadgen.engine.scheduler import SchedulerConfig
from loadgen.record import SERVICE_CLASS
from loadgen.simulate import Delays, Policy, SimArrival, SimResult, simulate
from loadgen.trace import Arrival

__all__ = ["forecast", "play"]

# What gateway and engine server take beside the engine's steps, in real seconds, fitted to a sweep
# on two cores: counting and the body's way through two servers, the engine's one tokenizer, a
# relayed event. `bench simulate --compare` says how far a simulated run is from a measured one.
DELAYS = Delays(
    to_engine_s=0.006,
    back_s=0.002,
    per_prompt_token_s=1.2e-6,
    read_token_s=3.5e-6,
    per_event_s=2e-4,
)


def forecast(
    trace: Sequence[Arrival], policy: Policy, engines: int, cost: StepCost, from_s: float
) -> Mapping[str, Mapping[str, float]]:
    """Predicted ``ttft_p50_s`` and ``ttft_p95_s`` per class, of arrivals planned from ``from_s``.

    Quantiles are those of the measurement: over every offered request, one that is not answered
    counting as infinite. A class of which nothing is offered from ``from_s`` on is left out.
    """
    ttft_s: dict[str, list[float]] = {}
    for result in play(trace, policy, engines, cost):
        if result.arrival.at_s >= from_s:
            ttft_s.setdefault(result.arrival.size_class, []).append(_offered_ttft_s(result))
    return {
        name: {"ttft_p50_s": quantile(values, 0.5), "ttft_p95_s": quantile(values, 0.95)}
        for name, values in ttft_s.items()
    }


def _offered_ttft_s(result: SimResult) -> float:
    return result.ttft_s if result.done and result.ttft_s is not None else math.inf


def play(
    trace: Sequence[Arrival],
    policy: Policy,
    engines: int,
    cost: StepCost,
    config: Callable[[], SchedulerConfig] = SchedulerConfig,
) -> list[SimResult]:
    """Run a frozen trace through a policy at simulated engines of one configuration."""
    arrivals = [
        SimArrival(
            a.seq,
            a.offset_us / 1e6,
            a.size_class,
            a.input_tokens,
            a.output_tokens,
            service_class=SERVICE_CLASS.get(a.size_class, a.size_class),
        )
        for a in trace
    ]
    return simulate(arrivals, policy, [config() for _ in range(engines)], cost, DELAYS)
