"""What generation keeps of a long prompt, and how a silent stream is kept alive."""

import httpx

from loadgen.engine.textmodel import TextModel
from tests.loadgen.engine.conftest import Start
from tests.loadgen.engine.surfaces.conftest import Post

PLAIN = "/v1/completions"


def test_truncation_keeps_the_end_of_a_prompt(post: Post, text: TextModel) -> None:
    prompt = "One two three four five six"
    ids = text.text_ids(prompt)
    cut = post(PLAIN, {"prompt": prompt, "truncate_prompt_tokens": 2}).json()
    kept = post(PLAIN, {"prompt": ids[-2:]}).json()
    assert cut["usage"]["prompt_tokens"] == 2
    assert cut["choices"] == kept["choices"]
    right = {"prompt": prompt, "truncate_prompt_tokens": 2, "truncation_side": "right"}
    assert (
        post(PLAIN, right).json()["choices"] == (post(PLAIN, {"prompt": ids[:2]}).json()["choices"])
    )


def test_truncation_to_what_fits_leaves_room_for_one_token(post: Post) -> None:
    body = {"prompt": [7] * 20000, "truncate_prompt_tokens": -1, "max_tokens": 5}
    usage = post(PLAIN, body).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (16383, 1)


def test_limits_that_no_prompt_could_meet_are_refused(post: Post) -> None:
    for body in ({"max_tokens": 16385}, {"truncate_prompt_tokens": 16385}):
        answer = post(PLAIN, {"prompt": "x", **body})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == next(iter(body))


def test_special_tokens_can_be_left_out(post: Post, text: TextModel) -> None:
    body = {"prompt": "Hello", "add_special_tokens": False}
    expected = text.count_text("Hello", add_special_tokens=False)
    assert post(PLAIN, body).json()["usage"]["prompt_tokens"] == expected


def test_a_silent_stream_is_kept_alive_by_comments_that_are_no_data(start: Start) -> None:
    engine = start("--sse-keep-alive-interval", "1", "--fault", "hang-scheduler")
    body = {"prompt": "x", "stream": True}
    with (
        httpx.Client(timeout=20.0) as client,
        client.stream("POST", engine.url + PLAIN, json=body) as answer,
    ):
        assert next(answer.iter_text()) == ": keep-alive\n\n"


def test_an_adapter_answers_under_its_own_name(start: Start) -> None:
    engine = start("--lora-modules", "legal=/adapters/legal", "--time-scale", "20")
    answer = httpx.post(engine.url + PLAIN, json={"prompt": "x", "model": "legal"}, timeout=20.0)
    assert answer.json()["model"] == "legal"
    cards = httpx.get(f"{engine.url}/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["simulated", "legal"]
    assert cards[1]["parent"] == "simulated"
    assert cards[1]["root"] == "/adapters/legal"
