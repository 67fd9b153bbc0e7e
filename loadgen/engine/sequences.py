"""Holds the sequences of an engine: who waits, in which order, and what a step computes of whom.

Units: tokens. Pure: no I/O, no clock.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

__all__ = ["Emission", "SequenceState", "Step", "Waiting", "summarise"]


@dataclass(frozen=True, slots=True)
class Step:
    """What one iteration computes: (sequence, tokens) in order, and the sums its cost needs.

    ``kv_tokens`` counts the already computed tokens of every scheduled sequence, ``prefill_pairs``
    the pairs of a prompt token and a token before it that its attention reads. ``hits`` names,
    with prefix caching, each sequence admitted for the first time, and what was known of it.
    """

    scheduled: tuple[tuple[int, int], ...] = ()
    prefill_tokens: int = 0
    prefill_requests: int = 0
    decode_sequences: int = 0
    kv_tokens: int = 0
    preempted: tuple[int, ...] = ()
    hits: tuple[tuple[int, int], ...] = ()
    prefill_pairs: int = 0


@dataclass(frozen=True, slots=True)
class Emission:
    """One new token of a sequence; ``finished`` on its last."""

    seq_id: int
    finished: bool


@dataclass(slots=True, eq=False)
class SequenceState:
    """A request inside the engine. The three counters below the keys are all that changes.

    ``total`` is prompt plus generated tokens, ``computed`` those with KV, ``capacity`` the tokens
    that its blocks can hold. The last two fields are made once because a decode step would
    otherwise build them anew for every token.
    """

    seq_id: int
    prompt_tokens: int
    final_total: int
    priority: int
    arrived_s: float
    total: int
    computed: int = 0
    capacity: int = 0
    granted: int = 0
    preempted: bool = False
    one_token: tuple[int, int] = field(init=False)
    emission: Emission = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the two values that every decode step repeats."""
        self.one_token = (self.seq_id, 1)
        self.emission = Emission(self.seq_id, finished=False)

    @property
    def rank(self) -> tuple[int, float, int]:
        """Admission order by priority; the greatest is preempted first."""
        return (self.priority, self.arrived_s, self.seq_id)


class Waiting:
    """Sequences that wait for admission, first to admit on top.

    One heap serves both policies: fcfs keys by a running number, and a preempted sequence gets a
    number before all others; by priority it returns to its own place.
    """

    __slots__ = ("_back", "_by_priority", "_front", "_heap")

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[tuple[float, ...], SequenceState]] = []
        self._front = 0
        self._back = 0

    def __len__(self) -> int:
        return len(self._heap)

    def append(self, seq: SequenceState) -> None:
        """Queue a new sequence behind all others, or at its place by priority."""
        self._back += 1
        heappush(self._heap, (seq.rank if self._by_priority else (self._back,), seq))

    def prepend(self, seq: SequenceState) -> None:
        """Queue one that lost its seat before all others, or at its place by priority."""
        self._front -= 1
        heappush(self._heap, (seq.rank if self._by_priority else (self._front,), seq))

    def first(self) -> SequenceState:
        """The next to admit."""
        return self._heap[0][1]

    def pop(self) -> None:
        """Take the next to admit out."""
        heappop(self._heap)

    def remove(self, seq: SequenceState) -> bool:
        """Take a sequence out, wherever it stands; False when it does not wait."""
        kept = [item for item in self._heap if item[1] is not seq]
        found = len(kept) < len(self._heap)
        if found:
            heapify(kept)
            self._heap = kept
        return found


def summarise(
    batch: list[SequenceState], preempted: list[int], hits: list[tuple[int, int]]
) -> Step:
    """Freeze a batch and add up what its cost depends on.

    A sequence decodes when it has generated and lacks one token; a recomputed one is prefill.
    """
    scheduled: list[tuple[int, int]] = []
    prefill_tokens = prefill_requests = prefill_pairs = kv_tokens = 0
    for seq in batch:
        kv_tokens += seq.computed
        granted = seq.granted
        if seq.total > seq.prompt_tokens and seq.total - seq.computed == 1:
            scheduled.append(seq.one_token)
        else:
            scheduled.append((seq.seq_id, granted))
            prefill_tokens += granted
            prefill_pairs += granted * (2 * seq.computed + granted) // 2
            prefill_requests += 1
    return Step(
        scheduled=tuple(scheduled),
        prefill_tokens=prefill_tokens,
        prefill_requests=prefill_requests,
        decode_sequences=len(scheduled) - prefill_requests,
        kv_tokens=kv_tokens,
        preempted=tuple(preempted),
        hits=tuple(hits),
        prefill_pairs=prefill_pairs,
    )
