import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.record import (
    BenchError,
    Outcome,
    RequestRecord,
    RunConfig,
    canonical,
    decode_requests,
    encode_requests,
    nine_digits,
)

PLANNED = {
    "seq": 3,
    "size_class": "short",
    "phase": "observed",
    "planned_us": 10,
    "prompt_tokens_planned": 512,
    "completion_tokens_planned": 128,
    "prompt_sha256": "ab",
}
THIRTEEN = {
    "run_id",
    "cell_id",
    "repeat",
    "trace_sha256",
    "corpus_sha256",
    "image_digest",
    "model_revision",
    "tokenizer_revision",
    "hardware_id",
    "effective_args",
    "warmup_seconds",
    "observation_seconds",
    "drain_deadline_seconds",
}


def test_a_field_that_was_not_measured_is_absent_and_a_measured_zero_is_kept():
    record = RequestRecord(**PLANNED, outcome=Outcome.OK, connect_wait_us=0)
    row = orjson.loads(encode_requests({}, [record]).splitlines()[1])
    assert row["connect_wait_us"] == 0
    assert "first_event_us" not in row
    assert None not in row.values()


def test_records_survive_their_encoding():
    records = [
        RequestRecord(**PLANNED, outcome=Outcome.OK, event_us=(1, 5, 9), max_stall_us=4),
        RequestRecord(**PLANNED, outcome=Outcome.EXPIRED, outcome_code="queue_expired", status=429),
    ]
    header, decoded = decode_requests(encode_requests({"run_id": "r"}, records), "requests.jsonl")
    assert decoded == records
    assert header == {"kind": "requests", "run_id": "r"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [(b"{", "not valid JSON"), (b'{"outcome":"fine"}', "fine"), (b'{"outcome":"ok"}', "missing")],
)
def test_a_bad_line_is_named_by_file_and_number(line, reason):
    with pytest.raises(BenchError, match=f"x.jsonl line 2.*{reason}"):
        decode_requests(canonical({"kind": "requests"}) + line, "x.jsonl")


@pytest.mark.parametrize("data", [b"", b"[]\n", b'{"kind":"samples"}\n'])
def test_a_file_without_the_header_of_requests_is_refused(data):
    with pytest.raises(BenchError, match="not the header"):
        decode_requests(data, "x.jsonl")


def test_all_thirteen_configuration_fields_are_always_present():
    config = RunConfig(
        **dict.fromkeys(THIRTEEN - {"effective_args"}, 0), effective_args={}, details={"way": "a"}
    )
    assert set(config.as_json()) == {*THIRTEEN, "way"}


def test_details_cannot_overwrite_a_configuration_field():
    fields = {**dict.fromkeys(THIRTEEN, 0), "run_id": "own"}
    assert RunConfig(**fields, details={"run_id": "other"}).as_json()["run_id"] == "own"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_to_nine_digits_is_stable(value):
    once = nine_digits(value)
    assert nine_digits(once) == once
    assert once == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_an_unbounded_float_is_refused_rather_than_written(value):
    with pytest.raises(BenchError, match="null"):
        canonical({"a": [value]})


def test_canonical_bytes_do_not_depend_on_the_order_of_keys():
    assert canonical({"b": 1, "a": (2, 0.1 + 0.2)}) == canonical({"a": [2, 0.3], "b": 1})
