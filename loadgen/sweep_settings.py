"""Decides what a sweep file may ask for: its words, their ranges and what they mean together.

A sweep crosses cells (engine settings), mixes (shares of the classes by count) and rates, in
rounds. Everything here is fixed before the first run and goes into the plan's digest.
Rates are requests per second of the whole mix; times are seconds. Pure: no I/O, no clock.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from loadgen.arrivals import KINDS
from loadgen.plan import Intervals

__all__ = [
    "Arrivals",
    "Baseline",
    "Candidate",
    "ClassContract",
    "CorpusSource",
    "Margins",
    "Mix",
    "Omitted",
    "Rates",
    "Reuse",
    "SizeClass",
    "SweepSettings",
    "TokenizerFiles",
    "faults",
]

BASELINE = "B0"
TWIN = "B0b"
VALIDATOR = "finish reason, usage and forced length"
RATE_NAMES = ("low", "near", "stress")
LOOKS = ((3,), (6,), (3, 6))
# The template, the tag that tells prompts apart, and the words that close the gap.
OWN_TOKENS = 64
# Whoever reads a file into these classes refuses keys they don't have, and values of other types.
STRICT = {"extra": "forbid", "strict": True, "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class SizeClass:
    """The exact size of a class's requests; `max_prompt_tokens` bounds replayed sizes."""

    __pydantic_config__: ClassVar[Any] = STRICT

    prompt_tokens: int
    output_tokens: int
    max_prompt_tokens: int | None = None

    @property
    def bound_tokens(self) -> int:
        """The largest replayed prompt that belongs to this class."""
        return self.prompt_tokens if self.max_prompt_tokens is None else self.max_prompt_tokens


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares by count, or the trace of another mix with classes deleted, or a recorded trace."""

    __pydantic_config__: ClassVar[Any] = STRICT

    shares: Mapping[str, float] = field(default_factory=dict)
    derived_from: str | None = None
    keep: tuple[str, ...] = ()
    replay: str | None = None
    format: Literal["mooncake", "burstgpt", "azure"] | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests per second of the whole mix at each named rate."""

    __pydantic_config__: ClassVar[Any] = STRICT

    low: float
    near: float
    stress: float | None = None

    def named(self, name: str) -> float:
        """Return a rate by name; 0 where it is not given."""
        value: float | None = getattr(self, name)
        return 0.0 if value is None else value


@dataclass(frozen=True, slots=True)
class ClassContract:
    """The limits of a class and the strata in which they are gates; a miss is any limit missed."""

    __pydantic_config__: ClassVar[Any] = STRICT

    ttft_s: float
    max_stall_s: float
    e2e_s: float
    gate_strata: tuple[tuple[str, str], ...]
    attainment: float = 0.95
    max_refused: float = 0.05
    validator: str = VALIDATOR


@dataclass(frozen=True, slots=True)
class Margins:
    """What counts as a gain, and how much worse a guardrail may be."""

    __pydantic_config__: ClassVar[Any] = STRICT

    superior: float = 0.10
    guard_latency: float = 0.10
    guard_attainment_points: float = 2.0
    guard_failures_points: float = 0.5


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How arrival times are drawn; the fields beside `kind` serve the kinds that need them."""

    __pydantic_config__: ClassVar[Any] = STRICT

    kind: str = "poisson-stratified"
    burstiness: float = 1.0
    factor: float = 2.0
    at_s: float | None = None
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class CorpusSource:
    """Where prompts come from; without `file`, the text that ships with the interpreter."""

    __pydantic_config__: ClassVar[Any] = STRICT

    seed: int = 11
    file: str | None = None
    source: str | None = None
    licence: str | None = None
    approved_by: str | None = None


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """tokenizer.json and chat template of the engines; None takes the simulator's."""

    __pydantic_config__: ClassVar[Any] = STRICT

    path: str | None = None
    chat_template: str | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """B0's arguments: captured from a running engine, or a stand-in that says so."""

    __pydantic_config__: ClassVar[Any] = STRICT

    captured: str | None = None
    stand_in: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reuse:
    """Which of a class's prompts begin alike: `share` of them belong to one of `sessions`.

    `shared_tokens` are what the prompts of a session have in common, chat template included.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    sessions: int
    shared_tokens: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cell: what it changes in B0's arguments."""

    __pydantic_config__: ClassVar[Any] = STRICT

    cell_id: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Omitted:
    """A cell that is left out, and why; never counted as a pass."""

    __pydantic_config__: ClassVar[Any] = STRICT

    cell_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """A whole sweep file."""

    __pydantic_config__: ClassVar[Any] = STRICT

    classes: Mapping[str, SizeClass]
    mixes: Mapping[str, Mix]
    contract: Mapping[str, ClassContract]
    intervals: Intervals
    baseline: Baseline
    cells: tuple[Candidate, ...]
    kind: Literal["sweep", "prefix_reuse"] = "sweep"
    seed: int = 1
    rounds: int = 3
    looks: tuple[int, ...] = (3,)
    traces: Literal["per-round", "shared"] = "per-round"
    aa: bool = False
    strata: tuple[str, ...] = ("low", "near")
    rates: Mapping[str, Rates] = field(default_factory=dict)
    rates_file: str | None = None
    margins: Margins = field(default_factory=Margins)
    arrivals: Arrivals = field(default_factory=Arrivals)
    corpus: CorpusSource = field(default_factory=CorpusSource)
    tokenizer: TokenizerFiles = field(default_factory=TokenizerFiles)
    omitted: tuple[Omitted, ...] = ()
    reuse: Mapping[str, Reuse] = field(default_factory=dict)
    launcher: Mapping[str, Any] = field(default_factory=lambda: {"kind": "simulated"})
    gateway: Mapping[str, Any] = field(default_factory=lambda: {"admission": "off"})

    @property
    def drawn_mixes(self) -> tuple[str, ...]:
        """The mixes that have a rate of their own."""
        return tuple(name for name, mix in self.mixes.items() if mix.derived_from is None)

    @property
    def class_order(self) -> tuple[str, ...]:
        """The classes by prompt size."""
        return tuple(sorted(self.classes, key=lambda n: self.classes[n].prompt_tokens))


