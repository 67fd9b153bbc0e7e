import csv
import io
import re

from loadgen.files import read_json
from loadgen.flat_rows import csv_bytes, request_row, run_rows, stratum_rows
from loadgen.record import Outcome
from tests.loadgen.test_vllm_result import request

UNITS = r"_(s|ms|requests|tokens|bytes|ratio|count|events|requests_per_s|tokens_per_ok_request)$"
LABELS = {
    "run_id", "name", "unit", "mix", "rate", "repeat", "size_class", "valid", "gate", "state",
    "seq", "phase", "outcome", "outcome_code", "http_status", "prompt_sha256",
    "output_tokens_per_ok_request",
}  # fmt: skip


def test_every_measured_column_names_its_unit(sweep_once):
    found = read_json(sweep_once / "analysis.json")
    for row in (run_rows(found)[0], stratum_rows(found)[0], request_row("r", request(0))):
        assert [k for k in row if k not in LABELS and not re.search(UNITS, k)] == []


def test_an_unbounded_quantile_is_empty_and_what_it_exceeds_stands_beside(sweep_once):
    rows = stratum_rows(read_json(sweep_once / "analysis.json"))
    own = next(r for r in rows if (r["unit"], r["size_class"]) == ("C2", "long"))
    assert own["ttft_offered_p95_s"] is None
    assert own["ttft_offered_p95_above_s"] > 0
    assert own["ttft_accepted_p95_s"] > 0
    assert own["rejected_requests"] == 24


def test_there_is_a_row_for_each_run_and_class(sweep_once, demo):
    assert len(run_rows(read_json(sweep_once / "analysis.json"))) == 18 * 2
    analysis = read_json(demo[0] / "analysis.json")
    assert len(run_rows(analysis)) == 7
    assert stratum_rows(analysis) == []


def test_a_failure_has_no_latency():
    row = request_row("r", request(0, Outcome.INTERRUPTED))
    assert (row["ttft_s"], row["e2e_s"], row["max_stall_s"]) == (None, None, None)
    assert request_row("r", request(0))["ttft_s"] == 0.2


def test_csv_is_read_back_as_it_was_and_a_text_is_no_formula():
    rows = [{"a": 'x,"y"\n', "b": 1.5, "c": None}, {"a": "=cmd()", "b": True, "c": "-2"}]
    read = list(csv.DictReader(io.StringIO(csv_bytes(rows).decode(), newline="")))
    assert read == [
        {"a": 'x,"y"\n', "b": "1.5", "c": ""},
        {"a": "'=cmd()", "b": "true", "c": "'-2"},
    ]
    assert csv_bytes([]) == b""
