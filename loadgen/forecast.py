"""Says what a run should measure before it is run: the same trace in virtual time.

The policy is handed in (the load generator never imports the gateway); the engines are the
simulated ones' scheduler and cost. Pure: no I/O, no clock.
"""

from collections.abc import Callable, Mapping, Sequence

from loadgen.engine.cost import StepCost
from loadgen.engine.scheduler import SchedulerConfig
from loadgen.simulate import Delays, Policy, SimArrival, SimResult, nearest_rank, simulate
from loadgen.trace import Arrival

__all__ = ["forecast", "play"]

# Reading and tokenising a prompt in the engine's server: about 1.2 us per token for its tokenizer
# (tests/bench/bench_count.py prints it), once more for the body's way through two servers.
DELAYS = Delays(per_prompt_token_s=2.5e-6)
SERVICE_CLASS = {"short": "interactive", "long": "batch"}


def forecast(
    trace: Sequence[Arrival], policy: Policy, engines: int, cost: StepCost, from_s: float
) -> Mapping[str, Mapping[str, float]]:
    """Predicted ``ttft_p50_s`` and ``ttft_p95_s`` per class, of arrivals planned from ``from_s``.

    Quantiles are over answered requests, by nearest rank; a class without any is left out.
    """
    results = [r for r in play(trace, policy, engines, cost) if r.arrival.at_s >= from_s]
    told = {}
    for name in dict.fromkeys(a.size_class for a in trace):
        ttft_s = [r.ttft_s for r in results if r.arrival.size_class == name and r.ttft_s]
        if ttft_s:
            told[name] = {
                "ttft_p50_s": nearest_rank(ttft_s, 0.5),
                "ttft_p95_s": nearest_rank(ttft_s, 0.95),
            }
    return told


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
