"""Decides what one engine iteration computes, as vLLM's V1 scheduler does.

Each step spends a token budget: first on the running sequences in admission order, then on
waiting ones. A prompt that exceeds what is left is computed in chunks. Every sequence holds KV
blocks for its computed tokens; when a running one needs a block and none is free, the last
admitted (or, by priority, the worst) sequence loses its blocks, its computed tokens and its
seat, and nothing is admitted in that step. There is no prefill phase: a sequence is behind by
``total - computed`` tokens and yields one new token whenever it has caught up.

Follows ``vllm/v1/core/sched/scheduler.py`` and ``kv_cache_manager.py`` of 0.32 without prefix
cache, speculation, encoders, connectors and asynchronous scheduling.

Units: tokens and KV blocks; ``arrived_s`` only orders, on any clock.

Pure: no I/O, no clock.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Literal

__all__ = ["Emission", "Policy", "Scheduler", "SchedulerConfig", "Step"]

Policy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one engine, named and defaulted as ``vllm serve`` has them on one H200.

    Raises:
        ValueError: A limit is out of range, or the KV cache can't hold one full sequence.
    """

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    policy: Policy = "fcfs"
    long_prefill_token_threshold: int = 0
    num_gpu_blocks: int = 24576
    block_size: int = 16
    max_model_len: int = 16384
    reserve_full_isl: bool = True
    watermark: float = 0.0

    def __post_init__(self) -> None:
        """Refuse limits under which no sequence could ever finish."""
        for name in ("max_num_batched_tokens", "max_num_seqs", "block_size", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f"policy must be fcfs or priority, got {self.policy!r}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be less than "
                f"max_num_seqs ({self.max_num_seqs})"
            )
        if self.long_prefill_token_threshold < 0 or not 0.0 <= self.watermark < 1.0:
            raise ValueError("long_prefill_token_threshold must be >= 0 and watermark in [0, 1)")
        if self.usable_blocks * self.block_size < self.max_model_len:
            raise ValueError(
                f"num_gpu_blocks {self.num_gpu_blocks} of {self.block_size} tokens can't hold one "
                f"sequence of max_model_len {self.max_model_len} (one block is never usable)"
            )

    @property
    def usable_blocks(self) -> int:
        """Blocks that can hold tokens: vLLM keeps one as the null block."""
        return self.num_gpu_blocks - 1


@dataclass(frozen=True, slots=True)
class Step:
    """What one iteration computes: (sequence, tokens) in order, and the sums its cost needs.

    ``kv_tokens`` counts the already computed tokens of every scheduled sequence.
    """

    scheduled: tuple[tuple[int, int], ...] = ()
    prefill_tokens: int = 0
    prefill_requests: int = 0
    decode_sequences: int = 0
    kv_tokens: int = 0
    preempted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Emission:
    """One new token of a sequence; ``finished`` on its last."""

    seq_id: int
    finished: bool


@dataclass(slots=True, eq=False)
class _Sequence:
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


class _Waiting:
    """Sequences that wait for admission, first to admit on top.

    One heap serves both policies: fcfs keys by a running number, and a preempted sequence gets a
    number before all others; by priority it returns to its own place.
    """

    __slots__ = ("_back", "_by_priority", "_front", "_heap")

    def __init__(self, policy: Policy) -> None:
        self._by_priority = policy == "priority"
        self._heap: list[tuple[tuple[float, ...], _Sequence]] = []
        self._front = 0
        self._back = 0

    def __len__(self) -> int:
        return len(self._heap)

    def append(self, seq: _Sequence) -> None:
        self._back += 1
        heappush(self._heap, (seq.rank if self._by_priority else (self._back,), seq))

    def prepend(self, seq: _Sequence) -> None:
        self._front -= 1
        heappush(self._heap, (seq.rank if self._by_priority else (self._front,), seq))

    def first(self) -> _Sequence:
        return self._heap[0][1]

    def pop(self) -> None:
        heappop(self._heap)

    def remove(self, seq: _Sequence) -> bool:
        kept = [item for item in self._heap if item[1] is not seq]
        found = len(kept) < len(self._heap)
        if found:
            heapify(kept)
            self._heap = kept
        return found


