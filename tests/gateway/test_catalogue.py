"""Which models a caller sees, by list and by name."""

from typing import Any

import orjson
import pytest

from gateway.catalogue import counted_answer, models_answer
from gateway.domain import Outcome, Principal, Refused
from gateway.schema import Model

MODELS = {
    "m": Model(
        tokenizer="t",
        chat_template="c",
        max_model_len=100,
        aliases=["also-m"],
        loras={"m-tuned": "engine-lora"},
    ),
    "org/other": Model(tokenizer="t", chat_template="c", max_model_len=200),
}


def who(*models: str) -> Principal:
    return Principal("k", "c", frozenset(models) if models else None)


def listed(principal: Principal) -> list[str]:
    body = orjson.loads(models_answer(MODELS, principal).body)
    return [row["id"] for row in body["data"]]


def one(principal: Principal, name: str) -> Any:
    return orjson.loads(models_answer(MODELS, principal, name).body)


def test_a_caller_sees_what_it_may_use_with_aliases_and_adapters() -> None:
    assert listed(who()) == ["m", "also-m", "m-tuned", "org/other"]
    assert listed(who("m")) == ["m", "also-m"]
    assert listed(who("m-tuned")) == ["m-tuned"]


def test_a_model_is_found_by_each_of_its_names() -> None:
    assert one(who(), "org/other")["max_model_len"] == 200
    assert one(who(), "m-tuned")["parent"] == "m"
    assert "parent" not in one(who(), "also-m")
    assert "engine-lora" not in models_answer(MODELS, who()).body.decode()


@pytest.mark.parametrize("name", ["", "none", "engine-lora", "org/other", "m-tuned"])
def test_a_name_that_leads_to_nothing_one_may_use_is_not_found(name: str) -> None:
    with pytest.raises(Refused) as refused:
        models_answer(MODELS, who("m"), name)
    assert refused.value.outcome is Outcome.NOT_FOUND


def test_a_count_is_answered_in_anthropics_form() -> None:
    body = orjson.loads(counted_answer(7).body)
    assert body == {"input_tokens": 7, "context_management": {"original_input_tokens": 7}}
