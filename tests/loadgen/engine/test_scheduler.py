"""The scheduler's rules one by one on schedules worked out by hand, then what always holds."""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.engine.scheduler import Emission, Scheduler, SchedulerConfig, Step

# Small numbers so that every schedule below can be checked by head: 4 tokens to a block.
SMALL = SchedulerConfig(
    max_num_batched_tokens=8, max_num_seqs=4, num_gpu_blocks=33, block_size=4, max_model_len=64
)


def run_step(scheduler: Scheduler) -> tuple[Step, list[Emission]]:
    step = scheduler.step()
    return step, scheduler.complete(step)


def test_a_prompt_over_the_budget_is_computed_in_chunks_and_yields_its_token_with_the_last() -> (
    None
):
    scheduler = Scheduler(SMALL)
    scheduler.add(1, prompt_tokens=18, output_tokens=2)
    seen = [run_step(scheduler) for _ in range(4)]
    assert [step.scheduled for step, _ in seen] == [((1, 8),), ((1, 8),), ((1, 2),), ((1, 1),)]
    assert [emitted for _, emitted in seen] == [[], [], [Emission(1, False)], [Emission(1, True)]]
    assert not scheduler.has_work


def test_running_sequences_are_served_before_waiting_ones_in_admission_order() -> None:
    scheduler = Scheduler(SMALL)
    scheduler.add(1, 3, 9)
    scheduler.add(2, 3, 9)
    assert run_step(scheduler)[0].scheduled == ((1, 3), (2, 3))
    scheduler.add(3, 20, 9)
    step, _ = run_step(scheduler)
    assert step.scheduled == ((1, 1), (2, 1), (3, 6))
    assert (step.prefill_tokens, step.prefill_requests, step.decode_sequences) == (6, 1, 2)
    assert step.kv_tokens == 6


def test_a_running_long_prefill_takes_the_whole_budget_from_a_short_that_waits() -> None:
    scheduler = Scheduler(SMALL)
    scheduler.add(1, 20, 1)
    run_step(scheduler)
    scheduler.add(2, 2, 1)
    assert run_step(scheduler)[0].scheduled == ((1, 8),)
    assert run_step(scheduler)[0].scheduled == ((1, 4), (2, 2))


def test_the_sequence_limit_holds_a_request_back_though_budget_is_left() -> None:
    scheduler = Scheduler(replace(SMALL, max_num_seqs=2))
    for seq_id in (1, 2, 3):
        scheduler.add(seq_id, 1, 2)
    assert run_step(scheduler)[0].scheduled == ((1, 1), (2, 1))
    assert (scheduler.running, scheduler.waiting) == (2, 1)
    run_step(scheduler)
    assert run_step(scheduler)[0].scheduled == ((3, 1),)


def test_fcfs_ignores_priority_and_priority_orders_the_waiting_by_priority_then_arrival() -> None:
    def first_scheduled(policy: str) -> list[int]:
        scheduler = Scheduler(replace(SMALL, policy=policy, max_num_seqs=1))  # type: ignore[arg-type]
        for seq_id, priority, arrived_s in ((1, 5, 0.0), (2, 0, 3.0), (3, 0, 2.0), (4, -1, 9.0)):
            scheduler.add(seq_id, 1, 1, priority, arrived_s)
        return [run_step(scheduler)[0].scheduled[0][0] for _ in range(4)]

    assert first_scheduled("fcfs") == [1, 2, 3, 4]
    assert first_scheduled("priority") == [4, 3, 2, 1]


def test_a_priority_request_does_not_interrupt_a_running_prefill() -> None:
    scheduler = Scheduler(replace(SMALL, policy="priority"))
    scheduler.add(1, 16, 1, priority=5)
    run_step(scheduler)
    scheduler.add(2, 2, 1, priority=-10)
    assert run_step(scheduler)[0].scheduled == ((1, 8),)


def test_the_long_prefill_threshold_caps_chunks_only_while_another_request_is_there() -> None:
    scheduler = Scheduler(replace(SMALL, long_prefill_token_threshold=3))
    scheduler.add(1, 20, 1)
    assert run_step(scheduler)[0].scheduled == ((1, 8),)
    scheduler.add(2, 2, 2)
    assert run_step(scheduler)[0].scheduled == ((1, 3), (2, 2))


# Five usable blocks of four tokens, and a context of twenty that fills them exactly.
TIGHT = replace(SMALL, num_gpu_blocks=6, max_model_len=20)


