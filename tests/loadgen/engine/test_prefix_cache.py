"""Blocks that are known by their prefix: what is found, what is held, what is given up first."""

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.engine.prefix_cache import PrefixCache, block_keys
from loadgen.engine.scheduler import Scheduler, SchedulerConfig, Step

SIZE = 4


def cached(blocks: int, *ends: tuple[int, list[int]]) -> PrefixCache:
    """A cache in which these sequences (ids by number) have been and gone, in this order."""
    cache = PrefixCache(blocks, SIZE)
    for seq_id, ids in ends:
        cache.add(seq_id, block_keys(ids, SIZE))
        assert cache.admit(seq_id, len(ids), len(ids), 0)
        cache.drop(seq_id)
    return cache


def found(cache: PrefixCache, ids: list[int]) -> int:
    cache.add(99, block_keys(ids, SIZE))
    tokens = cache.hit_tokens(99, len(ids))
    cache.drop(99)
    return tokens


def test_a_key_stands_for_everything_up_to_its_blocks_end() -> None:
    one, other = block_keys([1, 2, 3, 4, 5], 2), block_keys([9, 2, 3, 4, 5], 2)
    assert len(one) == 2
    assert block_keys([1, 2, 3, 4], 2) == one
    assert set(one).isdisjoint(other), "the second blocks are alike, what precedes them is not"


def test_the_longest_run_of_known_blocks_is_found_but_never_a_prompts_last_token() -> None:
    ids = list(range(12))
    cache = cached(10, (1, ids))
    assert found(cache, ids) == 8, "the third block holds the last token"
    assert found(cache, [*ids, 77]) == 12
    assert found(cache, [*ids[:4], 77, *ids[5:], 77]) == 4
    assert found(cache, [77, *ids]) == 0


def test_what_runs_shares_its_blocks_and_they_are_freed_with_the_last_holder() -> None:
    ids = list(range(9))
    cache = PrefixCache(4, SIZE)
    for seq_id in (1, 2):
        cache.add(seq_id, block_keys(ids, SIZE))
        assert cache.admit(seq_id, 9, 9, 0)
    assert cache.free == 0, "two shared blocks, and one of each one's own"
    cache.drop(1)
    assert cache.free == 1
    cache.drop(2)
    assert cache.free == 4


def test_the_oldest_free_block_is_given_up_first_and_a_sequences_last_before_its_first() -> None:
    old, new = [1] * 8 + [7], [2] * 8 + [7]
    cache = cached(5, (1, old), (2, new))
    cache.add(3, ())
    assert cache.admit(3, 8, 8, 0), "one place has no key, the other was the old one's last block"
    assert (found(cache, old), found(cache, new)) == (4, 8)


def test_known_free_blocks_that_are_taken_over_leave_less_room_for_others() -> None:
    cache = cached(3, (1, list(range(9))))
    cache.add(2, block_keys([*range(8), 5, 5, 5, 5, 5], SIZE))
    assert not cache.fits(2, 13, 0), "two are found, two are needed, and one is free beside them"
    assert cache.fits(2, 12, 0)
    assert not cache.fits(2, 12, 1)


def steps(scheduler: Scheduler) -> list[Step]:
    made = []
    while scheduler.has_work:
        made.append(scheduler.step())
        scheduler.complete(made[-1])
    return made


def test_a_prompt_that_began_alike_is_computed_from_where_it_differs_and_the_step_says_so() -> None:
    scheduler = Scheduler(SchedulerConfig(enable_prefix_caching=True))
    ids = list(range(100))
    for seq_id, own in ((1, ids), (2, [*ids[:64], *ids[:36]])):
        scheduler.add(seq_id, 100, 1, keys=block_keys(own, 16))
        made = steps(scheduler)
    assert made[0].scheduled == ((2, 36),)
    assert (made[0].hits, made[0].prefill_tokens, made[0].kv_tokens) == (((2, 64),), 36, 64)
    assert (scheduler.prefix_queries_total, scheduler.prefix_hits_total) == (200, 64)


def test_without_caching_equal_keys_change_nothing() -> None:
    def made(keys: tuple[int, ...]) -> list[Step]:
        scheduler = Scheduler(SchedulerConfig())
        scheduler.add(1, 40, 2, keys=keys)
        scheduler.add(2, 40, 2, keys=keys)
        return steps(scheduler)

    assert made((1, 2)) == made(())
    assert not any(step.hits for step in made((1, 2)))


PROMPTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 15), st.integers(1, 20)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(PROMPTS, st.integers(5, 14), st.booleans())
def test_what_is_held_is_what_sequences_hold_and_all_is_free_in_the_end(
    prompts: list[tuple[int, int, int, int]], blocks: int, reserve: bool
) -> None:
    config = SchedulerConfig(
        max_num_batched_tokens=24,
        max_num_seqs=6,
        num_gpu_blocks=blocks,
        max_model_len=64,
        reserve_full_isl=reserve,
        enable_prefix_caching=True,
    )
    scheduler = Scheduler(config)
    for seq_id, (head, shared, own, output) in enumerate(prompts):
        ids = [head] * (16 * shared) + [100 + seq_id] * own
        keys = block_keys(ids, 16)
        scheduler.add(seq_id, len(ids), min(output, 64 - len(ids)), keys=keys)
    done: Counter[int] = Counter()
    for _ in range(5000):
        if not scheduler.has_work:
            break
        step = scheduler.step()
        assert sum(tokens for _, tokens in step.scheduled) <= 24
        assert 0 <= scheduler.kv_used_blocks <= config.usable_blocks
        for seq_id, known in step.hits:
            head, shared, own, _ = prompts[seq_id]
            assert known % 16 == 0
            assert known <= 16 * shared + own - 1
            alike = (seq for seq in range(len(prompts)) if seq != seq_id)
            assert known <= 16 * max(
                (min(shared, prompts[s][1]) for s in alike if prompts[s][0] == head), default=0
            )
        done.update(e.seq_id for e in scheduler.complete(step) if e.finished)
    assert done == Counter(range(len(prompts)))
    assert scheduler.kv_used_blocks == 0
    assert all(a <= b for a, b in pairwise(sorted(done)))
