"""Planned answers: repeatable, bounded, and as long as asked."""

import json

from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.bodies import Sampling
from loadgen.engine.voice import Voice

VOICE = Voice([11, 12, 13], [" a", ' "b"', " c"], seed=1)


def sampling(*, ignore_eos: bool = False, min_tokens: int = 0, seed: int | None = None) -> Sampling:
    return Sampling(None, min_tokens, ignore_eos, seed, 1)


def test_an_ignored_end_gives_the_exact_limit() -> None:
    plan = VOICE.plan([1], sampling(ignore_eos=True), 77, 0)
    assert (plan.tokens, plan.finish_reason) == (77, "length")


@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 9), st.integers())
def test_a_natural_length_keeps_its_bounds(limit: int, least: int, choice: int, seed: int) -> None:
    asked = sampling(min_tokens=min(least, limit), seed=seed)
    plan = VOICE.plan([1, 2], asked, limit, choice)
    assert max(1, asked.min_tokens) <= plan.tokens <= limit
    assert (plan.finish_reason == "length") == (plan.tokens == limit)
    assert plan == VOICE.plan([1, 2], asked, limit, choice)


def test_seed_prompt_and_choice_each_change_the_plan() -> None:
    plans = [
        VOICE.plan([1], sampling(), 9999, 0),
        VOICE.plan([2], sampling(), 9999, 0),
        VOICE.plan([1], sampling(seed=5), 9999, 0),
        VOICE.plan([1], sampling(), 9999, 1),
        Voice([11, 12, 13], [" a", " b", " c"], seed=2).plan([1], sampling(), 9999, 0),
    ]
    assert len({plan.tokens for plan in plans}) > 1
    assert len(set(plans)) == len(plans)


def test_the_events_of_an_answer_join_to_its_text() -> None:
    for ignore_eos in (True, False):
        plan = VOICE.plan([3], sampling(ignore_eos=ignore_eos), 50, 0)
        pieces = [json.loads(VOICE.encoded(plan, at)) for at in range(plan.tokens)]
        assert "".join(pieces) == VOICE.text(plan, plan.tokens)
        assert (pieces[-1] == "") == (plan.finish_reason == "stop")
        assert {VOICE.token_id(plan, at) for at in range(plan.tokens)} <= {11, 12, 13}
