"""Walks the explaining table with a sweep's own numbers: what was seen, and what follows from it.

Each row is an observation, whether these data show it, the first thing to check, the action that it
suggests and what rejects that action. What was not measured is said, and nothing is claimed of it.
Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.tables import cell
from loadgen.words import measure_words

__all__ = ["Finding", "findings"]

Json = Mapping[str, Any]
Place = tuple[str, str]
SEEN, NOT_SEEN, UNKNOWN = "seen", "not seen", "not measured"
# A mixed stratum is told from the class alone where its p95 is at least half as large again.
NOTICEABLE = 1.5
GAINED = 1.01  # throughput: a per cent more is more than rounding
LOST_POINTS = 0.02
BUFFERED_TOKENS = 1.5  # more tokens than this in an event: gaps are of events, not of tokens
SEATS, BUDGET = "max_num_seqs", "max_num_batched_tokens"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table, with this data's numbers."""

    observation: str
    seen: str
    numbers: Sequence[str]
    check: Sequence[str]
    action: Sequence[str]
    rejection: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Data:
    """An analysis with the look-ups that the rows ask for."""

    analysis: Json

    @property
    def base(self) -> str:
        return str(self.analysis["base"])

    @property
    def shortest(self) -> str:
        return str(self.analysis["class_order"][0])

    @property
    def longest(self) -> str:
        return str(self.analysis["class_order"][-1])

    @property
    def strata(self) -> Sequence[Json]:
        found: Sequence[Json] = self.analysis["explain"]["strata"]
        return found

    @property
    def cells(self) -> dict[str, Json]:
        return {c["cell_id"]: c for c in self.analysis["cells"]}

    @property
    def comparisons(self) -> dict[str, Json]:
        return {row["cell_id"]: row for row in self.analysis["comparisons"]}

    def of(self, unit: str) -> list[Json]:
        return [s for s in self.strata if s["cell_id"] == unit]

    def mixed(self, unit: str) -> list[Json]:
        """The unit's strata that hold several classes, the shortest among them."""
        own = self.of(unit)
        return [s for s in own if len(s["classes"]) > 1 and self.shortest in s["classes"]]

    def alone(self, unit: str, rate: str) -> Json | None:
        """The shortest class without the others, at the rate of the same name."""
        own = (s for s in self.of(unit) if list(s["classes"]) == [self.shortest])
        return next((s for s in own if s["rate"] == rate), None)


def _place(stratum: Json) -> str:
    return f"{stratum['mix']} {stratum['rate']}"


def _value(found: Json) -> float | None:
    """A p95 in seconds; infinite where it lands on a failure, None where too few were offered."""
    if found.get("too_few"):
        return None
    return float("inf") if found["value"] is None else float(found["value"])


def _said(stratum: Json, name: str, measure: str) -> str:
    own = stratum["classes"][name]
    return cell(own[measure], own["offered"])


def _worst(data: _Data, unit: str, measure: str) -> Json | None:
    told = [
        (value, s)
        for s in data.mixed(unit)
        if (value := _value(s["classes"][data.shortest][measure])) is not None
    ]
    return max(told, key=lambda pair: pair[0])[1] if told else None


def _against_alone(data: _Data, measure: str, word: str) -> tuple[str, list[str]]:
    """Say whether the shortest class fares noticeably worse beside others than alone, on B0."""
    worst = _worst(data, data.base, measure)
    if worst is None:
        return UNKNOWN, [f"{data.base} has no mixed stratum with enough requests"]
    name = data.shortest
    said = f"{data.base}: {name} p95 {word} {_said(worst, name, measure)} at {_place(worst)}"
    alone = data.alone(data.base, worst["rate"])
    if alone is None:
        return UNKNOWN, [said, f"no control with {name} alone at this rate"]
    before, after = (_value(s["classes"][name][measure]) for s in (alone, worst))
    numbers = [said, f"{name} alone at {alone['rate']}: {_said(alone, name, measure)}"]
    if before is None or after is None:
        return UNKNOWN, numbers
    return (SEEN if after >= NOTICEABLE * before else NOT_SEEN), numbers


def _events(data: _Data) -> list[str]:
    told = [
        s["classes"][data.shortest]["tokens_per_event"]
        for s in data.mixed(data.base)
        if "tokens_per_event" in s["classes"][data.shortest]
    ]
    if not told:
        return ["tokens per event were not reported: buffering on the way cannot be excluded"]
    most = max(told)
    verdict = (
        "gaps are the engine's, not a proxy's buffering"
        if most < BUFFERED_TOKENS
        else "several come at once: a proxy or the engine gathers them, and gaps are of events"
    )
    return [f"at most {most:.2f} tokens per event: {verdict}"]


