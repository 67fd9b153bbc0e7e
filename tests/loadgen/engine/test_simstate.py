"""The record of what arrived: names and priorities, never a prompt."""

from loadgen.engine.simstate import SeenRequests


def test_only_watched_headers_keep_their_values_and_no_body_value_is_kept() -> None:
    seen = SeenRequests()
    headers = {"authorization": "Bearer secret", "x-vllm-priority": "3"}
    seen.add("/v1/completions", headers, {"prompt": "secret", "priority": 4}, 3)
    (record,) = seen.as_list()
    assert "secret" not in str(record)
    assert record["headers"] == {"x-vllm-priority": "3"}
    assert record["header_names"] == ["authorization", "x-vllm-priority"]
    assert (record["priority"], record["body_priority"]) == (3, 4)
    assert record["body_keys"] == ["priority", "prompt"]


def test_the_oldest_are_forgotten_and_still_counted() -> None:
    seen = SeenRequests()
    for number in range(300):
        seen.add("/", {}, [], number)
    assert seen.total == 300
    assert [record["priority"] for record in seen.as_list()] == list(range(44, 300))
