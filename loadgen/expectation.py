"""Says what to expect of a plan before anything runs: load, error rates of the rule, verdict.

The plan's own runs are played in virtual time. The rule's error rates come from sweeps that are
made up of the baseline's runs on further traces of the same kind: every cell of a round gets the
same trace's run, each changed by a run-to-run variation of its own; one cell may get a planted
gain. Then the rule itself is applied to each. Pure: no I/O, no clock.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadgen.analyse import reduce_run
from loadgen.arrivals import TraceSpec, change_of, draw
from loadgen.capacity import Demand, Pool, pool_utilisation
from loadgen.decide import decide
from loadgen.engine.cost import StepCost
from loadgen.engine.scheduler import SchedulerConfig
from loadgen.facts import MEASURES, ClassFacts, RunFacts, facts_from_values
from loadgen.record import BenchError, digest
from loadgen.recovery import recovery_s
from loadgen.simulate import PassThrough
from loadgen.sweep_analysis import analyse_sweep
from loadgen.trace import Arrival
from loadgen.virtual_run import VirtualRun, World, cell_args, scheduler_config, virtual_run

__all__ = [
    "Load",
    "Planted",
    "TraceOf",
    "baseline_rounds",
    "drawn_trace",
    "error_rates",
    "expected",
    "load_of",
    "play_plan",
]

Json = Mapping[str, Any]
# A stratum is falling behind if the engine holds this many times more at the end of the window
# than at its beginning, and a few requests more.
GROWTH, FEW = 1.5, 3.0


def _spec(plan: Json, run: Json) -> TraceSpec:
    drawn_as = plan["derived_mixes"].get(run["mix"], run["mix"])
    shares = plan["mixes"][drawn_as]
    if not shares:
        raise BenchError(f"mix {run['mix']}: replays a recorded trace, so it can't be drawn again")
    repeat = "" if plan["traces_mode"] == "shared" else f"-r{run['repeat']}"
    name = f"{drawn_as}-{run['rate']}{repeat}"
    times = plan["intervals"]
    return TraceSpec(
        seed=int(digest(f"{plan['seed']}:{name}".encode())[:8], 16),
        rate_per_s=plan["rates"][drawn_as][run["rate"]],
        mix=tuple(shares.items()),
        ramp_s=times["ramp_s"],
        window_s=times["window_s"],
        **plan["arrivals"],
    )


def drawn_trace(plan: Json, run: Json) -> tuple[Arrival, ...]:
    """Draw the trace of a run again from the plan: times, classes and sizes, without prompts.

    Raises:
        BenchError: its mix replays a recorded trace, which the plan does not hold.
    """
    spec = _spec(plan, run)
    sizes = {n: (c["prompt_tokens"], c["output_tokens"]) for n, c in plan["classes"].items()}
    return tuple(
        Arrival(n, name, at_us, *sizes[name], "")
        for n, (at_us, name) in enumerate(draw(spec))
        if name in plan["mixes"][run["mix"]]
    )


TraceOf = Callable[[Json, Json], Sequence[Arrival]]


def _config(plan: Json, run: Json) -> SchedulerConfig:
    return scheduler_config(cell_args(plan, run["cell_id"]))


def _play(plan: Json, run: Json, cost: StepCost, trace: Sequence[Arrival]) -> VirtualRun:
    times = plan["intervals"]
    world = World((_config(plan, run),), cost, times["ramp_s"], times["timeout_s"])
    return virtual_run(trace, PassThrough(1), world)


def _facts(plan: Json, run: Json, planned: int, made: VirtualRun) -> RunFacts:
    virtual = {"virtual": True, "synthetic": True}
    return reduce_run(run, plan, planned, made.records, made.samples, virtual)


@dataclass(frozen=True, slots=True)
class Load:
    """What a cell's engine is asked in a stratum, and what it holds of it.

    `work` is offered engine time over time there is: a lower bound. In flight, waiting and KV are
    of the window's seconds; `seats` is the sequence limit.
    """

    cell_id: str
    mix: str
    rate: str
    work: float
    in_flight_mean: float
    in_flight_most: float
    seats: int
    waiting_most: float
    kv_most: float
    falls_behind: bool
    recovered_s: Mapping[str, float | None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _work(plan: Json, run: Json, cost: StepCost) -> float:
    shares = plan["mixes"][run["mix"]]
    demands = {
        name: Demand(run["rate_per_s"] * share, c["prompt_tokens"], c["output_tokens"])
        for name, share in shares.items()
        for c in (plan["classes"][name],)
    }
    budget = _config(plan, run).max_num_batched_tokens
    return pool_utilisation([Pool("all", tuple(demands), 1)], demands, cost, budget)["all"]


def load_of(plan: Json, run: Json, cost: StepCost, made: VirtualRun) -> Load:
    """Return the load of a run that was played in virtual time."""
    times = plan["intervals"]
    begin_s, end_s = times["ramp_s"], times["ramp_s"] + times["window_s"]
    rows = [r for r in made.samples if r["source"] == "engine" and begin_s <= r["t_s"] <= end_s]
    held = [float(r["running"] + r["waiting"]) for r in rows]
    third = max(1, len(held) // 3)
    early, late, work = _mean(held[:third]), _mean(held[-third:]), _work(plan, run, cost)
    return Load(
        cell_id=run["cell_id"],
        mix=run["mix"],
        rate=run["rate"],
        work=work,
        in_flight_mean=_mean(held),
        in_flight_most=max(held, default=0.0),
        seats=_config(plan, run).max_num_seqs,
        waiting_most=max((float(r["waiting"]) for r in rows), default=0.0),
        kv_most=max((r["kv_usage"] for r in rows), default=0.0),
        falls_behind=work >= 1 or late > GROWTH * early + FEW,
        recovered_s=_recovered_s(plan, run, made),
    )


def _recovered_s(plan: Json, run: Json, made: VirtualRun) -> dict[str, float | None]:
    """Return how long each class needs after a change of the rate; nothing where it is steady."""
    changes_s = (
        change_of(_spec(plan, run)) if plan["arrivals"]["kind"] in ("step", "burst") else None
    )
    if changes_s is None:
        return {}
    if plan["arrivals"]["kind"] == "step":
        changes_s = changes_s[0], changes_s[0]  # the new rate stays: how long until it is usual
    return {n: recovery_s(made.records, changes_s, n) for n in plan["mixes"][run["mix"]]}


def play_plan(
    plan: Json, cost: StepCost, trace_of: TraceOf = drawn_trace
) -> Iterator[tuple[RunFacts, Load]]:
    """Yield each run of the plan, played in virtual time, with its load."""
    for run in plan["runs"]:
        trace = trace_of(plan, run)
        made = _play(plan, run, cost, trace)
        yield _facts(plan, run, len(trace), made), load_of(plan, run, cost, made)


def expected(plan: Json, facts: Sequence[RunFacts]) -> Json:
    """Return the decision that the rule makes of these runs."""
    return decide(analyse_sweep(plan, {}, facts), "")


@dataclass(frozen=True, slots=True)
class Planted:
    """What made-up sweeps hold: the deviation of ln latency from run to run, and one cell's gain.

    The gain is a share of each of `measures`; without a cell nobody gains, and all are alike.
    """

    variation: float = 0.05
    cell_id: str | None = None
    gain: float = 0.0
    measures: tuple[str, ...] = ("max_stall_s",)


Stratum = tuple[str, str]
Pools = Sequence[Mapping[Stratum, RunFacts]]


def baseline_rounds(plan: Json, cost: StepCost, count: int) -> Iterator[Mapping[Stratum, RunFacts]]:
    """Yield what B0 does in each stratum on further traces, drawn as the plan's own are."""
    fresh = {**plan, "traces_mode": "per-round"}
    for number in range(1, count + 1):
        told = {}
        for s in plan["strata"]:
            run_id = f"x{number}-B0-{s['mix']}-{s['rate']}"
            # Beyond every round of the plan, so that none of its own traces is used.
            run = {**s, "run_id": run_id, "cell_id": "B0", "repeat": 1000 + number, "trace": ""}
            trace = drawn_trace(fresh, run)
            made = _play(fresh, run, cost, trace)
            told[s["mix"], s["rate"]] = _facts(fresh, run, len(trace), made)
        yield told


