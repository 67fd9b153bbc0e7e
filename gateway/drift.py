"""Compares a rollback record with what runs: each field is matched, drifted or unverifiable.

Three witnesses, in this order: the engine, the record of its launch, the gateway. In production
an engine tells little of its arguments; what it does not tell passes only with a launch record, or
when a person accepts it by name. Nothing excuses drift. A launch record that contradicts the engine
is of another start: it drifts itself and proves nothing. Owner and abort thresholds are orders
that nothing live can match; what only a gateway can tell is left out where none was asked. Both are
named, not counted. Pure: no I/O, no clock.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from gateway.launch_record import LaunchRecord
from gateway.manifest import Record, canonical
from gateway.manifest_fields import RecordError

__all__ = ["Facts", "Finding", "State", "Verification", "compare"]

NOTHING: Mapping[str, Any] = MappingProxyType({})
_GATEWAY = ("route.", "capacity.", "health_probe.", "drain_deadline_s")
_ENGINE_TELLS = frozenset({"capacity.kv_tokens", "health_probe.path"})
_ORDERS = ("owner", "abort.")
_OVERRIDE = "args.num_gpu_blocks_override"
_START_SLACK_S = 900.0  # loading a large model lies between a container's start and the engine's
# As vLLM reads sizes: a small letter is a power of ten, a capital one of two.
_BYTES = MappingProxyType(
    {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
    | {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT])?")


class State(StrEnum):
    """What became of a field."""

    MATCHED = "matched"
    DRIFTED = "drifted"
    UNVERIFIABLE = "unverifiable"


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen: by field name, or by the engine's own word (``kv_tokens``, ``speculation``).

    Args:
        engine: what a live engine told.
        launch: records of its start; a log proves other things than a deployment's description.
        gateway: what a gateway says of the route and its pool; None: none was asked.
        started_s: when the engine's process started, in seconds since 1970.
    """

    engine: Mapping[str, Any]
    launch: tuple[LaunchRecord, ...] = ()
    gateway: Mapping[str, Any] | None = None
    started_s: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One field: what the record says, what was seen, and who told or why nobody did."""

    field: str
    state: State
    expected: Any
    seen: Any
    by: str


@dataclass(frozen=True, slots=True)
class Verification:
    """All findings of one record and one engine. ``accepted`` are fields that nobody could tell."""

    record: str
    engine: str
    findings: tuple[Finding, ...]
    accepted: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    launch_sha256: tuple[str, ...] = ()

    def named(self, state: State) -> tuple[Finding, ...]:
        """The findings of one state; an accepted one is no longer unverifiable."""
        return tuple(f for f in self.findings if f.state is state and f.field not in self.accepted)

    @property
    def verdict(self) -> str:
        """``verified``, ``drifted`` or ``unverifiable``."""
        if self.named(State.DRIFTED):
            return "drifted"
        return "unverifiable" if self.named(State.UNVERIFIABLE) else "verified"

    @property
    def ok(self) -> bool:
        """Whether a change may rest on it."""
        return self.verdict == "verified"

    @property
    def words(self) -> str:
        """The verdict in one sentence, naming each field at fault."""
        short = self.record[:12]
        if drifted := self.named(State.DRIFTED):
            told = "; ".join(
                f"{f.field} is {_word(f.seen)}, not {_word(f.expected)}" for f in drifted
            )
            return f"record {short} does not match {self.engine}: {told}"
        if unknown := self.named(State.UNVERIFIABLE):
            fields = ", ".join(f.field for f in unknown)
            return f"record {short}: {self.engine} does not tell, nor a launch record: {fields}"
        return f"record {short} matches {self.engine}"

    def told(self) -> dict[str, Any]:
        """The same for programs and for the audit."""
        return {
            "record": self.record,
            "engine": self.engine,
            "verdict": self.verdict,
            "accepted_unverified": list(self.accepted),
            "launch_record_sha256": list(self.launch_sha256),
            "not_compared": list(self.left_out),
            "fields": [
                {
                    "field": f.field,
                    "state": str(f.state),
                    "expected": f.expected,
                    "seen": f.seen,
                    "by": f.by,
                }
                for f in self.findings
            ],
        }


def compare(
    record: Record, engine: str, facts: Facts, accepted: Iterable[str] = ()
) -> Verification:
    """Hold a record against what was seen.

    Args:
        record: sealed.
        engine: the address of the one that was asked, for messages.
        facts: what was seen.
        accepted: fields that a person accepts unverified.

    Raises:
        RecordError: an accepted field is none of the record's.
    """
    wanted = tuple(dict.fromkeys(accepted))
    if unknown := [name for name in wanted if name not in record.fields]:
        raise RecordError(f"{', '.join(unknown)}: the record has no such field to accept")
    out = tuple(name for name in record.fields if _left_out(name, facts))
    findings = [
        *_of_launch(facts),
        *(_finding(n, value, facts) for n, value in record.fields.items() if n not in out),
    ]
    unknown_now = {f.field for f in findings if f.state is State.UNVERIFIABLE}
    return Verification(
        record=record.digest,
        engine=engine,
        findings=tuple(findings),
        accepted=tuple(name for name in wanted if name in unknown_now),
        left_out=out,
        launch_sha256=tuple(one.sha256 for one in facts.launch),
    )


def _left_out(name: str, facts: Facts) -> bool:
    if name.startswith(_ORDERS):
        return True
    return facts.gateway is None and name.startswith(_GATEWAY) and name not in _ENGINE_TELLS


def _of_launch(facts: Facts) -> Iterator[Finding]:
    """A finding where a launch record can't be of this engine's start."""
    for launch in facts.launch:
        own, seen = launch.started_s, facts.started_s
        if own is not None and seen is not None and abs(own - seen) > _START_SLACK_S:
            yield Finding(
                "launch_record", State.DRIFTED, own, seen, "start of the engine's process"
            )
        for name, value in launch.told.items():
            told, by = _against(name, value, facts)
            if not _same(value, told):
                yield Finding(f"launch_record ({name})", State.DRIFTED, value, told, by)


def _against(name: str, value: Any, facts: Facts) -> tuple[Any, str]:
    """What else is known of something that a launch record tells, and by whom; or itself."""
    if name == _OVERRIDE and value is not None and facts.engine.get(name, value) is None:
        return facts.engine.get("num_gpu_blocks"), "engine"
    if name in facts.engine:
        return facts.engine[name], "engine"
    others = (one.told[name] for one in facts.launch if name in one.told)
    return next((o for o in others if not _same(o, value)), value), "another launch record"


def _finding(name: str, expected: Any, facts: Facts) -> Finding:
    special = _SPECIAL.get(name)
    found = special(expected, facts) if special else None
    if found is not None:
        return found
    for by, told in _witnesses(facts):
        if name in told:
            same = _same(expected, told[name])
            state = State.MATCHED if same else State.DRIFTED
            return Finding(name, state, expected, told[name], by)
    if name.startswith("route.") and facts.gateway is not None:
        return Finding(name, State.DRIFTED, expected, None, "the gateway has no such route")
    return Finding(name, State.UNVERIFIABLE, expected, None, _silence(facts))


def _silence(facts: Facts) -> str:
    return "the engine does not tell" + (", nor the launch record" if facts.launch else "")


def _witnesses(facts: Facts) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "engine", facts.engine
    if not any(_of_launch(facts)):
        yield from (("launch record", launch.told) for launch in facts.launch)
    yield "gateway", facts.gateway or NOTHING


def _kv_tokens(expected: Any, facts: Facts) -> Finding | None:
    """More memory than was recorded is no fault; less is."""
    for by, told in _witnesses(facts):
        if "kv_tokens" in told:
            state = State.MATCHED if told["kv_tokens"] >= expected else State.DRIFTED
            return Finding("capacity.kv_tokens", state, expected, told["kv_tokens"], by)
    return None


def _blocks(expected: Any, facts: Facts) -> Finding | None:
    """How many blocks there are, given or found: the bench captures the number."""
    blocks, given = facts.engine.get("num_gpu_blocks"), facts.engine.get(_OVERRIDE)
    if expected is None or blocks is None or given is not None:
        return None
    state = State.MATCHED if _same(expected, blocks) else State.DRIFTED
    return Finding(_OVERRIDE, state, expected, blocks, "engine")


def _speculation(expected: Any, facts: Facts) -> Finding | None:
    """An engine shows whether it speculates, not how."""
    name, on = "args.speculative_config", facts.engine.get("speculation")
    if name in facts.engine or on is None or (on and expected is not None):
        return None
    seen = "on" if on else None
    state = State.DRIFTED if on or expected is not None else State.MATCHED
    return Finding(name, state, expected, seen, "engine")


_SPECIAL = MappingProxyType(
    {
        "capacity.kv_tokens": _kv_tokens,
        _OVERRIDE: _blocks,
        "args.speculative_config": _speculation,
    }
)


def _same(one: Any, other: Any) -> bool:
    if canonical(_plain(one)) == canonical(_plain(other)):
        return True
    sizes = _bytes(one), _bytes(other)
    return None not in sizes and sizes[0] == sizes[1]


def _plain(value: Any) -> Any:
    return value.removeprefix("torch.") if isinstance(value, str) else value


def _bytes(value: Any) -> float | None:
    """What a number or a size such as 48G is worth."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _SIZE.fullmatch(str(value).strip())
    return None if match is None else float(match[1]) * _BYTES.get(match[2] or "", 1)


def _word(value: Any) -> str:
    return canonical(value).decode()