def test_without_a_free_block_the_last_admitted_is_preempted_and_nothing_is_admitted() -> None:
    scheduler = Scheduler(TIGHT)
    scheduler.add(1, 4, 9)
    scheduler.add(2, 4, 9)
    assert run_step(scheduler)[0].scheduled == ((1, 4), (2, 4))
    for _ in range(4):  # both grow to eight computed tokens: two blocks each
        run_step(scheduler)
    assert (scheduler.kv_used_blocks, scheduler.preemptions_total) == (4, 0)
    scheduler.add(3, 1, 1)
    step, _ = run_step(scheduler)  # 1 takes the fifth block, 2 finds none and loses its seat
    assert (step.scheduled, step.preempted) == (((1, 1),), (2,))
    assert (scheduler.running, scheduler.waiting, scheduler.kv_used_blocks) == (1, 2, 3)


def test_a_preempted_sequence_returns_first_and_recomputes_prompt_and_output() -> None:
    scheduler = Scheduler(TIGHT)
    scheduler.add(1, 4, 6)
    scheduler.add(2, 4, 9)
    for _ in range(5):
        run_step(scheduler)
    scheduler.add(3, 1, 1)
    step, emitted = run_step(scheduler)
    assert (step.preempted, emitted) == ((2,), [Emission(1, True)])
    step, _ = run_step(scheduler)
    assert step.scheduled == ((2, 8),)  # 4 + 5 tokens, of which the budget takes 8 at once
    assert (step.prefill_tokens, step.decode_sequences) == (8, 0)
    step, emitted = run_step(scheduler)
    # Its last token to recompute is scheduled like a decode; then the one that waited comes in.
    assert step.scheduled == ((2, 1), (3, 1))
    assert emitted == [Emission(2, False), Emission(3, True)]


def test_by_priority_the_worst_is_preempted_and_its_tokens_of_the_step_are_taken_back() -> None:
    scheduler = Scheduler(replace(TIGHT, policy="priority"))
    scheduler.add(1, 4, 9, priority=7)
    run_step(scheduler)
    scheduler.add(2, 5, 9, priority=0)
    run_step(scheduler)  # 1: five computed tokens in two blocks, 2: five in two
    for _ in range(3):
        run_step(scheduler)
    assert scheduler.kv_used_blocks == 4
    step, emitted = run_step(scheduler)
    # 1 took the last block first; 2 finds none, so 1, the worst, is undone within the step.
    assert (step.scheduled, step.preempted) == (((2, 1),), (1,))
    assert emitted == [Emission(2, False)]


def test_a_prompt_is_admitted_only_if_all_of_it_fits_unless_reservation_is_off() -> None:
    def admitted(*, reserve: bool) -> tuple[tuple[int, int], ...]:
        scheduler = Scheduler(replace(TIGHT, reserve_full_isl=reserve))
        scheduler.add(1, 6, 9)
        run_step(scheduler)
        scheduler.add(2, 18, 1)  # five blocks; two are taken
        return run_step(scheduler)[0].scheduled

    assert admitted(reserve=True) == ((1, 1),)
    assert admitted(reserve=False) == ((1, 1), (2, 7))


def test_the_watermark_keeps_blocks_free_at_admission_but_never_blocks_an_empty_engine() -> None:
    scheduler = Scheduler(replace(TIGHT, watermark=0.5))  # three of six blocks
    scheduler.add(1, 18, 1)
    assert run_step(scheduler)[0].scheduled == ((1, 8),)
    scheduler.abort(1)
    scheduler.add(2, 4, 9)
    run_step(scheduler)
    scheduler.add(3, 8, 1)  # would leave two of five free, one too few
    assert run_step(scheduler)[0].scheduled == ((2, 1),)
    scheduler.abort(3)
    scheduler.add(4, 1, 1)
    scheduler.abort(2)
    assert run_step(scheduler)[0].scheduled == ((4, 1),)


def test_abort_frees_a_waiting_and_a_running_sequence_and_knows_no_other() -> None:
    scheduler = Scheduler(replace(SMALL, max_num_seqs=1))
    scheduler.add(1, 5, 5)
    scheduler.add(2, 5, 5)
    run_step(scheduler)
    assert scheduler.abort(2)
    assert scheduler.abort(1)
    assert not scheduler.abort(1)
    assert (scheduler.running, scheduler.waiting, scheduler.kv_used_blocks) == (0, 0, 0)
    assert scheduler.step() == Step()


def test_a_sequence_aborted_during_its_step_emits_nothing() -> None:
    scheduler = Scheduler(SMALL)
    scheduler.add(1, 2, 5)
    scheduler.add(2, 2, 5)
    step = scheduler.step()
    scheduler.abort(1)
    assert scheduler.complete(step) == [Emission(2, False)]
    assert scheduler.kv_used_blocks == 1


def test_output_ends_at_the_context_limit() -> None:
    scheduler = Scheduler(TIGHT)
    scheduler.add(1, 18, 100)
    emitted = [emission for _ in range(5) for emission in run_step(scheduler)[1]]
    assert emitted == [Emission(1, False), Emission(1, True)]


