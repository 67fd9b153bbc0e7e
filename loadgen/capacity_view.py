"""Climbs the rate ladder of a cell and a mix and prints it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.table import Table

from loadgen.engine.cost import StepCost
from loadgen.rate_ladder import STEPS, knee, ladder
from loadgen.record import BenchError
from loadgen.saturation import completions_per_s, level_search
from loadgen.virtual_run import cell_args, scheduler_config

__all__ = ["capacity_of", "capacity_table"]

Json = dict[str, Any]


def capacity_of(plan: Mapping[str, Any], cell_id: str, mix: str, cost: StepCost) -> Json:
    """Return a cell's ladder on a mix: rates as shares of its own completions at saturation.

    Raises:
        BenchError: the plan has no such cell or mix.
    """
    engine = scheduler_config(cell_args(plan, cell_id)), cost
    if not plan["mixes"].get(mix):
        raise BenchError(f"mix {mix!r}: the sweep has {', '.join(plan['mixes'])}")
    sizes = {n: (c["prompt_tokens"], c["output_tokens"]) for n, c in plan["classes"].items()}
    shares = plan["mixes"][mix]
    per_s = level_search(lambda n: completions_per_s(shares, sizes, engine, n)).per_s
    rungs = list(ladder(plan, (cell_id, mix), [round(s * per_s, 2) for s in STEPS], cost))
    return {
        "cell_id": cell_id,
        "mix": mix,
        "saturation_per_s": per_s,
        "knee_per_s": knee(rungs, plan["contract"]),
        "rungs": [asdict(rung) for rung in rungs],
    }


def capacity_table(told: Mapping[str, Any]) -> Table:
    """Return a ladder as a table: attainment and goodput of each class at each offered rate."""
    at = told["knee_per_s"]
    found = "below the ladder" if at is None else f"at {at:g}/s"
    most = f"{told['saturation_per_s']:.1f}/s at saturation"
    title = f"{told['cell_id']} on {told['mix']}: {most}, knee {found}"
    table = Table(title=title, title_justify="left")
    names = list(told["rungs"][0]["attainment"])
    table.add_column("offered/s", justify="right")
    for name in names:
        table.add_column(f"{name}: within limits", justify="right")
        table.add_column(f"{name}: good/s", justify="right")
    for rung in told["rungs"]:
        cells = (
            cell
            for name in names
            for cell in (f"{rung['attainment'][name]:.1%}", f"{rung['goodput_per_s'][name]:.2f}")
        )
        table.add_row(f"{rung['rate_per_s']:.2f}", *cells)
    return table
