"""Prints what to expect of a plan before anything runs: load, verdict, the rule's error rates."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from loadgen.engine.cost import StepCost
from loadgen.expectation import (
    Load,
    Planted,
    TraceOf,
    baseline_rounds,
    drawn_trace,
    error_rates,
    expected,
    play_plan,
)

__all__ = ["Watch", "check_plan", "show_check"]

T = TypeVar("T")
Json = dict[str, Any]
# Is told a stage, how much of it is done, and of how much.
Watch = Callable[[str, int, int], None]
# Traces that made-up sweeps choose their rounds from, as a multiple of the rounds.
TRACES_PER_ROUND = 8
LOAD_TITLE = (
    "load in virtual time, busiest round: engine time asked, in flight on average and at most, "
    "waiting and KV at most"
)
VARIATION, GAIN = 0.05, 0.20


def _most(loads: Iterable[Load]) -> list[Json]:
    """Return each cell and stratum once, as its busiest round has it."""
    busiest: dict[tuple[str, str, str], Load] = {}
    for load in loads:
        key = load.cell_id, load.mix, load.rate
        if key not in busiest or load.in_flight_mean > busiest[key].in_flight_mean:
            busiest[key] = load
    return [asdict(busiest[key]) for key in sorted(busiest)]


def _silent(_stage: str, _done: int, _total: int) -> None:
    """Nobody watches."""


def _watched(watch: Watch, stage: str, total: int, items: Iterable[T]) -> Iterator[T]:
    watch(stage, 0, total)
    for done, item in enumerate(items, 1):
        watch(stage, done, total)
        yield item


def check_plan(
    plan: Mapping[str, Any],
    cost: StepCost,
    sweeps: int,
    trace_of: TraceOf = drawn_trace,
    watch: Watch = _silent,
) -> Json:
    """Return the plan's forecast: load by cell and stratum, decision, error rates and power.

    Args:
        plan: of kind sweep.
        cost: of an engine step.
        sweeps: how many to make up for each rate; 0 leaves the rates out.
        trace_of: gives a run's trace; by default it is drawn again.
        watch: is told how far it is; all of it may take minutes.

    Raises:
        BenchError: a cell's arguments are impossible, or a mix can't be drawn again.
    """
    runs = play_plan(plan, cost, trace_of)
    played = list(_watched(watch, "playing the plan's runs", len(plan["runs"]), runs))
    decision = expected(plan, [facts for facts, _ in played])
    told: Json = {
        "kind": "check",
        "loads": _most(load for _, load in played),
        "verdict": decision["verdict"],
        "reasons": decision["reasons"],
    }
    if sweeps:
        told["rates"] = _rates(plan, cost, sweeps, watch)
    return told


def _rates(plan: Mapping[str, Any], cost: StepCost, sweeps: int, watch: Watch) -> Json:
    count = TRACES_PER_ROUND * plan["rounds"]
    rounds = baseline_rounds(plan, cost, count)
    pools = list(_watched(watch, "playing further rounds of B0", count, rounds))
    others = [c["cell_id"] for c in plan["cells"] if c["cell_id"] != "B0" and "aa_of" not in c]

    def rates(planted: Planted, stage: str) -> dict[str, float]:
        said = partial(watch, f"deciding made-up sweeps, {stage}")
        return error_rates(plan, pools, planted, sweeps, watch=lambda done: said(done, sweeps))

    same = rates(Planted(VARIATION), "all alike")
    told: Json = {"sweeps": sweeps, "variation": VARIATION, "all_alike": same}
    if others:
        found = rates(Planted(VARIATION, others[0], GAIN), f"{others[0]} better")
        told["planted"] = {"cell_id": others[0], "gain": GAIN, "verdicts": found}
    return told


def _load_table(loads: Sequence[Json]) -> Table:
    table = Table(title=LOAD_TITLE, title_justify="left")
    for name in ("cell", "mix", "rate"):
        table.add_column(name)
    for name in ("work", "in flight", "most", "seats", "waiting", "KV"):
        table.add_column(name, justify="right")
    table.add_column("")
    for load in loads:
        table.add_row(
            load["cell_id"],
            load["mix"],
            load["rate"],
            f"{load['work']:.0%}",
            f"{load['in_flight_mean']:.1f}",
            f"{load['in_flight_most']:.0f}",
            str(load["seats"]),
            f"{load['waiting_most']:.0f}",
            f"{load['kv_most']:.0%}",
            _note(load),
        )
    return table


def _note(load: Json) -> str:
    notes = ["falls behind"] if load["falls_behind"] else []
    if load["in_flight_mean"] > load["seats"]:
        notes.append("more than its seats")
    for name, seconds in load["recovered_s"].items():
        notes.append(f"{name} recovers " + ("not" if seconds is None else f"in {seconds:.1f} s"))
    return ", ".join(notes)


def _rate_lines(rates: Json) -> Iterable[str]:
    variation = f"{rates['variation']:.0%} run-to-run variation, {rates['sweeps']} made-up sweeps"
    yield f"the rule on these counts ({variation}):"
    yield f"  cells all alike: {_shares(rates['all_alike'])}"
    if planted := rates.get("planted"):
        what = f"{planted['cell_id']} with stalls {planted['gain']:.0%} shorter"
        yield f"  {what}: {_shares(planted['verdicts'])}"


def _shares(verdicts: Mapping[str, float]) -> str:
    ordered = sorted(verdicts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in ordered)


def show_check(console: Console, told: Json) -> None:
    """Print a forecast."""
    console.print(_load_table(told["loads"]))
    lines = [f"expected verdict: {told['verdict']}", *(f"  {why}" for why in told["reasons"])]
    if "rates" in told:
        lines += _rate_lines(told["rates"])
    lines.append("all of it in virtual time with the step costs given: synthetic")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
