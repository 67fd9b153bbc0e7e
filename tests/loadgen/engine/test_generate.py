"""The envelope of an answer; everything else about generation is tested over sockets."""

from loadgen.engine.bodies import read_chat, read_completion
from loadgen.engine.generate import new_reply

CHAT = read_chat({"messages": [], "model": "asked"})
PLAIN = read_completion({"prompt": "x"})


def test_the_id_tells_the_route_and_carries_the_callers_id() -> None:
    assert new_reply(CHAT, "m", "abc", 7.9, "mark").request_id == "chatcmpl-abc"
    assert new_reply(PLAIN, "m", "abc", 7.9, "mark").request_id == "cmpl-abc"


def test_without_a_callers_id_every_answer_has_its_own() -> None:
    first, second = (new_reply(PLAIN, "m", None, 7.9, "mark") for _ in range(2))
    assert first.request_id != second.request_id
    assert (first.created, first.model) == (7, "m")
