"""Who waits in which order, and what a step adds up."""

from loadgen.engine.sequences import SequenceState, Waiting, summarise


def sequence(seq_id: int, priority: int = 0, computed: int = 0, total: int = 10) -> SequenceState:
    made = SequenceState(seq_id, 10, 20, priority, 0.0, total, computed)
    made.granted = total - computed
    return made


def test_first_come_goes_first_and_one_that_lost_its_seat_before_all() -> None:
    waiting = Waiting(by_priority=False)
    for seq in (sequence(1, priority=5), sequence(2)):
        waiting.append(seq)
    waiting.prepend(sequence(3))
    order = []
    while waiting:
        order.append(waiting.first().seq_id)
        waiting.pop()
    assert order == [3, 1, 2]


def test_by_priority_the_lowest_goes_first_even_before_one_that_lost_its_seat() -> None:
    waiting = Waiting(by_priority=True)
    waiting.append(sequence(1, priority=1))
    waiting.prepend(sequence(2, priority=2))
    assert waiting.first().seq_id == 1


def test_what_is_taken_out_waits_no_more_and_what_does_not_wait_is_told() -> None:
    waiting, seq = Waiting(by_priority=False), sequence(1)
    waiting.append(seq)
    assert waiting.remove(seq)
    assert not waiting.remove(seq)
    assert len(waiting) == 0


def test_a_step_tells_prefill_from_decode_and_counts_what_both_look_back_on() -> None:
    batch = [sequence(1, computed=4), sequence(2, computed=12, total=13)]
    step = summarise(batch, [7], [(1, 4)])
    assert step.scheduled == ((1, 6), (2, 1))
    assert (step.prefill_tokens, step.prefill_requests, step.decode_sequences) == (6, 1, 1)
    assert (step.kv_tokens, step.preempted, step.hits) == (16, (7,), ((1, 4),))
    # Six tokens look back on four each, and the last of them on five of their own besides.
    assert step.prefill_pairs == 6 * 4 + 6 * 6 // 2
