import pytest

from loadgen.files import read_json
from loadgen.tables import (
    COLUMNS,
    cell,
    change_lines,
    pool_lines,
    prediction_lines,
    rows,
    verdict_line,
)


@pytest.mark.parametrize(
    ("found", "worded"),
    [
        ({"value": 0.1234}, "123 ms"),
        ({"value": 2.345}, "2.35 s"),
        ({"too_few": True, "n": 12, "needs": 59}, "n/a (n = 12)"),
        ({"value": None, "failed": 7, "above_s": 3.2}, "> 3.20 s (7 failed)"),
        ({"value": None, "failed": 7}, "(7 failed)"),
    ],
)
def test_a_quantile_is_worded_by_what_it_is(found, worded):
    assert cell(found, 12) == worded


def test_there_is_one_row_per_way_and_class_with_shorts_first(demo):
    analysis = read_json(demo[0] / "analysis.json")
    table = rows(analysis)
    assert [row[1] for row in table] == ["short", "long"] * 3 + ["short"]
    assert {len(row) for row in table} == {len(COLUMNS)}


def test_an_invalid_way_is_marked_where_it_stands(demo):
    analysis = read_json(demo[0] / "analysis.json")
    analysis["runs"][1]["valid"] = False
    marked = {row[0] for row in rows(analysis) if row[0].startswith("INVALID")}
    assert marked == {"INVALID admission, shared"}


def test_the_pools_say_how_much_work_they_are_offered(demo):
    lines = pool_lines(read_json(demo[0] / "analysis.json"))
    assert len(lines) == 5
    assert any("long pool (1 engine) is offered 10" in line for line in lines)


def test_each_way_is_compared_with_the_first_per_class(demo):
    lines = change_lines(read_json(demo[0] / "analysis.json"))
    assert len(lines) == 5
    assert all("goodput" in line for line in lines)


def test_predictions_stand_beside_the_measured_shorts_first_where_both_are_there(demo):
    analysis = read_json(demo[0] / "analysis.json")
    told = {"short": {"ttft_p95_s": 0.5}, "long": {"ttft_p95_s": None}}
    analysis["predictions"] = {"admission-isolated": told, "control-shorts-only": told}
    isolated_short, isolated_long, alone = prediction_lines(analysis)
    assert "admission, isolated, short: predicted TTFT p95 500 ms, measured " in isolated_short
    assert "admission, isolated, long: predicted TTFT p95 unbounded, measured " in isolated_long
    assert "control: shorts alone, short" in alone
    assert "too busy" not in isolated_long


def test_what_takes_far_longer_than_predicted_blames_the_machine(demo):
    analysis = read_json(demo[0] / "analysis.json")
    told = {"short": {"ttft_p95_s": 0.000001}}
    analysis["predictions"] = {"control-shorts-only": told}
    (line,) = prediction_lines(analysis)
    assert line.endswith(": this machine was too busy to carry engines and gateway")


def test_synthetic_evidence_is_stamped_in_the_verdict():
    assert "synthetic" in verdict_line({"verdict": "retain", "synthetic": True})
    assert "synthetic" not in verdict_line({"verdict": "retain", "synthetic": False})
