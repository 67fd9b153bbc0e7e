"""Embeddings, scores, ranks and classes over real sockets."""

import base64
import struct
from typing import Any

import httpx
import pytest

from loadgen.engine.launch import EngineProcess
from loadgen.engine.textmodel import TextModel
from loadgen.engine.vectors import EMBEDDING_SIZE
from tests.loadgen.engine.conftest import Start
from tests.loadgen.engine.surfaces.conftest import Post
from tests.loadgen.engine.test_server import metric

EMBED = "/v1/embeddings"


def test_each_input_has_a_vector_and_all_are_counted(post: Post, text: TextModel) -> None:
    answer = post(EMBED, {"input": ["One two three", "four"]}).json()
    tokens = text.count_text("One two three") + text.count_text("four")
    assert [item["index"] for item in answer["data"]] == [0, 1]
    assert [len(item["embedding"]) for item in answer["data"]] == [EMBEDDING_SIZE] * 2
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == tokens
    assert answer["usage"]["completion_tokens"] == 0


def test_a_vector_depends_on_its_own_input_alone(post: Post) -> None:
    def vectors(given: Any) -> list[Any]:
        return [item["embedding"] for item in post(EMBED, {"input": given}).json()["data"]]

    alone, batch = vectors("One"), vectors(["Two", "One"])
    assert alone[0] == batch[1] != batch[0]


def test_base64_holds_the_same_floats_and_ids_are_taken_as_they_are(post: Post) -> None:
    body = {"input": [[5, 6, 7], [8]], "dimensions": 4}
    plain = post(EMBED, body).json()
    coded = post(EMBED, {**body, "encoding_format": "base64"}).json()
    assert plain["usage"]["prompt_tokens"] == 4
    for left, right in zip(plain["data"], coded["data"], strict=True):
        floats = struct.unpack("<4f", base64.b64decode(right["embedding"]))
        assert list(floats) == left["embedding"]


def test_dimensions_out_of_range_are_refused(post: Post) -> None:
    for dimensions in (0, EMBEDDING_SIZE + 1):
        answer = post(EMBED, {"input": "a", "dimensions": dimensions})
        assert answer.status_code == 400
        assert f"[1, {EMBEDDING_SIZE}]" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"input": "a", "model": "other"}, 404, "does not exist"),
        ({"input": []}, 400, "at least one prompt"),
        ({"input": [[]]}, 400, "cannot be empty"),
        ({"input": "word " * 17000}, 400, "maximum context length"),
        ({"input": "a", "truncate_prompt_tokens": 20000}, 400, "smaller truncation"),
        ({}, 400, "Field required"),
        ({"input": "a", "normalize": True}, 400, "removed"),
    ],
)
def test_what_cannot_be_embedded_is_refused(
    post: Post, body: dict[str, Any], status: int, words: str
) -> None:
    answer = post(EMBED, body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_truncation_keeps_the_beginning(post: Post, text: TextModel) -> None:
    ids = text.text_ids("One two three four five six")
    cut = post(EMBED, {"input": "One two three four five six", "truncate_prompt_tokens": 2})
    kept = post(EMBED, {"input": [ids[:2]]})
    assert cut.json()["data"] == kept.json()["data"]
    assert cut.json()["usage"]["prompt_tokens"] == 2


def test_a_chat_can_be_embedded_without_a_generation_prompt(post: Post, text: TextModel) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    answer = post("/pooling", chat).json()
    expected = text.count_chat({**chat, "add_generation_prompt": False})
    assert answer["usage"]["prompt_tokens"] == expected
    assert len(answer["data"][0]["data"]) == EMBEDDING_SIZE


def test_pooling_knows_its_tasks_only(post: Post) -> None:
    classes = post("/pooling", {"input": "a", "task": "classify"}).json()["data"][0]["data"]
    assert sum(classes) == pytest.approx(1.0)
    assert post("/pooling", {"input": "a", "task": "plugin"}).status_code == 400
    assert post("/pooling", {"input": "a", "dimensions": 2}).status_code == 400


def test_the_class_is_the_one_of_the_greatest_probability(post: Post) -> None:
    for item in post("/classify", {"input": [f"text {n}" for n in range(8)]}).json()["data"]:
        assert item["label"] == f"LABEL_{item['probs'].index(max(item['probs']))}"
        assert item["num_classes"] == 2


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_one_text_is_scored_against_many_under_any_names(
    post: Post, path: str, text: TextModel
) -> None:
    pairs = [("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
    answers = [post(path, {left: "a", right: ["b", "c"]}).json() for left, right in pairs]
    assert answers[0]["data"] == answers[1]["data"] == answers[2]["data"]
    assert len(answers[0]["data"]) == 2
    expected = sum(len(text.pair_ids("a", each)) for each in ("b", "c"))
    assert answers[0]["usage"]["prompt_tokens"] == expected


def test_scores_need_both_sides_and_sides_that_fit(post: Post) -> None:
    missing = post("/score", {"text_1": "a"})
    assert missing.status_code == 400
    assert "body.text_2" in missing.json()["error"]["message"]
    unequal = post("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})
    assert unequal.status_code == 400


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_ranks_are_sorted_and_cut(post: Post, path: str) -> None:
    body = {"query": "a", "documents": [f"text {n}" for n in range(6)]}
    whole, cut = post(path, body).json(), post(path, {**body, "top_n": 2}).json()
    scores = [result["relevance_score"] for result in whole["results"]]
    assert scores == sorted(scores, reverse=True)
    assert cut["results"] == whole["results"][:2]
    assert cut["usage"] == whole["usage"]
    for result in whole["results"]:
        assert result["document"]["text"] == f"text {result['index']}"


def test_the_engine_prefills_and_generates_nothing(start: Start) -> None:
    engine = start("--time-scale", "20")
    httpx.post(engine.url + EMBED, json={"input": [[1] * 100, [2] * 50]}, timeout=20.0)
    assert metric(engine, "vllm:prompt_tokens_total") == 150
    assert metric(engine, "vllm:generation_tokens_total") == 0
    assert metric(engine, "vllm:iteration_tokens_total_count") >= 1
    assert metric(engine, "vllm:iteration_tokens_total_sum") == 150
    assert metric(engine, "vllm:num_requests_running") == 0


def test_only_the_bodys_priority_counts(post: Post, shared: EngineProcess) -> None:
    post(EMBED, {"input": "a", "priority": 4}, x_vllm_priority="-9")
    assert httpx.get(f"{shared.url}/sim/state").json()["requests"][-1]["priority"] == 4


def test_native_admission_refuses_more_inputs_than_fit(start: Start) -> None:
    engine = start("--max-num-queued-reqs", "2", "--time-scale", "20")
    fits = httpx.post(engine.url + EMBED, json={"input": ["a", "b"]}, timeout=20.0)
    more = httpx.post(engine.url + EMBED, json={"input": ["a", "b", "c"]}, timeout=20.0)
    assert (fits.status_code, more.status_code) == (200, 503)
