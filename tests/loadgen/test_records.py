from loadgen.capture import Capture
from loadgen.record import Outcome
from loadgen.records import Axis, Seen, Task, records
from loadgen.trace import Arrival

T0 = 5_000_000_000
ARRIVAL = Arrival(0, "short", 1000, 512, 2, "ab")
EVENT = b'data: {"choices":[{"finish_reason":null}]}\n\n'
REST = (
    b'data: {"choices":[{"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":512,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)


def capture(**changes):
    fields = {
        "asked_ns": T0 + 1_100_000,
        "sent_ns": T0 + 1_300_000,
        "head_ns": T0 + 2_000_000,
        "end_ns": T0 + 9_000_000,
        "status": 200,
        "headers": {b"x-sluicegate-queue-ms": b"1.5"},
        "body": bytearray(EVENT + REST),
        "reads": [(T0 + 2_000_000, len(EVENT)), (T0 + 9_000_000, len(EVENT + REST))],
        "complete": True,
    }
    return Capture(0, **{**fields, **changes})


def one(found, ended=None, scale=1.0, **task):
    captures = {} if found is None else {0: found}
    return records([ARRIVAL], 0.0, Seen(captures, ended or {}), Axis(T0, scale), Task(**task))[0]


def test_a_record_holds_the_times_of_the_wire_in_microseconds_of_the_run():
    record = one(capture())
    assert record.outcome is Outcome.OK
    assert (record.planned_us, record.dispatched_us, record.connect_wait_us) == (1000, 1300, 200)
    assert (record.first_byte_us, record.first_event_us, record.last_byte_us) == (2000, 2000, 9000)
    assert record.event_us == (2000, 9000)
    assert record.max_stall_us == 7000
    assert record.prompt_tokens_reported == 512
    assert record.queue_ms == 1.5


def test_what_never_came_is_absent():
    record = one(capture(status=None, head_ns=None, end_ns=None, body=bytearray(), reads=[]))
    assert record.outcome is Outcome.ERROR
    absent = (record.first_byte_us, record.first_event_us, record.last_byte_us, record.event_us)
    assert absent == (None, None, None, None)
    assert record.response_bytes is None


def test_a_request_that_was_never_sent_is_counted_as_offered():
    record = one(None)
    assert record.outcome is Outcome.NOT_SENT
    assert record.dispatched_us is None


def test_what_the_client_ended_itself_keeps_what_it_had_seen():
    record = one(capture(complete=False), {0: Outcome.UNFINISHED})
    assert record.outcome is Outcome.UNFINISHED
    assert record.first_event_us == 2000


def test_a_queue_time_that_is_no_number_is_absent():
    assert one(capture(headers={b"x-sluicegate-queue-ms": b"soon"})).queue_ms is None


def test_a_run_faster_than_recorded_time_is_recorded_stretched():
    record = one(capture(), scale=3.0)
    assert (record.planned_us, record.dispatched_us, record.connect_wait_us) == (1000, 3900, 600)
    assert record.event_us == (6000, 27_000)
    assert record.max_stall_us == 21_000
    assert record.queue_ms == 4.5


def test_what_the_client_did_not_send_to_protect_itself_is_told_from_an_interrupt():
    assert one(None, {0: Outcome.NOT_SENT}).outcome_code == "client_cap"
    assert one(None).outcome_code is None


def test_a_length_that_was_not_forced_is_not_judged():
    longer = bytearray(EVENT + REST.replace(b'tokens":2', b'tokens":7'))
    reads = [(T0 + 2_000_000, len(longer))]
    assert one(capture(body=longer, reads=reads)).outcome_code == "completion_tokens"
    found = one(capture(body=longer, reads=reads), forced_length=False)
    assert (found.outcome, found.completion_tokens_reported) == (Outcome.OK, 7)


def test_a_prompts_validator_decides_over_an_otherwise_good_response():
    failed = one(capture(), validators={"ab": {"regex": "never"}})
    assert (failed.outcome, failed.outcome_code) == (Outcome.INVALID_RESPONSE, "validator_regex")
    assert one(capture(), validators={"ab": {"tokens": 2}}).outcome is Outcome.OK
    assert one(capture(), validators={"other": {"regex": "never"}}).outcome is Outcome.OK


def test_a_validator_never_renames_another_failure():
    found = one(capture(fault="connection_lost"), validators={"ab": {"regex": "never"}})
    assert found.outcome is Outcome.INTERRUPTED