Fault = tuple[str, str]


def faults(settings: SweepSettings) -> Iterator[Fault]:
    """Yield (key, reason) for everything that is impossible or meaningless together."""
    yield from _rounds(settings)
    yield from _sizes(settings)
    for name in settings.mixes:
        yield from _mix(settings, name)
    yield from _rates(settings)
    yield from _contracts(settings)
    yield from _intervals(settings)
    yield from _cells(settings)
    yield from _kinds(settings)
    yield from _reuse(settings)


def _rounds(settings: SweepSettings) -> Iterator[Fault]:
    if settings.looks not in LOOKS:
        yield "looks", f"{list(settings.looks)} is not [3], [6] or [3, 6]"
    elif settings.rounds != settings.looks[-1]:
        yield "rounds", f"{settings.rounds} rounds, but the last look is after {settings.looks[-1]}"
    if not settings.strata or set(settings.strata) - set(RATE_NAMES):
        yield "strata", f"{list(settings.strata)} must be some of {', '.join(RATE_NAMES)}"


def _sizes(settings: SweepSettings) -> Iterator[Fault]:
    bounds = []
    for name, size in settings.classes.items():
        if size.prompt_tokens < 1 or size.output_tokens < 1:
            yield f"classes.{name}", "prompt_tokens and output_tokens must be at least 1"
        bounds.append(size.bound_tokens)
    if len(set(bounds)) < len(bounds):
        yield "classes", "two classes have the same prompt size, so none can be told by it"


def _mix(settings: SweepSettings, name: str) -> Iterator[Fault]:
    mix, key = settings.mixes[name], f"mixes.{name}"
    given = sum((bool(mix.shares), mix.derived_from is not None, mix.replay is not None))
    if given != 1:
        yield key, "give exactly one of shares, derived_from and replay"
    named = [*mix.shares, *mix.keep]
    for unknown in sorted(set(named) - set(settings.classes)):
        yield key, f"class {unknown!r} is not under [classes]"
    if mix.shares and (abs(sum(mix.shares.values()) - 1) > 1e-9 or min(mix.shares.values()) < 0):
        yield key, "the shares must be positive and sum to 1"
    if mix.derived_from is not None:
        yield from _derived(settings, key, mix)
    if mix.replay is not None and mix.format is None:
        yield f"{key}.format", "a replay needs one of mooncake, burstgpt, azure"


def _derived(settings: SweepSettings, key: str, mix: Mix) -> Iterator[Fault]:
    if mix.derived_from not in settings.drawn_mixes:
        yield f"{key}.derived_from", f"{mix.derived_from!r} is not a mix that is drawn itself"
    if not mix.keep:
        yield f"{key}.keep", "name the classes that stay"


def _rates(settings: SweepSettings) -> Iterator[Fault]:
    for name in sorted(set(settings.rates) - set(settings.drawn_mixes)):
        yield f"rates.{name}", "is not a mix that is drawn itself, so it has no rate of its own"
    for name in settings.drawn_mixes:
        rates = settings.rates.get(name)
        if rates is None:
            yield f"rates.{name}", "is missing: give low and near, or a rates_file"
            continue
        for stratum in settings.strata:
            if stratum in RATE_NAMES and rates.named(stratum) <= 0:
                yield f"rates.{name}.{stratum}", "must be above 0 requests per second"


