import pytest

from gateway.domain import MisuseError, Outcome, Refused
from gateway.intake import UNDECLARED_STEP_BYTES, Intake


def refused_by(call, *arguments):
    with pytest.raises(Refused) as caught:
        call(*arguments)
    return caught.value.outcome


def test_a_request_beyond_the_count_is_refused_and_charges_nothing():
    intake = Intake(max_requests=2, max_bytes=1000)
    held = [intake.enter(10), intake.enter(10)]
    assert refused_by(intake.enter, 10) is Outcome.INGRESS_FULL
    assert (intake.requests, intake.bytes) == (2, 20)
    for one in held:
        intake.leave(one)
    assert (intake.requests, intake.bytes) == (0, 0)


def test_a_declared_length_is_charged_before_the_body_comes():
    intake = Intake(max_requests=10, max_bytes=1000)
    intake.enter(900)
    assert refused_by(intake.enter, 101) is Outcome.INGRESS_FULL
    intake.enter(100)


def test_an_undeclared_length_is_charged_in_steps_as_it_comes():
    intake = Intake(max_requests=10, max_bytes=3 * UNDECLARED_STEP_BYTES)
    held = intake.enter(None)
    assert intake.bytes == UNDECLARED_STEP_BYTES
    intake.received(held, UNDECLARED_STEP_BYTES)
    assert intake.bytes == UNDECLARED_STEP_BYTES
    intake.received(held, 1)
    assert intake.bytes == 2 * UNDECLARED_STEP_BYTES
    assert refused_by(intake.received, held, 10 * UNDECLARED_STEP_BYTES) is Outcome.INGRESS_FULL
    intake.leave(held)
    assert (intake.requests, intake.bytes) == (0, 0)


def test_leaving_twice_is_a_fault_of_the_program():
    intake = Intake(max_requests=1, max_bytes=10)
    held = intake.enter(0)
    intake.leave(held)
    with pytest.raises(MisuseError):
        intake.leave(held)
