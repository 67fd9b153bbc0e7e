"""Compares virtual time with what one H200 did: class TTFT p50 and p95 of every recorded cell.

``python -m tests.simulation.h200_cells`` prints a line for each cell and class. The recorded runs'
own arrivals are not known, only how many of each class came in the window: every seed draws as many
at random times, after a ramp at the cell's rate. So one recorded run stands against a range of runs
of its kind: the median of the seeds, and the least and the most. A recorded figure outside that
range is marked.

Engines have the step cost measured on that card, and nothing else takes time. Two things are known
to be missing. vLLM's own API server stood still for 0.5 to 1.7 s at a time in some runs, above all
where more than about 3,500 tokens a second streamed out: those cells, in which answers fell silent
for longer than any step of the model takes, are counted apart. And a short prompt alone took 35 ms
to its first token where the model says 18: the model was fitted to busy steps and has no floor.

The runs had no gateway; where longs were held until the one before had its first token, the client
held them.
"""

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.engine.cost import StepCost, step_cost_from
from loadgen.engine.scheduler import SchedulerConfig
from loadgen.quantiles import quantile
from loadgen.simulate import Action, PassThrough, Policy, SimArrival, simulate
from tests.simulation.worlds import COST, DATA, Prioritised, merged

RECORDED = json.loads((Path(__file__).parent / "h200_first.json").read_text())
COMPILED = step_cost_from(json.loads((DATA / "cost-h200-o2.json").read_text()))
PROMPT_TOKENS = {"short": 512, "long": 8192}
OUTPUT_TOKENS = 128
BLOCK_TOKENS = 16
LEVELS = (0.5, 0.95)
SEEDS = 12

# Silence in a recorded run beyond this many of the longest simulated one: the server stood still.
STOOD_STILL = 2.0

Cell = Mapping[str, Any]


@dataclass
class OneLong:
    """Holds a long until the one before it has its first token, in front of another policy."""

    behind: Policy
    held: list[SimArrival] = field(default_factory=list)
    reading: int | None = None

    def offer(self, arrival: SimArrival, now: float) -> Sequence[Action]:
        if arrival.size_class != "long":
            return self.behind.offer(arrival, now)
        self.held.append(arrival)
        return self._next(now)

    def first_event(self, seq: int, now: float) -> Sequence[Action]:
        if seq != self.reading:
            return ()
        self.reading = None
        return self._next(now)

    def finished(self, seq: int, now: float, output_tokens: int) -> Sequence[Action]:
        return ()

    def cancel(self, seq: int, now: float) -> Sequence[Action]:
        return ()

    def tick(self, now: float) -> Sequence[Action]:
        return ()

    def next_wakeup(self, now: float) -> float | None:
        return None

    def _next(self, now: float) -> Sequence[Action]:
        if self.reading is not None or not self.held:
            return ()
        arrival = self.held.pop(0)
        self.reading = arrival.seq
        return self.behind.offer(arrival, now)


@dataclass(frozen=True)
class Apart:
    """One figure of a cell: recorded, and simulated with every seed, in ms."""

    cell: str
    size_class: str
    level: float
    recorded: float
    simulated: tuple[float, ...]
    stood_still: bool

    @property
    def middle(self) -> float:
        return quantile(self.simulated, 0.5)

    @property
    def ratio(self) -> float:
        """Simulated over recorded."""
        return self.middle / self.recorded

    @property
    def inside(self) -> bool:
        return min(self.simulated) <= self.recorded <= max(self.simulated)

    def __str__(self) -> str:
        low, high = min(self.simulated), max(self.simulated)
        told = f"{self.recorded:6.0f} {self.middle:6.0f} ({low:.0f}..{high:.0f})"
        return f"{told:<28}{self.ratio:5.2f}{' ' if self.inside else '*'}"


def arrivals(cell: Cell, ramp_s: float, seed: int) -> list[SimArrival]:
    """A ramp at the cell's rate, then as many of each class as came in the recorded window."""
    rng = random.Random(seed)
    streams = []
    for name, count in cell["offered"].items():
        share = cell["short_share"] if name == "short" else 1 - cell["short_share"]
        times = [ramp_s + rng.random() * cell["window_s"] for _ in range(count)]
        now = rng.expovariate(cell["rate"] * share)
        while now < ramp_s:
            times.append(now)
            now += rng.expovariate(cell["rate"] * share)
        size = PROMPT_TOKENS[name]
        streams.append([SimArrival(0, at_s, name, size, OUTPUT_TOKENS) for at_s in times])
    return merged(*streams)


