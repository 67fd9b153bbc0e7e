"""What a request is charged for the output it has not made yet."""

from dataclasses import replace

from tests.gateway.admission_story import LONG, SHORT, Gate


def kv(gate: Gate) -> int:
    return gate.core.engine_views()[0].kv_tokens


def test_a_request_without_max_tokens_is_charged_the_output_estimate_not_the_model_length() -> None:
    gate = Gate((replace(SHORT, output_estimate_tokens=100), LONG))
    gate.offer("a", max_tokens=None)
    assert kv(gate) == 512 + 100
    gate.offer("b", max_tokens=7)
    assert kv(gate) == 512 + 100 + 512 + 7
    gate.offer("c", max_tokens=10**6, slots=3)
    assert kv(gate) == 3 * 512 + 107 + 300


def test_the_estimate_becomes_the_p95_of_recent_answers() -> None:
    gate = Gate()
    for i in range(100):
        gate.offer(f"r{i}")
        gate.done(f"r{i}", output_tokens=i + 1)
    gate.offer("next")
    assert kv(gate) == 512 + 95


def test_an_answer_longer_than_charged_is_trued_up_and_given_back_whole() -> None:
    gate = Gate()
    gate.offer("a", max_tokens=10)
    lease = gate.leases["a"]
    gate.core.grow(lease, 5)
    assert kv(gate) == 522
    gate.core.grow(lease, 300)
    assert kv(gate) == 812
    gate.done("a")
    assert kv(gate) == 0
