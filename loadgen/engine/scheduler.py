"""Decides what one engine iteration computes, as vLLM's V1 scheduler does.

Each step spends a token budget: first on the running sequences in admission order, then on
waiting ones. A prompt that exceeds what is left is computed in chunks. Every sequence holds KV
blocks for its computed tokens; when a running one needs a block and none is free, the last
admitted (or, by priority, the worst) sequence loses its blocks, its computed tokens and its
seat, and nothing is admitted in that step. There is no prefill phase: a sequence is behind by
``total - computed`` tokens and yields one new token whenever it has caught up.

With prefix caching, blocks belong to ``prefix_cache.py``, and a sequence is admitted with the
tokens that are known already as computed.

Follows ``vllm/v1/core/sched/scheduler.py`` and ``kv_cache_manager.py`` of 0.32 without
speculation, encoders, connectors and asynchronous scheduling.

Units: tokens and KV blocks; ``arrived_s`` only orders, on any clock.

Pure: no I/O, no clock.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from loadgen.engine.prefix_cache import PrefixCache
from loadgen.engine.sequences import Emission, SequenceState, Step, Waiting, summarise

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
    enable_prefix_caching: bool = False

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


class Scheduler:
    """One engine's admission and batching state: ``add``, then ``step`` and ``complete`` in turn.

    The mutable state is the running list, the waiting queue, the count of free blocks and the
    sequences themselves; nothing else changes between calls.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.preemptions_total = 0
        self.prefix_queries_total = 0
        self.prefix_hits_total = 0
        self._running: list[SequenceState] = []
        self._waiting = Waiting(by_priority=config.policy == "priority")
        self._sequences: dict[int, SequenceState] = {}
        self._free_blocks = config.usable_blocks
        self._watermark_blocks = int(config.watermark * config.num_gpu_blocks)
        self._step_open = False
        self._cache = (
            PrefixCache(config.usable_blocks, config.block_size)
            if config.enable_prefix_caching
            else None
        )

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
        free = self._free_blocks if self._cache is None else self._cache.free
        return self.config.usable_blocks - free

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
        keys: Sequence[Hashable] = (),
    ) -> None:
        """Queue a sequence that will yield ``output_tokens`` (less at ``max_model_len``).

        ``keys`` are those of its first full blocks; blocks beyond them are nobody else's.

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
        seq = SequenceState(seq_id, prompt_tokens, final_total, priority, arrived_s, prompt_tokens)
        self._sequences[seq_id] = seq
        if self._cache is not None:
            self._cache.add(seq_id, keys)
        self._waiting.append(seq)

    def abort(self, seq_id: int) -> bool:
        """Drop a sequence and free its blocks at once; False when it is not in the engine."""
        seq = self._sequences.pop(seq_id, None)
        if seq is None:
            return False
        if not self._waiting.remove(seq):
            self._running.remove(seq)
            self._release(seq)
        self._forget(seq)
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
        batch: list[SequenceState] = []
        preempted: list[int] = []
        hits: list[tuple[int, int]] = []
        budget = self._grant_running(batch, preempted, chunk_limit)
        if not preempted:
            self._admit_waiting(batch, budget, chunk_limit, hits)
        self._step_open = bool(batch)
        return summarise(batch, preempted, hits)

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
            self._forget(seq)
            emissions.append(Emission(seq_id, finished=True))
        if finished:
            self._running = [seq for seq in self._running if seq.seq_id in sequences]
        return emissions

    def _grant_running(
        self, batch: list[SequenceState], preempted: list[int], chunk_limit: int
    ) -> int:
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

    def _admit_waiting(
        self,
        batch: list[SequenceState],
        budget: int,
        chunk_limit: int,
        hits: list[tuple[int, int]],
    ) -> None:
        """Seat waiting sequences until budget, seats or blocks run out; never skips the first."""
        config = self.config
        while budget > 0 and self._waiting and len(self._running) < config.max_num_seqs:
            seq = self._waiting.first()
            known = 0 if self._cache is None else self._cache.hit_tokens(seq.seq_id, seq.total)
            tokens = min(seq.total - known, chunk_limit, budget)
            # vLLM applies the watermark only while something else holds a seat: an empty engine
            # must always be able to admit.
            spare = self._watermark_blocks if self._running else 0
            if config.reserve_full_isl and not self._fits(seq, spare):
                return
            if not self._seat(seq, known, tokens, spare):
                return
            self._waiting.pop()
            self._running.append(seq)
            if self._cache is not None:
                self._note_hit(seq, known, hits)
            seq.granted = tokens
            batch.append(seq)
            budget -= tokens

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def _fits(self, seq: SequenceState, spare: int) -> bool:
        if self._cache is not None:
            return self._cache.fits(seq.seq_id, seq.total, spare)
        return self._blocks(seq.total) + spare <= self._free_blocks

    def _seat(self, seq: SequenceState, known: int, tokens: int, spare: int) -> bool:
        """Give a waiting sequence its first blocks; False when too few are free."""
        if self._cache is None:
            return self._take_blocks(seq, tokens, spare)
        seated = self._cache.admit(seq.seq_id, seq.total, known + tokens, spare)
        seq.computed = known if seated else 0
        return seated

    def _note_hit(self, seq: SequenceState, known: int, hits: list[tuple[int, int]]) -> None:
        """Count what was asked of the cache; a sequence that lost its seat is not counted again."""
        if seq.preempted:
            return
        self.prefix_queries_total += seq.total
        self.prefix_hits_total += known
        hits.append((seq.seq_id, known))

    def _take_blocks(self, seq: SequenceState, tokens: int, spare: int) -> bool:
        """Extend a sequence's blocks by what ``tokens`` need; False when too few are free."""
        if self._cache is not None:
            return self._cache.extend(seq.seq_id, seq.computed + tokens)
        needed_tokens = seq.computed + tokens - seq.capacity
        if needed_tokens <= 0:
            return spare <= self._free_blocks
        blocks = self._blocks(needed_tokens)
        if blocks + spare > self._free_blocks:
            return False
        self._free_blocks -= blocks
        seq.capacity += blocks * self.config.block_size
        return True

    def _preempt(self, batch: list[SequenceState]) -> tuple[SequenceState, int]:
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
        victim.preempted = True
        self._waiting.prepend(victim)
        self.preemptions_total += 1
        return victim, refund

    def _release(self, seq: SequenceState) -> None:
        if self._cache is not None:
            self._cache.release(seq.seq_id)
            return
        self._free_blocks += seq.capacity // self.config.block_size
        seq.capacity = 0

    def _forget(self, seq: SequenceState) -> None:
        if self._cache is not None:
            self._cache.drop(seq.seq_id)