def _lowered(data: _Data) -> list[str]:
    """The candidates with a smaller budget of batched tokens than the baseline's."""
    before = data.cells.get(data.base, {}).get("args", {}).get(BUDGET)
    return [
        unit
        for unit, c in data.cells.items()
        if unit in data.comparisons and before and c.get("args", {}).get(BUDGET, before) < before
    ]


def _ratio(data: _Data, unit: str, name: str) -> str:
    row = data.comparisons[unit]
    told = row["primaries"].get(name) or row["guardrails"].get(name) or {}
    value = told.get("ratio", told.get("value"))
    return "unbounded or not measured" if value is None else f"×{value:.2f}"


def _budget_actions(data: _Data, name: str, word: str) -> list[str]:
    budget = {u: data.cells[u]["args"][BUDGET] for u in _lowered(data)}
    return [
        f"{unit} (budget {budget[unit]:,}): {word} {_ratio(data, unit, name)}" for unit in budget
    ] or ["no candidate lowers the budget"]


def _long_guards(data: _Data) -> list[str]:
    said, names = [], data.analysis["class_order"]
    for unit in _lowered(data):
        rails = data.comparisons[unit]["guardrails"].items()
        own = [(k, rail) for k, rail in rails if k.startswith(data.longest)]
        lost = [measure_words(k, names) for k, rail in own if not rail["held"]]
        said.append(
            f"{unit}: {data.longest} class not shown harmless ({', '.join(lost)})"
            if lost
            else f"{unit}: every guardrail of the {data.longest} class held"
        )
    return said or ["no candidate to reject"]


def _stalls(data: _Data) -> Finding:
    seen, numbers = _against_alone(data, "stall_p95", "stall")
    key = f"{data.shortest}_stall_p95"
    return Finding(
        "Running streams stall while a long prompt's prefill advances",
        seen,
        numbers,
        _events(data),
        ["a lower budget of batched tokens", *_budget_actions(data, key, "stall")],
        [f"the {data.longest} class breaches its TTFT or goodput", *_long_guards(data)],
    )


def _oldest(data: _Data, unit: str) -> list[str]:
    told = data.analysis["explain"]
    if not told["ages_recorded"]:
        return [f"{told['fairness']} (gateway)"]
    worst = _longest_wait(data, unit, "oldest_age_s", data.analysis["class_order"])
    if worst is None or worst[0] == 0.0:
        return ["nobody waited in the gateway"]
    return [f"oldest wait in the gateway {worst[0]:.2f} s ({worst[1]})"]


def _unanswered(data: _Data, unit: str) -> list[str]:
    worst = _longest_wait(data, unit, "oldest_unanswered_s", [data.shortest])
    return [] if worst is None else [f"oldest without an answer {worst[0]:.2f} s ({worst[1]})"]


def _longest_wait(
    data: _Data, unit: str, key: str, names: Sequence[str]
) -> tuple[float, str] | None:
    told = [
        (age, f"{name}, {_place(s)}")
        for s in data.of(unit)
        for name, age in s[key].items()
        if name in names
    ]
    return max(told, key=lambda pair: pair[0], default=None)


def _new_shorts(data: _Data) -> Finding:
    seen, numbers = _against_alone(data, "ttft_p95", "TTFT")
    key = f"{data.shortest}_ttft_p95"
    return Finding(
        "New short prompts wait although running streams are healthy",
        seen,
        numbers,
        [*_oldest(data, data.base), *_unanswered(data, data.base)],
        ["bounded ingress, a verified priority, or engines of their own"],
        [
            "a lower budget alone is presented as fairness",
            *_budget_actions(data, key, "TTFT"),
        ],
    )


def _preempted(data: _Data, unit: str) -> tuple[int, int, float | None] | None:
    told = [s["preemptions"] for s in data.of(unit) if "preemptions" in s]
    if not told:
        return None
    usage = [t["max_kv_usage"] for t in told if "max_kv_usage" in t]
    count, restarts = (sum(t[k] for t in told) for k in ("delta", "restarts"))
    return int(count), int(restarts), max(usage, default=None)


def _seats(data: _Data, unit: str) -> str:
    seats = data.cells[unit].get("args", {}).get(SEATS)
    return unit if seats is None else f"{unit} ({seats:,} sequences)"