def _varied(facts: ClassFacts, factors: Mapping[str, float], limits: Json) -> ClassFacts:
    values = {
        name: tuple(v * factors.get(name, 1.0) for v in column)
        for name, column in facts.values.items()
    }
    if len({len(column) for column in values.values()}) > 1:
        return replace(facts, values=values)
    return facts_from_values(values, limits)


def _factors(planted: Planted, run: Json, rng: random.Random) -> dict[str, float]:
    """Return by what a run differs from the baseline's on the same trace."""
    factors = {name: math.exp(rng.gauss(0.0, planted.variation)) for name in MEASURES}
    if run["cell_id"] == planted.cell_id:
        for name in planted.measures:
            factors[name] *= 1 - planted.gain
    return factors


def _made_up(plan: Json, pools: Pools, planted: Planted, rng: random.Random) -> list[RunFacts]:
    rounds = rng.sample(range(len(pools)), plan["rounds"])
    made = []
    for run in plan["runs"]:
        source = pools[rounds[run["repeat"] - 1]][run["mix"], run["rate"]]
        own = _factors(planted, run, rng)
        classes = {n: _varied(f, own, plan["contract"][n]) for n, f in source.classes.items()}
        identity = {"run_id": run["run_id"], "unit": run["cell_id"]}
        row = {**source.row, **identity}
        made.append(replace(source, **identity, repeat=run["repeat"], row=row, classes=classes))
    return made


def error_rates(
    plan: Json,
    pools: Pools,
    planted: Planted,
    sweeps: int,
    seed: int = 1,
    watch: Callable[[int], None] = lambda _: None,
) -> dict[str, float]:
    """Return the share of made-up sweeps that end in each verdict.

    Args:
        plan: of the sweep; its rule, counts and limits apply.
        pools: B0's runs on many traces, as `baseline_rounds` yields them.
        planted: what differs between the cells.
        sweeps: how many to make up.
        seed: of the made-up sweeps.
        watch: is told how many are done.

    Raises:
        BenchError: there are fewer traces than the plan has rounds.
    """
    if len(pools) < plan["rounds"]:
        raise BenchError(f"{len(pools)} traces are too few for {plan['rounds']} rounds")
    rng = random.Random(f"sluicegate-expectation:{seed}")
    verdicts = Counter[str]()
    for done in range(1, sweeps + 1):
        verdicts[expected(plan, _made_up(plan, pools, planted, rng))["verdict"]] += 1
        watch(done)
    return {verdict: count / sweeps for verdict, count in sorted(verdicts.items())}
