"""Says how long one engine iteration takes, from what it computes.

The model is linear: t = base + per_prefill if anything is prefilled + prefill_token * prefill
tokens + decode_sequence * decoding sequences + kv_token * tokens of context attended + prefill_pair
* pairs of a prompt token and one before it, which matters where attention is slow and prompts are
long. Its coefficients come from measurements of a real engine; a file without a source is refused.
Seconds of the engine's own clock.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from loadgen.engine.scheduler import Step

__all__ = ["StepCost", "step_cost_from"]

REQUIRED = ("base_s", "prefill_token_s", "decode_sequence_s", "kv_token_s")
OPTIONAL = ("per_prefill_s", "prefill_pair_s")
EVIDENCE = "fit"  # what `bench calibrate-engine` fitted them to; nothing is computed from it


@dataclass(frozen=True, slots=True)
class StepCost:
    """Coefficients of the step time, in seconds per unit, and where they were measured."""

    base_s: float
    prefill_token_s: float
    decode_sequence_s: float
    kv_token_s: float
    per_prefill_s: float = 0.0
    prefill_pair_s: float = 0.0
    source: str = ""

    def seconds(self, step: Step) -> float:
        """Duration of a step in engine seconds; nothing scheduled takes no time."""
        if not step.scheduled:
            return 0.0
        return (
            self.base_s
            + self.prefill_token_s * step.prefill_tokens
            + self.decode_sequence_s * step.decode_sequences
            + self.kv_token_s * step.kv_tokens
            + self.prefill_pair_s * step.prefill_pairs
            + (self.per_prefill_s if step.prefill_requests else 0.0)
        )


def step_cost_from(data: Mapping[str, object], name: str = "step model") -> StepCost:
    """Read coefficients from a decoded JSON object; ``name`` is the file named in errors.

    Raises:
        ValueError: A key is missing, unknown, not a finite number >= 0, or there is no source.
    """
    unknown = sorted(set(data) - {*REQUIRED, *OPTIONAL, "source", EVIDENCE})
    if unknown:
        raise ValueError(f"{name}: unknown key {unknown[0]!r}; known are {_known()}")
    numbers = {key: _seconds(data, key, name) for key in REQUIRED}
    numbers |= {key: _seconds(data, key, name) for key in OPTIONAL if key in data}
    source = data.get("source")
    if not isinstance(source, str) or not source.strip():
        raise ValueError(f"{name}: 'source' must say where the coefficients were measured")
    return StepCost(**numbers, source=source)


def _seconds(data: Mapping[str, object], key: str, name: str) -> float:
    if key not in data:
        raise ValueError(f"{name}: key {key!r} is missing; needed are {', '.join(REQUIRED)}")
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(  # noqa: TRY004 - one kind of error for a wrong file
            f"{name}: {key!r} must be a number of seconds, got {value!r}"
        )
    if not isfinite(value) or value < 0:
        raise ValueError(f"{name}: {key!r} must be finite and not negative, got {value!r}")
    return float(value)


def _known() -> str:
    return ", ".join((*REQUIRED, *OPTIONAL, "source", EVIDENCE))
