"""Describes a failure scenario: who calls when, what is limited, what breaks, what must hold.

Times are seconds of the engines' clock from the scenario's start; a faster clock divides them.
What became of the calls and what was seen of the servers meanwhile are values too, so that every
check is a function of the record. Pure: no I/O, no clock.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.record import Outcome

__all__ = ["Call", "Check", "Fault", "Scenario", "Story", "Told", "Try"]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One caller. It leaves after so long, or after so many events, if told to.

    `manner` is "plain", "slow" (reads a little at a time) or "sdk" (tries again as the SDKs do).
    `role` is what the checks call it by.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    service: str = "interactive"
    role: str = "work"
    manner: str = "plain"
    leave_after_s: float | None = None
    leave_after_events: int | None = None

    @property
    def leaves(self) -> bool:
        """Whether this caller means to leave before the end."""
        return self.leave_after_s is not None or self.leave_after_events is not None


@dataclass(frozen=True, slots=True)
class Fault:
    """What a simulated engine is told to do wrong from then on; None: nothing any more."""

    at_s: float
    engine: int
    fault: str | None


@dataclass(frozen=True, slots=True)
class Try:
    """One request of a call: when it was open, in real seconds, and what was answered.

    `sent_s` is when all its bytes were handed over; None if they were not.
    """

    begin_s: float
    sent_s: float | None
    end_s: float
    status: int | None
    outcome: Outcome
    code: str | None
    retry_after_s: float | None
    may_retry: bool
    events: int


@dataclass(frozen=True, slots=True)
class Told:
    """A call and all its tries; its outcome is that of the last."""

    call: Call
    tries: tuple[Try, ...]

    @property
    def outcome(self) -> Outcome:
        """What became of the call."""
        return self.tries[-1].outcome if self.tries else Outcome.NOT_SENT


@dataclass(frozen=True, slots=True)
class Story:
    """Everything a scenario showed.

    Samples are the gateway's own status at `at_s` with `limits` in force, and what each engine
    said; `rest` is the last look, when all should be over; `before` and `after` hold counters.
    """

    told: tuple[Told, ...]
    limits: Mapping[str, Any]
    samples: tuple[Mapping[str, Any], ...]
    rest: Mapping[str, Any]
    before: Mapping[str, float]
    after: Mapping[str, float]
    faults: tuple[tuple[float, Fault], ...] = ()

    def of(self, role: str) -> list[Told]:
        """The calls of a role."""
        return [t for t in self.told if t.call.role == role]

    def outcomes(self, role: str | None = None) -> Counter[str]:
        """How many calls, of one role or of all, ended in which way."""
        return Counter(str(t.outcome) for t in (self.told if role is None else self.of(role)))

    def risen(self, counter: str) -> float:
        """How much a counter rose; those of an engine that ended count from its last sight."""
        return self.after.get(counter, 0.0) - self.before.get(counter, 0.0)


@dataclass(frozen=True, slots=True)
class Check:
    """Whether something held, and the figures it rests on."""

    name: str
    passed: bool
    said: str

    def as_json(self) -> Json:
        """Return it as the record holds it."""
        return {"name": self.name, "passed": self.passed, "said": self.said}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario.

    Args:
        name: as on the command line.
        said: what it is about, in one sentence.
        calls: in order of `at_s`.
        limits: run-time limits of the gateway by path; "engine.*." stands for every engine.
        faults: what breaks; such a scenario needs simulated engines.
        engines: what kind of stack it needs: "two" or "small-kv".
        checks: names of its own checks, beside those that every scenario must hold.
        deadline_s: when callers that still wait are counted as unfinished and leave.
    """

    name: str
    said: str
    calls: tuple[Call, ...]
    checks: tuple[str, ...]
    limits: Mapping[str, float] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    engines: str = "two"
    deadline_s: float = 60.0