def _contracts(settings: SweepSettings) -> Iterator[Fault]:
    for name in settings.classes:
        if name not in settings.contract:
            yield f"contract.{name}", "is missing: limits are written before the runs"
    for name, contract in settings.contract.items():
        if name not in settings.classes:
            yield f"contract.{name}", f"class {name!r} is not under [classes]"
        yield from _limits(f"contract.{name}", contract)
        for mix, rate in contract.gate_strata:
            if mix not in settings.mixes or rate not in settings.strata:
                yield f"contract.{name}.gate_strata", f"{mix}, {rate} is no stratum of this sweep"


def _limits(key: str, contract: ClassContract) -> Iterator[Fault]:
    if min(contract.ttft_s, contract.max_stall_s, contract.e2e_s) <= 0:
        yield key, "every limit must be above 0 seconds"
    if not 0 < contract.attainment < 1:
        yield f"{key}.attainment", f"{contract.attainment} must lie between 0 and 1"
    if not 0 <= contract.max_refused <= 1:
        yield f"{key}.max_refused", f"{contract.max_refused} must lie in 0..1"
    if not contract.validator:
        yield f"{key}.validator", "a contract needs a named validator"
    if not contract.gate_strata:
        yield f"{key}.gate_strata", "name the strata in which the contract is a gate"


def _intervals(settings: SweepSettings) -> Iterator[Fault]:
    times = settings.intervals
    if times.window_s <= 0 or times.ramp_s < 0:
        yield "intervals", "window_s must be above 0 and ramp_s not negative"
    if times.drain_s < times.timeout_s:
        yield "intervals.drain_s", "is shorter than timeout_s: requests would be cut off undecided"
    for name, contract in settings.contract.items():
        if times.timeout_s < max(contract.ttft_s, contract.max_stall_s, contract.e2e_s):
            yield "intervals.timeout_s", f"is shorter than a limit of contract.{name}"


def _cells(settings: SweepSettings) -> Iterator[Fault]:
    if (settings.baseline.captured is None) == (not settings.baseline.stand_in):
        yield "baseline", "give exactly one of captured (a file) and stand_in (arguments)"
    names = [cell.cell_id for cell in settings.cells]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield "cells", f"{name} stands there twice"
    for name in {BASELINE, TWIN} & set(names):
        yield "cells", f"{name} is the baseline's own name"
    for cell in settings.cells:
        if not cell.args:
            yield f"cells.{cell.cell_id}", "changes nothing; `aa = true` measures B0 twice"


def _kinds(settings: SweepSettings) -> Iterator[Fault]:
    if settings.arrivals.kind not in KINDS:
        yield "arrivals.kind", f"{settings.arrivals.kind!r} is not one of {', '.join(KINDS)}"
    if settings.launcher.get("kind") not in ("simulated", "vllm", "command", "external"):
        yield "launcher.kind", "must be simulated, vllm, command or external"
    if settings.gateway.get("admission") not in ("off", "observe", "enforce"):
        yield "gateway.admission", "must be off, observe or enforce"
    own = settings.corpus
    if own.file is not None and not (own.source and own.licence and own.approved_by):
        yield "corpus", "a file of your own needs source, licence and approved_by"


def _reuse(settings: SweepSettings) -> Iterator[Fault]:
    if settings.kind != "prefix_reuse":
        if settings.reuse:
            yield "reuse", 'belongs to kind = "prefix_reuse": elsewhere no prompts begin alike'
        return
    if not settings.reuse:
        yield "reuse", 'kind = "prefix_reuse" needs [reuse.CLASS] of at least one class'
    for name, own in settings.reuse.items():
        yield from _reuse_of(settings.classes.get(name), own, f"reuse.{name}")
    for name, mix in settings.mixes.items():
        if mix.replay is not None:
            yield f"mixes.{name}.replay", "prompts of recorded sizes cannot share a prefix"
    args = [name.replace("-", "_") for cell in settings.cells for name in cell.args]
    if "enable_prefix_caching" not in args:
        yield "cells", "none says enable_prefix_caching: there would be nothing to compare"


def _reuse_of(size: SizeClass | None, own: Reuse, key: str) -> Iterator[Fault]:
    if size is None:
        yield key, "is not under [classes]"
        return
    most = size.prompt_tokens - OWN_TOKENS
    if own.sessions < 1 or not 0 < own.share <= 1:
        yield key, "sessions must be at least 1, and share above 0 and at most 1"
    if not OWN_TOKENS <= own.shared_tokens <= most:
        yield (
            f"{key}.shared_tokens",
            f"{own.shared_tokens} must be {OWN_TOKENS}..{most}: the rest is each prompt's own",
        )
