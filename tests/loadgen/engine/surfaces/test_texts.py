"""Encoding and decoding over real sockets."""

from loadgen.engine.textmodel import TextModel
from tests.loadgen.engine.surfaces.conftest import Post

MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Well,"}]


def test_decoding_gives_back_what_was_encoded_specials_included(post: Post) -> None:
    tokens = post("/tokenize", {"messages": MESSAGES}).json()["tokens"]
    text = post("/detokenize", {"tokens": tokens}).json()["prompt"]
    assert "<|user|>\nHello<|end|>" in text
    again = post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    assert again == tokens


def test_a_continued_message_stays_open(post: Post, text: TextModel) -> None:
    body = {"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": False}
    counted = post("/tokenize", body).json()
    assert post("/detokenize", {"tokens": counted["tokens"]}).json()["prompt"].endswith("Well,")
    answer = post("/v1/chat/completions", {**body, "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens"] == counted["count"] == text.count_chat(body)


def test_a_continued_message_can_have_no_generation_prompt(post: Post) -> None:
    both = {"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": True}
    assert "Cannot set both" in post("/tokenize", both).json()["error"]["message"]
    unsaid = {"messages": MESSAGES, "continue_final_message": True}
    assert "not compatible" in post("/tokenize", unsaid).json()["error"]["message"]


def test_ids_that_are_none_and_unknown_models_are_refused(post: Post) -> None:
    assert post("/detokenize", {"tokens": [-1]}).status_code == 400
    assert post("/detokenize", {}).status_code == 400
    assert post("/detokenize", {"tokens": [1], "model": "other"}).status_code == 404


def test_a_template_of_the_callers_own_is_refused(post: Post) -> None:
    for own in ({"chat_template": "x"}, {"chat_template_kwargs": {"chat_template": "x"}}):
        answer = post("/tokenize", {"messages": MESSAGES, **own})
        assert answer.status_code == 400
        assert "untrusted chat template" in answer.json()["error"]["message"]
