from loadgen.files import read_json
from loadgen.page import Cell
from loadgen.sweep_tables import (
    CELL_COLUMNS,
    GUARD_COLUMNS,
    LAG_COLUMNS,
    PREEMPTION_COLUMNS,
    STRATUM_COLUMNS,
    absences,
    cell_rows,
    checks,
    conclusion_lines,
    guard_rows,
    lag_rows,
    named_rows,
    preemption_rows,
    stratum_rows,
)
from tests.loadgen.made import Absent, analysis, better, plan


def text(value):
    return value.text if isinstance(value, Cell) else value


def result(folder):
    return read_json(folder / "analysis.json"), read_json(folder / "decision.json")


def row_of(rows, unit):
    return [text(v) for v in next(r for r in rows if text(r[0]) == unit)]


def test_every_row_fills_its_columns(sweep_once):
    found, decision = result(sweep_once)
    units = ["B0", "C1", "C2"]
    tables = (
        (STRATUM_COLUMNS, stratum_rows(found["strata"], units)),
        (CELL_COLUMNS, cell_rows(found, decision)),
        (GUARD_COLUMNS, guard_rows(found)),
        (LAG_COLUMNS, lag_rows(found, units)),
        (PREEMPTION_COLUMNS, preemption_rows(found)),
    )
    for columns, rows in tables:
        assert rows
        assert {len(row) for row in rows} == {len(columns)}


def test_refusals_stand_beside_what_was_accepted_and_are_no_other_failure(sweep_once):
    found, _ = result(sweep_once)
    own = [r for r in found["strata"] if r["size_class"] == "long" and r["mix"] == "80-20"]
    row = dict(zip(STRATUM_COLUMNS, row_of(stratum_rows(own, ["C2"]), "C2"), strict=True))
    assert (row["offered"], row["ok"], row["refused"], row["failed"]) == ("240", "216", "24", "0")
    assert row["accepted/offered"] == "90.0%"
    assert row["contract"] == "✗ fail"
    assert row["TTFT p95"].startswith("> ")
    assert row["TTFT p95 accepted"].endswith("ms")


def test_the_named_cell_is_marked_and_a_lost_guardrail_is_named(sweep_once):
    rows = cell_rows(*result(sweep_once))
    named, other = row_of(rows, "C1"), row_of(rows, "C2")
    assert named[2] == "★ named by the verdict"
    assert "superior" in named[3]
    assert "max_num_batched_tokens: 8192 → 2048" in named[5]
    assert "long attainment" in other[4]
    assert row_of(rows, "B0")[2] == "the baseline"


def test_what_was_not_measured_yet_is_no_lost_guardrail():
    found = analysis(made=plan(("B0", "C1"), rounds=1))
    row = row_of(cell_rows(found, {}), "C1")
    assert row[2:5] == ["not compared yet", "–", "not measured yet"]


def test_the_named_cell_stands_beside_the_baseline_in_seconds(sweep_once):
    found, decision = result(sweep_once)
    head, rows = named_rows(found, decision["named"])
    assert head[1:] == ("short p95 TTFT", "short p95 stall", "long p95 TTFT", "long p95 end to end")
    assert [row[0] for row in rows] == ["80-20 near", "50-50 near"]
    assert all(" → " in text for row in rows for text in row[1:])
    assert named_rows(found, "C9")[1][0][1:] == ("–",) * 4


def test_a_terminal_is_told_the_verdict_its_stamp_and_its_reasons(sweep_once):
    found, decision = result(sweep_once)
    assert conclusion_lines(found, decision)[1:][: len(decision["reasons"])] == decision["reasons"]
    assert conclusion_lines(found, {**decision, "verdict": "none"})[1] == (
        "There is no verdict for runs of this kind"
    )
    virtual = conclusion_lines({**found, "virtual": True}, {**decision, "synthetic": False})
    assert virtual[0].endswith(" [virtual time: no engine ran, not deployable]")


def test_points_and_per_cents_are_told_apart(sweep_once):
    found, _ = result(sweep_once)
    rows = {(r[0], r[1]): [text(v) for v in r] for r in guard_rows(found)}
    assert rows["C2", "long attainment"][2] == "-10.00 points"
    assert rows["C2", "long p95 TTFT"][2] == "unbounded or not measured"
    assert rows["C1", "short p95 stall"][4] == "+10.0%"


def test_everything_that_does_not_count_is_named_with_its_reason():
    made = plan(("B0", "C1"), omitted=[{"cell_id": "C9", "reason": "does not fit"}])
    absent = Absent([{"run_id": "r1-C1-80-20-near", "attempt": "1", "faults": ["late"]}], {})
    found = analysis(
        {"C1": better()},
        made,
        without=["r2-C1-80-20-near"],
        faulty=["r3-C1-80-20-near"],
        config={"effective_source": "unverified"},
        absent=absent,
    )
    said = absences(found)
    assert "missing: r2-C1-80-20-near" in said
    assert any(s.startswith("invalid: r3-C1-80-20-near: loop lag 99") for s in said)
    assert "invalid: r1-C1-80-20-near, attempt 1: late" in said
    assert "omitted: C9: does not fit" in said
    assert "effective values unverified: B0" in said


def test_checks_that_held_are_not_listed(sweep_once):
    found, _ = result(sweep_once)
    assert checks(found) == []
    found["runs"][0]["checks"] = ["prompt tokens differ from plan: 1 of 2"]
    (said,) = checks(found)
    assert said.startswith(found["runs"][0]["run_id"])