def test_a_step_must_be_completed_before_the_next() -> None:
    scheduler = Scheduler(SMALL)
    scheduler.add(1, 2, 5)
    scheduler.step()
    with pytest.raises(RuntimeError, match="complete"):
        scheduler.step()


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens"), [(0, 1), (64, 1), (1, 0)], ids=["empty", "long", "mute"]
)
def test_lengths_the_engine_cannot_serve_are_refused(
    prompt_tokens: int, output_tokens: int
) -> None:
    with pytest.raises(ValueError, match="sequence 1"):
        Scheduler(SMALL).add(1, prompt_tokens, output_tokens)


def test_an_id_in_use_is_refused() -> None:
    scheduler = Scheduler(SMALL)
    scheduler.add(1, 1, 1)
    with pytest.raises(ValueError, match="already"):
        scheduler.add(1, 1, 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens"),
        ({"policy": "lifo"}, "policy"),
        ({"watermark": 1.0}, "watermark"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold"),
        ({"num_gpu_blocks": 16}, "num_gpu_blocks"),
    ],
)
def test_limits_under_which_nothing_could_finish_are_refused(
    change: dict[str, object], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        replace(SMALL, **change)  # type: ignore[arg-type]


CONFIGS = st.builds(
    lambda budget, seqs, policy, threshold, blocks, reserve, watermark: SchedulerConfig(
        max_num_batched_tokens=max(budget, seqs),
        max_num_seqs=seqs,
        policy=policy,
        long_prefill_token_threshold=threshold,
        num_gpu_blocks=blocks,
        block_size=4,
        max_model_len=32,
        reserve_full_isl=reserve,
        watermark=watermark,
    ),
    st.integers(1, 40),
    st.integers(1, 8),
    st.sampled_from(["fcfs", "priority"]),
    st.integers(0, 12),
    st.integers(9, 24),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 0.5]),
)
# (steps before it arrives, prompt, output, priority, aborted after so many steps or never)
ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.integers(1, 31),
        st.integers(1, 31),
        st.integers(-1, 2),
        st.one_of(st.none(), st.integers(1, 20)),
    ),
    min_size=1,
    max_size=20,
)


@dataclass
class World:
    """Drives a scheduler through a list of arrivals and checks each step."""

    config: SchedulerConfig
    arrivals: list[tuple[int, int, int, int, int | None]]
    emitted: Counter[int] = field(default_factory=Counter)
    finished: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)

    def run(self) -> Scheduler:
        scheduler = Scheduler(self.config)
        starts = list(accumulate(gap for gap, *_ in self.arrivals))
        for now in range(20_000):
            self.arrive_and_abort(scheduler, starts, now)
            step = scheduler.step()
            self.check(scheduler, step)
            for emission in scheduler.complete(step):
                self.emitted[emission.seq_id] += 1
                if emission.finished:
                    self.finished.add(emission.seq_id)
            if now >= starts[-1] and not scheduler.has_work:
                return scheduler
        raise AssertionError("some sequence never finishes")

    def arrive_and_abort(self, scheduler: Scheduler, starts: list[int], now: int) -> None:
        for seq_id, (start, arrival) in enumerate(zip(starts, self.arrivals, strict=True)):
            _, prompt, output, priority, abort_after = arrival
            if now == start:
                scheduler.add(seq_id, prompt, output, priority, float(now))
            if abort_after is not None and now == start + abort_after and scheduler.abort(seq_id):
                self.aborted.add(seq_id)

    def check(self, scheduler: Scheduler, step: Step) -> None:
        tokens = [count for _, count in step.scheduled]
        assert all(count > 0 for count in tokens)
        assert sum(tokens) <= self.config.max_num_batched_tokens
        assert sum(tokens) == step.prefill_tokens + step.decode_sequences
        assert len(tokens) == step.prefill_requests + step.decode_sequences
        assert len({seq_id for seq_id, _ in step.scheduled}) == len(tokens)
        assert len(tokens) <= scheduler.running <= self.config.max_num_seqs
        held = sum(seq.capacity for seq in scheduler._running)
        assert held == scheduler.kv_used_blocks * self.config.block_size
        assert 0 <= scheduler.kv_used_blocks <= self.config.usable_blocks


@settings(max_examples=300, deadline=None)
@given(CONFIGS, ARRIVALS)
def test_budget_seats_and_blocks_hold_in_every_step_and_every_sequence_finishes(
    config: SchedulerConfig, arrivals: list[tuple[int, int, int, int, int | None]]
) -> None:
    world = World(config, arrivals)
    scheduler = world.run()
    assert world.finished | world.aborted == set(range(len(arrivals)))
    assert scheduler.kv_used_blocks == scheduler.running == scheduler.waiting == 0
    for seq_id in world.finished:
        _, prompt, output, _, _ = arrivals[seq_id]
        assert world.emitted[seq_id] == min(output, config.max_model_len - prompt)
