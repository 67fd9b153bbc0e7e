import pytest

from gateway.classify import classify
from gateway.domain import Outcome, Refused

BOUNDS = (("short", 100), ("middle", 200), ("long", 300))


@pytest.mark.parametrize(
    ("tokens", "name"),
    [(0, "short"), (100, "short"), (101, "middle"), (200, "middle"), (201, "long"), (300, "long")],
)
def test_a_class_holds_prompts_up_to_and_including_its_bound(tokens: int, name: str) -> None:
    assert classify(tokens, tokens, BOUNDS, 1000) == name


def test_a_prompt_over_the_largest_class_is_refused() -> None:
    with pytest.raises(Refused, match="at most 300 are served") as refused:
        classify(301, 301, BOUNDS, 1000)
    assert refused.value.outcome is Outcome.PROMPT_TOO_LONG


def test_a_prompt_that_leaves_no_room_for_output_is_refused_as_the_engine_would() -> None:
    assert classify(249, 249, BOUNDS, 250) == "long"
    with pytest.raises(Refused, match="maximum context length is 250 tokens"):
        classify(250, 250, BOUNDS, 250)


def test_several_prompts_are_classed_by_their_sum_and_fit_one_by_one() -> None:
    assert classify(150, 75, BOUNDS, 100) == "middle"
    with pytest.raises(Refused, match="context length"):
        classify(150, 100, BOUNDS, 100)
