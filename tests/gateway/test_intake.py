import pytest

from gateway.domain import MisuseError, Outcome, Refused
from gateway.intake import Intake


def refused_by(call, *arguments):
    with pytest.raises(Refused) as caught:
        call(*arguments)
    return caught.value.outcome


def test_a_request_beyond_the_count_is_refused_and_charges_nothing():
    intake = Intake(max_requests=2, max_bytes=10**9)
    held = [intake.enter("a"), intake.enter("b")]
    assert refused_by(intake.enter, "c") is Outcome.INGRESS_FULL
    assert intake.requests == 2
    for one in held:
        intake.leave(one)
    assert (intake.requests, intake.bytes) == (0, 0)
    intake.enter("c")


def test_a_body_is_charged_as_it_comes():
    intake = Intake(max_requests=10, max_bytes=1000)
    held = intake.enter("a")
    assert intake.bytes == 0
    intake.received(held, 600)
    assert intake.bytes == 600
    assert refused_by(intake.received, held, 401) is Outcome.INGRESS_FULL
    intake.received(held, 400)
    intake.leave(held)
    assert (intake.requests, intake.bytes) == (0, 0)


def test_one_caller_holds_no_more_than_its_share_of_requests_and_bytes():
    intake = Intake(max_requests=4, max_bytes=400, principal_share=0.5)
    held = [intake.enter("greedy"), intake.enter("greedy")]
    assert refused_by(intake.enter, "greedy") is Outcome.PRINCIPAL_LIMIT
    intake.received(held[0], 200)
    assert refused_by(intake.received, held[1], 1) is Outcome.PRINCIPAL_LIMIT
    modest = intake.enter("modest")
    intake.received(modest, 200)
    for one in (*held, modest):
        intake.leave(one)
    assert (intake.requests, intake.bytes) == (0, 0)
    intake.received(intake.enter("greedy"), 200)


def test_leaving_twice_is_a_fault_of_the_program():
    intake = Intake(max_requests=1, max_bytes=10)
    held = intake.enter("a")
    intake.leave(held)
    with pytest.raises(MisuseError):
        intake.leave(held)
