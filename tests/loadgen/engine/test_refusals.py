"""Words of refusals."""

import pytest

from loadgen.engine.refusals import bad_request, not_found, refused, too_long


def test_a_refusal_of_a_value_names_it_in_the_message() -> None:
    error = refused("Too much.", "max_tokens", 7)
    assert (error.status, error.kind, error.param) == (400, "BadRequestError", "max_tokens")
    assert error.message == "Too much. (parameter=max_tokens, value=7)"


def test_plain_refusals_have_no_parameter() -> None:
    assert (bad_request("x").status, bad_request("x").param) == (400, None)
    assert (not_found("x").status, not_found("x", "model").param) == (404, "model")


@pytest.mark.parametrize(("tokens", "words"), [(11, "at least 11 input"), (12, "contains 12 in")])
def test_one_token_too_many_may_stand_for_more(tokens: int, words: str) -> None:
    assert words in too_long(tokens, 10).message