def policy(cell: Cell) -> Policy:
    """What stood before the engine: nothing, or the client's own holding of longs."""
    plain = Prioritised(1) if cell["engine_priority"] else PassThrough(1)
    return OneLong(plain) if cell["one_long_prefill"] else plain


def engine(cell: Cell) -> tuple[SchedulerConfig, StepCost]:
    """The cell's engine and what its steps take."""
    config = SchedulerConfig(
        max_num_batched_tokens=cell["max_num_batched_tokens"],
        max_num_seqs=cell["max_num_seqs"],
        policy="priority" if cell["engine_priority"] else "fcfs",
        num_gpu_blocks=cell["kv_tokens"] // BLOCK_TOKENS,
        block_size=BLOCK_TOKENS,
    )
    return config, COMPILED if cell["compiled"] else COST


def figures_ms(cell: Cell, ramp_s: float, seed: int) -> tuple[dict[str, list[float]], float]:
    """TTFT by class from the planned arrival, and the p95 of the shorts' longest silences.

    Both of those that arrived in the window.
    """
    config, cost = engine(cell)
    found: dict[str, list[float]] = {name: [] for name in cell["offered"]}
    silences = []
    for result in simulate(arrivals(cell, ramp_s, seed), policy(cell), [config], cost):
        if result.arrival.at_s >= ramp_s and result.ttft_s is not None:
            found[result.arrival.size_class].append(result.ttft_s * 1e3)
            if result.arrival.size_class == "short":
                silences.append(result.max_stall_s * 1e3)
    return found, quantile(silences, 0.95)


def compare(cell: Cell, seeds: int = SEEDS) -> Iterator[Apart]:
    """Every figure of a cell."""
    runs = [figures_ms(cell, RECORDED["ramp_s"], seed) for seed in range(seeds)]
    stood_still = cell["stall_p95_ms"] > STOOD_STILL * max(silence for _, silence in runs)
    for name, recorded in cell["ttft_ms"].items():
        for level, value in zip(LEVELS, recorded, strict=True):
            told = tuple(quantile(ttft[name], level) for ttft, _ in runs)
            yield Apart(cell["cell"], name, level, value, told, stood_still)


def title(cell: Cell) -> str:
    """The cell, its mix and its rate."""
    share = round(cell["short_share"] * 100)
    return f"{cell['cell']:<16}{share}/{100 - share} @ {cell['rate']:<6g}"


def over_all(found: Sequence[Apart]) -> Iterator[str]:
    """A line for each class and level: how often inside the range, and the ratios."""
    for name in PROMPT_TOKENS:
        for level in LEVELS:
            own = [each for each in found if (each.size_class, each.level) == (name, level)]
            ratios = [each.ratio for each in own]
            inside = sum(each.inside for each in own)
            spread = f"{quantile(ratios, 0.1):.2f} to {quantile(ratios, 0.9):.2f}"
            yield (
                f"  {name} p{level * 100:g}: inside the range in {inside} of {len(own)}; ratio "
                f"{quantile(ratios, 0.5):.2f} in the middle, {spread} from p10 to p90"
            )


def main() -> None:
    """Print the table and how far it is off over all."""
    print(RECORDED["source"])
    head = "recorded, simulated (range), ratio"
    print(f"TTFT in ms; * outside the range of {SEEDS} seeds; ! the server stood still")
    print(f"{'':35}p50: {head:<36}p95: {head}")
    found: list[Apart] = []
    for cell in RECORDED["cells"]:
        own = list(compare(cell))
        found += own
        for name in cell["offered"]:
            told = [str(each) for each in own if each.size_class == name]
            mark = "!" if own[0].stood_still else " "
            print(f"{title(cell)} {name:<7}{mark}{'   '.join(told)}", flush=True)
    for still, said in ((False, "where the server never stood still"), (True, "where it did")):
        some = [each for each in found if each.stood_still is still]
        print(f"{said}:", *over_all(some), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
