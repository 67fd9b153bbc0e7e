"""Sums what each caller has used: requests, refusals, prompt and completion tokens.

Callers are few but come from outside, so what is kept is bounded: beyond ``MAX_CALLERS`` a new
one is counted under ``OTHER``. Completion tokens are those that engines reported; a caller with
none reported has no figure. Nothing is ever reset, except by a restart. Pure: no I/O, no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.domain import Outcome

__all__ = ["MAX_CALLERS", "OTHER", "Usage", "UsageBook"]

MAX_CALLERS = 10_000
OTHER = "(other)"  # neither a key's id nor a token's subject can read so

# Ends that say no to the caller; the rest were served, or broke while they were.
_REFUSALS = frozenset(Outcome) - {
    Outcome.COMPLETED,
    Outcome.ENGINE_ERROR,
    Outcome.UPSTREAM_UNREACHABLE,
    Outcome.UPSTREAM_TIMEOUT,
    Outcome.STREAM_INTERRUPTED,
    Outcome.DRAIN_TERMINATED,
    Outcome.INTERNAL_ERROR,
    Outcome.CLIENT_CANCELLED,
}


@dataclass(slots=True)
class Usage:
    """One caller's sums. Prompt tokens are counted once a request has reached an engine."""

    key_id: str
    requests: int = 0
    refusals: int = 0
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class UsageBook:
    """The sums of all callers since the process began."""

    def __init__(self, max_callers: int = MAX_CALLERS) -> None:
        self._max_callers = max_callers
        self._rows: dict[str, Usage] = {}

    def add(
        self,
        key_id: str | None,
        outcome: Outcome,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
    ) -> None:
        """Count one finished request; one without a caller is nobody's.

        Args:
            key_id: the caller, once known.
            outcome: how it ended.
            prompt_tokens: ours, if it reached an engine.
            completion_tokens: the engine's own figure, if it gave one.
        """
        if key_id is None:
            return
        row = self._rows.get(key_id) or self._new(key_id)
        row.requests += 1
        row.refusals += outcome in _REFUSALS
        row.prompt_tokens += prompt_tokens or 0
        if completion_tokens is not None:
            row.completion_tokens = (row.completion_tokens or 0) + completion_tokens

    def rows(self) -> Sequence[Usage]:
        """All callers, by name."""
        return sorted(self._rows.values(), key=lambda row: row.key_id)

    def _new(self, key_id: str) -> Usage:
        name = key_id if len(self._rows) < self._max_callers else OTHER
        return self._rows.setdefault(name, Usage(name))