def _preemptions(data: _Data) -> Finding:
    told = {u: found for u in data.cells if (found := _preempted(data, u)) is not None}
    counted = {u: count for u, (count, _, _) in told.items()}
    usage = [f"{u}: fullest KV cache {k:.0%}" for u, (_, _, k) in told.items() if k is not None]
    restarts = sum(r for _, r, _ in told.values())
    worst = [u for u, count in counted.items() if count]
    return Finding(
        "Preemptions rise with the limit on sequences",
        (SEEN if worst else NOT_SEEN) if told else UNKNOWN,
        [f"{_seats(data, u)}: {count} preemptions" for u, count in counted.items()]
        or ["no engine exported its preemptions"],
        [
            "they are of whole engines: which class caused them is not known",
            f"{restarts} counter restarts inside runs",
            *usage,
        ],
        ["fewer sequences"],
        [f"{u} is {data.cells[u]['state']}, but fits only by recomputing" for u in worst]
        or ["nothing was recomputed"],
    )


def _losses(data: _Data, unit: str) -> Iterable[str]:
    base = {(s["mix"], s["rate"]): s for s in data.of(data.base)}
    for s in data.of(unit):
        other = base.get((s["mix"], s["rate"]))
        if other is None or s["goodput_per_s"] < GAINED * other["goodput_per_s"]:
            continue
        for name, own in s["classes"].items():
            before, after = other["classes"][name]["attainment"], own["attainment"]
            if before is not None and after is not None and after < before - LOST_POINTS:
                yield (
                    f"{unit} at {_place(s)}: goodput {other['goodput_per_s']:.2f} → "
                    f"{s['goodput_per_s']:.2f}/s, but {name} attains {before:.1%} → {after:.1%}"
                )


def _one_class_loses(data: _Data) -> Finding:
    losses = [said for unit in data.comparisons for said in _losses(data, unit)]
    failing = [u for u, c in data.cells.items() if c["state"] == "fail"]
    refused = [
        f"{unit}: {n} {name} not answered validly"
        for unit in data.comparisons
        for name in data.analysis["class_order"]
        if (n := _not_answered(data, unit, name))
    ]
    return Finding(
        "Throughput rises and one class loses",
        SEEN if losses else NOT_SEEN,
        losses or ["no candidate serves more in total while a class attains less"],
        refused or ["every candidate answered every request of every class"],
        [f"keep {data.base}, or move the boundary between the classes' capacity"],
        [f"{u} fails its contract" for u in failing] or ["no hard gate fails"],
    )


def _not_answered(data: _Data, unit: str, name: str) -> int:
    own = [s["classes"][name] for s in data.of(unit) if name in s["classes"]]
    return sum(c["refused"] + c["starved"] for c in own)


def _starved(data: _Data) -> Finding:
    rows = [
        (unit, s, s["classes"][data.longest])
        for unit in data.cells
        for s in data.of(unit)
        if data.longest in s["classes"] and s["classes"][data.longest]["starved"]
    ]
    hidden = [
        f"{unit} at {_place(s)}: p95 of successes {cell(c['ttft_p95_accepted'], c['offered'])}, "
        f"of all offered {cell(c['ttft_p95'], c['offered'])}"
        for unit, s, c in rows
    ]
    return Finding(
        f"The {data.longest} class never completes under load",
        SEEN if rows else NOT_SEEN,
        [f"{u} at {_place(s)}: {c['starved']} of {c['offered']} never ended" for u, s, c in rows]
        or [f"every {data.longest} request ended within its time"],
        _oldest(data, data.base),
        ["bound the wait, and reserve capacity for the class"],
        ["percentiles of successes hide it", *hidden],
    )


def _no_gain(data: _Data) -> Finding:
    base = data.cells.get(data.base)
    better = [
        u for u, row in data.comparisons.items() if row["superior"] and row["guardrails_held"]
    ]
    passes = base is not None and base["state"] == "pass"
    names = data.analysis["class_order"]
    gains = [
        f"{measure_words(k, names)}: {v:.1%}" for k, v in data.analysis["smallest_gain"].items()
    ]
    spread = [
        f"{measure_words(k, names)}: {s['sd']:.1%} from run to run"
        for k, s in data.analysis["spread"].items()
        if s is not None and not k.endswith("attainment")
    ]
    return Finding(
        "The baseline and the candidates meet their gates without a material gain",
        SEEN if passes and not better else NOT_SEEN,
        [
            f"{data.base} is {base['state'] if base else 'not there'}",
            f"better with every guardrail held: {', '.join(better) or 'none'}",
        ],
        [*spread, *(f"the smallest gain that could have been shown, {said}" for said in gains)],
        ["keep the simpler baseline"],
        ["the added complexity has no measured benefit"],
    )


def findings(analysis: Json) -> list[Finding]:
    """Return the table's rows.

    Args:
        analysis: of a sweep, or of policy arms or topologies with one baseline.
    """
    data = _Data(analysis)
    rows = (_stalls, _new_shorts, _preemptions, _one_class_loses, _starved, _no_gain)
    return [row(data) for row in rows]
