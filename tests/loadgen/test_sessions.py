import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.record import BenchError, Prompt
from loadgen.sessions import (
    SharedCounter,
    engine_keys,
    numbered,
    one_each,
    prompt_keys,
    session_of,
    session_shares,
    shared_tokens,
)
from loadgen.sweep_settings import Reuse


@given(st.integers(1, 5), st.floats(0.01, 1.0), st.integers(0, 99), st.integers(1, 200))
def test_of_any_first_prompts_the_asked_share_belongs_to_a_session(sessions, share, seed, count):
    own = [session_of(Reuse(sessions, 64, share), n, seed) for n in range(count)]
    inside = [s for s in own if s is not None]
    assert len(inside) == int(count * share + 1e-9)
    assert set(inside) <= set(range(sessions))


def test_the_seed_decides_who_shares_with_whom():
    def drawn(seed):
        return [session_of(Reuse(4, 64), n, seed) for n in range(50)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert set(drawn(1)) == {0, 1, 2, 3}


def test_an_equal_number_means_that_everything_up_to_the_blocks_end_is_equal():
    head = list(range(32))
    one, other, apart = ([*head, 1, 2], [*head, 3], [9, *head[1:], 1, 2])
    numbers = numbered([prompt_keys(ids) for ids in (one, other, apart, one)])
    assert numbers == [(0, 1, 2), (0, 1, 3), (4, 5, 6), (0, 1, 2)]


def test_an_engine_with_larger_blocks_knows_fewer_and_the_last_unfilled_one_never():
    assert engine_keys([0, 1, 2, 3, 4], 70, 16) == (0, 1, 2, 3)
    assert engine_keys([0, 1, 2, 3, 4], 80, 16) == (0, 1, 2, 3, 4)
    assert engine_keys([0, 1, 2, 3, 4], 80, 32) == (1, 3)
    with pytest.raises(BenchError, match="block_size 24"):
        engine_keys([0], 16, 24)


def prompt(name, session):
    return Prompt("short", 96, 8, name, name, None, session)


def test_sessions_that_share_less_than_asked_or_a_block_more_are_refused():
    prompts = [prompt("a", "s-0"), prompt("b", "s-0"), prompt("c", None)]

    def shares(common):
        return session_shares(
            prompts, {"short": Reuse(1, 64)}, lambda p: [*range(common), ord(p.text)]
        )

    assert shares(64) == {"short": 64}
    assert shares(79) == {"short": 79}
    for wrong in (63, 80):
        with pytest.raises(BenchError, match=f"short share {wrong} tokens, not 64"):
            shares(wrong)


def test_one_prompt_stands_for_each_session_and_every_other_for_itself():
    own = [prompt("a", "s-0"), prompt("b", "s-0"), prompt("c", None), prompt("d", None)]
    assert {p.text for p in one_each(own)} == {"a", "c", "d"}


def test_what_two_continuations_share_is_counted_with_the_template():
    class Letters:
        def chat_ids(self, body):
            return [0, 0, *body["messages"][-1]["content"].encode(), 1]

        def count_text(self, text, *, add_special_tokens):
            return len(text)

    body = {"messages": [{"role": "user", "content": "abc"}]}
    assert SharedCounter(Letters()).count_chat(body) == 2 + len("abc\n\n")
    assert shared_tokens([1, 2, 3], [1, 2]) == 2
