"""Prompts are summed as the engine counts them: cut where it cuts, with what they share."""

from functools import cache

import pytest

from gateway.counting import count_prompts
from gateway.prompt import Countable
from gateway.tokenizer import Counter
from tests.gateway.minimal import tokenizer_path

TEXTS = ("one two three four five", "six", "")


@cache
def counter() -> Counter:
    return Counter(tokenizer_path())


def tokens(text: str) -> int:
    return counter().count(text, add_special_tokens=False).tokens


def asked(*texts: str, **more: object) -> Countable:
    return Countable(texts, add_special_tokens=False, **more)  # type: ignore[arg-type]


def test_prompts_are_summed_and_the_largest_is_known() -> None:
    found = count_prompts(counter(), asked(*TEXTS, given_tokens=(4, 2)), None, 1000)
    assert found.tokens == sum(map(tokens, TEXTS)) + 6
    assert found.largest == max(tokens(TEXTS[0]), 4)


@pytest.mark.parametrize("cap", [1, 2, 5, 50])
def test_no_prompt_counts_for_more_than_the_engine_keeps(cap: int) -> None:
    found = count_prompts(counter(), asked(*TEXTS, given_tokens=(4, 2)), cap, 1000)
    sizes = [*map(tokens, TEXTS), 4, 2]
    assert found.tokens == sum(min(size, cap) for size in sizes)
    assert found.largest == min(cap, max(sizes))


def test_a_prompt_that_is_cut_counts_exactly_even_where_counting_stops_early() -> None:
    long = "word " * 20_000
    found = count_prompts(counter(), asked(long), 300, 100)
    assert (found.tokens, found.largest) == (300, 300)


def test_what_stands_before_each_text_counts_once_for_each() -> None:
    found = count_prompts(counter(), asked(*TEXTS, shared="a query"), None, 1000)
    assert found.tokens == sum(map(tokens, TEXTS)) + len(TEXTS) * tokens("a query")
    assert found.largest == tokens(TEXTS[0]) + tokens("a query")


def test_media_are_added_to_the_sum_and_to_the_largest() -> None:
    found = count_prompts(counter(), asked("six", media_tokens=500), None, 1000)
    assert (found.tokens, found.largest) == (500 + tokens("six"), 500 + tokens("six"))


def test_counting_stops_once_nothing_larger_is_served() -> None:
    found = count_prompts(counter(), asked(*["word " * 50] * 100), None, 120)
    assert 120 < found.tokens < 300
    assert not found.exact
