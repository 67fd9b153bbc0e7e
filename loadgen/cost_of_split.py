"""Says what an isolated split costs beside the best shared cell: idle time, replicas, GPU time.

GPU-seconds per ok response are engines times observed seconds over valid responses of all classes,
on gate strata. Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadgen.stats import mean

__all__ = ["split_cost"]

Json = Mapping[str, Any]


def _engines(run: Json) -> int:
    pools = run.get("pools", ())
    return sum(pool["engines"] for pool in pools) or len(run.get("engines", ())) or 1


def _gate_runs(analysis: Json, unit: str) -> list[Json]:
    gates = {(mix, rate) for pairs in analysis["gates"].values() for mix, rate in pairs}
    return [
        run
        for run in analysis["runs"]
        if run["unit"] == unit and run["valid"] and (run["mix"], run["rate"]) in gates
    ]


def _per_ok(runs: Sequence[Json], window_s: float) -> float | None:
    ok = sum(c["outcomes"]["ok"] for run in runs for c in run["classes"].values())
    return sum(_engines(run) * window_s for run in runs) / ok if ok else None


def _mixed(analysis: Json, runs: Iterable[Json]) -> list[Json]:
    return [run for run in runs if len(run["classes"]) == len(analysis["class_order"])]


def _pools(runs: Sequence[Json]) -> list[dict[str, Any]]:
    shares: dict[str, list[float]] = {}
    engines: dict[str, int] = {}
    for run in runs:
        for pool in run.get("pools", ()):
            shares.setdefault(pool["name"], []).append(max(0.0, 1.0 - pool["offered_work"]))
            engines[pool["name"]] = pool["engines"]
    return [
        {"pool": name, "engines": engines[name], "idle_share": mean(own)}
        for name, own in shares.items()
    ]


def _seen_idle(runs: Sequence[Json]) -> float | None:
    seen = [e["idle_share"] for run in runs for e in run["engines"] if "idle_share" in e]
    return mean(seen) if seen else None


def split_cost(analysis: Json, topology: Json) -> dict[str, Any]:
    """Return the split's cost figures and the sentences that say them.

    Args:
        analysis: of the sweep, for the best shared cell.
        topology: of the topology runs.
    """
    isolated = _gate_runs(topology, "isolated")
    own = _per_ok(isolated, topology["intervals"]["window_s"])
    shared: dict[str, float] = {}
    for cell in analysis["cells"]:
        runs = _mixed(analysis, _gate_runs(analysis, cell["cell_id"]))
        if (spent := _per_ok(runs, analysis["intervals"]["window_s"])) is not None:
            shared[cell["cell_id"]] = spent
    best = min(shared, key=lambda k: (shared[k], k), default=None)
    figures: dict[str, Any] = {
        "pools": _pools(isolated),
        "replicas": max((_engines(run) for run in isolated), default=0),
        "gpu_s_per_ok": own,
        "best_shared": best,
        "best_shared_gpu_s_per_ok": None if best is None else shared[best],
        "observed_idle_share": _seen_idle(isolated),
    }
    return {**figures, "said": _said(figures)}


def _said(figures: Json) -> list[str]:
    said = [
        f"{p['pool']} pool ({p['engines']} engines) idles {p['idle_share']:.0%} of its time by plan"
        for p in figures["pools"]
    ]
    own, best = figures["gpu_s_per_ok"], figures["best_shared_gpu_s_per_ok"]
    if own is not None and best is not None:
        said.append(
            f"{own:.3g} GPU-seconds per ok response on {figures['replicas']} replicas, against "
            f"{best:.3g} of {figures['best_shared']}, the best shared cell"
        )
    return said