class Scheduler:
    """One engine's admission and batching state: ``add``, then ``step`` and ``complete`` in turn.

    The mutable state is the running list, the waiting queue, the count of free blocks and the
    sequences themselves; nothing else changes between calls.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.preemptions_total = 0
        self._running: list[_Sequence] = []
        self._waiting = _Waiting(config.policy)
        self._sequences: dict[int, _Sequence] = {}
        self._free_blocks = config.usable_blocks
        self._watermark_blocks = int(config.watermark * config.num_gpu_blocks)
        self._step_open = False

    @property
    def running(self) -> int:
        """Sequences that hold a seat in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a seat, preempted ones included."""
        return len(self._waiting)

    @property
    def kv_used_blocks(self) -> int:
        """KV blocks held by running sequences."""
        return self.config.usable_blocks - self._free_blocks

    @property
    def has_work(self) -> bool:
        """Whether a step would have anything to consider."""
        return bool(self._sequences)

    def add(
        self,
        seq_id: int,
        prompt_tokens: int,
        output_tokens: int,
        priority: int = 0,
        arrived_s: float = 0.0,
    ) -> None:
        """Queue a sequence that will yield ``output_tokens`` (less at ``max_model_len``).

        Raises:
            ValueError: The id is in use, or a length is not one the engine can serve.
        """
        limit = self.config.max_model_len
        if seq_id in self._sequences:
            raise ValueError(f"sequence {seq_id} is already in the engine")
        if not 1 <= prompt_tokens < limit or output_tokens < 1:
            raise ValueError(
                f"sequence {seq_id}: prompt_tokens must be 1..{limit - 1} and output_tokens >= 1, "
                f"got {prompt_tokens} and {output_tokens}"
            )
        final_total = min(prompt_tokens + output_tokens, limit)
        seq = _Sequence(seq_id, prompt_tokens, final_total, priority, arrived_s, prompt_tokens)
        self._sequences[seq_id] = seq
        self._waiting.append(seq)

    def abort(self, seq_id: int) -> bool:
        """Drop a sequence and free its blocks at once; False when it is not in the engine."""
        seq = self._sequences.pop(seq_id, None)
        if seq is None:
            return False
        if not self._waiting.remove(seq):
            self._running.remove(seq)
            self._release(seq)
        return True

    def step(self) -> Step:
        """Decide the next iteration and take its blocks; an empty Step when nothing can run.

        Raises:
            RuntimeError: The previous step was not completed.
        """
        if self._step_open:
            raise RuntimeError("complete() the previous step before the next step()")
        threshold = self.config.long_prefill_token_threshold
        if len(self._running) + len(self._waiting) <= 1:
            threshold = 0  # nobody to starve: a request alone takes the whole budget
        chunk_limit = threshold or self.config.max_num_batched_tokens
        batch: list[_Sequence] = []
        preempted: list[int] = []
        budget = self._grant_running(batch, preempted, chunk_limit)
        if not preempted:
            self._admit_waiting(batch, budget, chunk_limit)
        self._step_open = bool(batch)
        return _summarise(batch, preempted)

    def complete(self, step: Step) -> list[Emission]:
        """Apply a step: one token for every sequence that has caught up, in scheduled order.

        Sequences aborted since the step was made are skipped.
        """
        self._step_open = False
        emissions: list[Emission] = []
        finished = False
        sequences = self._sequences
        for seq_id, tokens in step.scheduled:
            seq = sequences.get(seq_id)
            if seq is None:
                continue
            computed = seq.computed = seq.computed + tokens
            if computed < seq.total:
                continue
            total = seq.total = seq.total + 1
            if total < seq.final_total:
                emissions.append(seq.emission)
                continue
            finished = True
            del sequences[seq_id]
            self._release(seq)
            emissions.append(Emission(seq_id, finished=True))
        if finished:
            self._running = [seq for seq in self._running if seq.seq_id in sequences]
        return emissions

    def _grant_running(self, batch: list[_Sequence], preempted: list[int], chunk_limit: int) -> int:
        """Give running sequences their tokens in admission order; returns the budget left."""
        budget = self.config.max_num_batched_tokens
        running = self._running
        index = 0
        while index < len(running) and budget > 0:
            seq = running[index]
            tokens = seq.total - seq.computed
            if tokens > 1:
                tokens = min(tokens, chunk_limit, budget)
            while not self._take_blocks(seq, tokens, 0):
                victim, refund = self._preempt(batch)
                preempted.append(victim.seq_id)
                budget += refund
                if victim is seq:
                    return budget
                index = running.index(seq)
            seq.granted = tokens
            batch.append(seq)
            budget -= tokens
            index += 1
        return budget

    def _admit_waiting(self, batch: list[_Sequence], budget: int, chunk_limit: int) -> None:
        """Seat waiting sequences until budget, seats or blocks run out; never skips the first."""
        config = self.config
        while budget > 0 and self._waiting and len(self._running) < config.max_num_seqs:
            seq = self._waiting.first()
            tokens = min(seq.total, chunk_limit, budget)
            # vLLM applies the watermark only while something else holds a seat: an empty engine
            # must always be able to admit.
            spare = self._watermark_blocks if self._running else 0
            if config.reserve_full_isl and self._blocks(seq.total) + spare > self._free_blocks:
                return
            if not self._take_blocks(seq, tokens, spare):
                return
            self._waiting.pop()
            self._running.append(seq)
            seq.granted = tokens
            batch.append(seq)
            budget -= tokens

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def _take_blocks(self, seq: _Sequence, tokens: int, spare: int) -> bool:
        """Extend a sequence's blocks by what ``tokens`` need; False when too few are free."""
        needed_tokens = seq.computed + tokens - seq.capacity
        if needed_tokens <= 0:
            return spare <= self._free_blocks
        blocks = self._blocks(needed_tokens)
        if blocks + spare > self._free_blocks:
            return False
        self._free_blocks -= blocks
        seq.capacity += blocks * self.config.block_size
        return True

    def _preempt(self, batch: list[_Sequence]) -> tuple[_Sequence, int]:
        """Unseat one sequence; returns it and the tokens it had been granted in this step."""
        refund = 0
        if self.config.policy == "fcfs":
            victim = self._running.pop()
        else:
            victim = max(self._running, key=lambda seq: (seq.priority, seq.arrived_s))
            self._running.remove(victim)
            if victim in batch:
                batch.remove(victim)
                refund = victim.granted
        self._release(victim)
        victim.computed = 0
        self._waiting.prepend(victim)
        self.preemptions_total += 1
        return victim, refund

    def _release(self, seq: _Sequence) -> None:
        self._free_blocks += seq.capacity // self.config.block_size
        seq.capacity = 0


def _summarise(batch: list[_Sequence], preempted: list[int]) -> Step:
    """Freeze a batch and add up what its cost depends on.

    A sequence decodes when it has generated and lacks one token; a recomputed one is prefill.
    """
    scheduled: list[tuple[int, int]] = []
    prefill_tokens = prefill_requests = kv_tokens = 0
    for seq in batch:
        kv_tokens += seq.computed
        granted = seq.granted
        if seq.total > seq.prompt_tokens and seq.total - seq.computed == 1:
            scheduled.append(seq.one_token)
        else:
            scheduled.append((seq.seq_id, granted))
            prefill_tokens += granted
            prefill_requests += 1
    return Step(
        scheduled=tuple(scheduled),
        prefill_tokens=prefill_tokens,
        prefill_requests=prefill_requests,
        decode_sequences=len(scheduled) - prefill_requests,
        kv_tokens=kv_tokens,
        preempted=tuple(preempted),
    )
