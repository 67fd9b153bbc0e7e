"""Reads from a sweep's folder what `bench limits` decides on: one cell's runs that held."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.engine.cost import StepCost
from loadgen.files import file_digest, read_bytes, read_json
from loadgen.limits import RESERVED_PROMPTS, Asked, Gate, RunSeen, limits_toml, run_seen, supported
from loadgen.record import BenchError, decode_requests, strict_json

__all__ = ["folder_limits"]

Json = Mapping[str, Any]
GOOD = {"pass": "proved", "undecided": "seen, not proved"}


def _chosen_cell(folder: Path, cell_id: str | None) -> str:
    """Return the cell asked for; else the one the decision names, else the baseline."""
    if cell_id is not None:
        return cell_id
    path = folder / "decision.json"
    named = read_json(path).get("named") if path.is_file() else None
    return str(named or "B0")


def _held(analysis: Json, plan: Json, cell_id: str) -> dict[tuple[str, str], str]:
    """Return the strata in which every class met its target, and whether that is proved."""
    rows: dict[tuple[str, str], list[Json]] = {}
    for row in analysis["strata"]:
        if row["cell_id"] == cell_id:
            rows.setdefault((row["mix"], row["rate"]), []).append(row)
    targets = {name: c["attainment"] for name, c in plan["contract"].items()}
    held = {}
    for stratum, own in rows.items():
        if all((r.get("attainment") or 0.0) >= targets[r["size_class"]] for r in own):
            proved = all(r["state"] == "pass" for r in own)
            held[stratum] = GOOD["pass" if proved else "undecided"]
    return held


def _support(
    plan: Json, held: Mapping[tuple[str, str], str], analysis: Json, cell: str
) -> list[str]:
    rates = {(s["mix"], s["rate"]): s["rate_per_s"] for s in plan["strata"]}
    lines = []
    for stratum, word in held.items():
        own = [
            r
            for r in analysis["strata"]
            if r["cell_id"] == cell and (r["mix"], r["rate"]) == stratum
        ]
        said = ", ".join(f"{r['size_class']} {r['attainment']:.1%} of {r['n']}" for r in own)
        lines.append(f"{'/'.join(stratum)} at {rates[stratum]:g} requests/s: {said} ({word})")
    return lines


def _rows(path: Path) -> list[Json]:
    return [strict_json(line, str(path)) for line in read_bytes(path).splitlines()]


def _seen(folder: Path, run_id: str, class_order: Sequence[str]) -> RunSeen:
    own = folder / "runs" / run_id
    path = own / "requests.jsonl"
    _, records = decode_requests(read_bytes(path), str(path))
    return run_seen(run_id, records, _rows(own / "samples.jsonl"), class_order)


def _gate(config: Path | None, plan: Json, args: Json) -> Gate:
    """Return what a gateway's configuration asks of limits; without one, what the classes do."""
    sizes = sorted(int(c["prompt_tokens"]) for c in plan["classes"].values())
    if config is None:
        largest = int(args.get("max_model_len", sizes[-1]))
        return Gate(largest, 0, RESERVED_PROMPTS * sizes[0])
    try:
        told = tomllib.loads(read_bytes(config).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{config}: not TOML ({error})") from error
    flows = [flow for by_size in told.get("flow", {}).values() for flow in by_size.values()]
    bounds = [size.get("max_prompt_tokens", 0) for size in told.get("size", {}).values()]
    return Gate(
        max(bounds, default=sizes[-1]),
        sum(flow.get("reserved_slots", 0) for flow in flows),
        sum(flow.get("reserved_prefill_tokens", 0) for flow in flows),
    )


def _told_kv(folder: Path, run_ids: Sequence[str]) -> int | None:
    for run_id in run_ids:
        config = read_json(folder / "runs" / run_id / "config.json")
        if config.get("kv_tokens") is not None:
            return int(config["kv_tokens"])
    return None


def folder_limits(
    folder: Path, cell_id: str | None, cost: StepCost | None, config: Path | None
) -> str:
    """Return the limits that a folder's records support, as TOML.

    Args:
        folder: of a sweep, with its analysis.
        cell_id: whose; by default the decision's, or the baseline's.
        cost: of an engine step, for the price of an output token.
        config: a gateway's configuration, whose classes and reservations the limits must fit.

    Raises:
        BenchError: a file is missing, or no stratum of the cell met its contract.
    """
    plan, analysis = read_json(folder / "plan.json"), read_json(folder / "analysis.json")
    cell = _chosen_cell(folder, cell_id)
    args = next((c["args"] for c in plan.get("cells", ()) if c["cell_id"] == cell), None)
    if args is None:
        raise BenchError(f"{folder}/plan.json: has no cell {cell}")
    held = _held(analysis, plan, cell)
    done = {row["run_id"] for row in analysis["runs"]}
    run_ids = [
        r["run_id"]
        for r in plan["runs"]
        if r["cell_id"] == cell and (r["mix"], r["rate"]) in held and r["run_id"] in done
    ]
    runs = [_seen(folder, run_id, plan["class_order"]) for run_id in run_ids]
    digests = {n: file_digest(folder / n) for n in ("plan.json", "analysis.json")}
    asked = Asked(
        cell,
        args,
        plan["class_order"],
        _gate(config, plan, args),
        cost,
        _support(plan, held, analysis, cell),
        digests,
        _told_kv(folder, run_ids),
    )
    text = limits_toml(supported(runs, asked), runs, asked)
    return f"# synthetic: simulated engines\n{text}" if plan.get("synthetic") else text
