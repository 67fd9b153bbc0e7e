import math

import pytest

from loadgen.curves import StratumCurves
from loadgen.sweep_charts import (
    GREY,
    between_rounds,
    by_stratum,
    comparison,
    distribution,
    over_time,
    ttft_parts,
)

MARGINS = {"superior": 0.1, "guard_latency": 0.1}
PRIMARY = {"ratio": 0.5, "low": 0.4, "high": 0.6, "superior": True}
RAIL = {"value": 0.9, "bound": 1.2, "limit": 1.1, "held": False}


def rail_row(unit, **rails):
    return {"cell_id": unit, "primaries": {"short_ttft_p95": PRIMARY}, "guardrails": rails}


def test_a_bar_reaches_both_bounds_of_a_primary_and_only_the_upper_of_a_guardrail():
    rows = [rail_row("C1", long_ttft_p95=RAIL)]
    names = {"short_ttft_p95": "short", "long_ttft_p95": "long"}
    primary, rail = comparison(rows, names, MARGINS)["data"]
    assert primary["x"] == [0.5]
    assert primary["error_x"]["array"] == [pytest.approx(0.1)]
    assert primary["error_x"]["arrayminus"] == [pytest.approx(0.1)]
    assert rail["error_x"]["array"] == [pytest.approx(0.3)]
    assert rail["error_x"]["arrayminus"] == [0]


def test_what_is_unbounded_has_no_dot_and_the_next_cell_keeps_its_place():
    unbounded = {
        "cell_id": "C1",
        "primaries": {"short_ttft_p95": {"unbounded": True}},
        "guardrails": {},
    }
    (trace,) = comparison([unbounded, rail_row("C2")], {"short_ttft_p95": "short"}, MARGINS)["data"]
    assert trace["y"] == [1]


def test_the_lines_are_the_gain_that_counts_equality_and_the_loss_that_is_barred():
    shapes = comparison([rail_row("C1")], {"short_ttft_p95": "s"}, MARGINS)["layout"]["shapes"]
    assert [s["x0"] for s in shapes] == [0.9, 1.0, 1.1]


def test_bounds_between_rounds_are_students():
    low, high = between_rounds([1.0, 2.0, 3.0], 0.05)
    assert (low + high) / 2 == 2.0
    assert high - 2.0 == pytest.approx(2.91998558 / math.sqrt(3))
    assert between_rounds([1.0], 0.05) is None


def stratum(unit, mix="80-20", p95=None, **more):
    found = {"value": 1.0} if p95 is None else p95
    return {
        "cell_id": unit,
        "mix": mix,
        "rate": "near",
        "mean": 0.9,
        "low": 0.8,
        "high": 1.1,
        "goodput_per_s": 5.0,
        "goodput_by_round": [4.0, 6.0],
        "ttft_s": {"offered": {"p95": found}},
        "per_run_p95": {"ttft_s": [0.8, None, 1.3]},
        **more,
    }


def test_units_stand_beside_each_other_in_every_stratum_the_baseline_in_grey():
    rows = [stratum("B0"), stratum("C1"), stratum("C1", "50-50")]
    base, other = by_stratum(rows, "ttft_s", ["B0", "C1"], 0.05, 2.0)["data"]
    assert base["marker"]["color"] == GREY != other["marker"]["color"]
    assert base["x"][0] < 0 < other["x"][0] < other["x"][1]
    assert other["error_y"]["array"] == [pytest.approx(0.3)] * 2


def test_a_p95_that_is_never_reached_has_no_dot():
    rows = [stratum("B0", p95={"value": None, "failed": 3}), stratum("C1")]
    base, other = by_stratum(rows, "ttft_s", ["B0", "C1"], 0.05, 2.0)["data"]
    assert (base["x"], len(other["x"])) == ([], 1)


def test_an_attainment_never_leaves_its_scale():
    (trace,) = by_stratum([stratum("B0")], "attainment", ["B0"], 0.05, 0.95)["data"]
    assert trace["y"][0] + trace["error_y"]["array"][0] == pytest.approx(1.0)


def curves(offered, accepted):
    def told(curve):
        return {"short": {"ttft_s": curve}}

    seconds = {"age": {"short": {2: 1.0, 0: 3.0}, "long": {0: 1.0}}}
    return {("B0", "80-20", "near"): StratumCurves(told(offered), told(accepted), seconds)}


def test_accepted_requests_alone_are_drawn_only_where_they_differ():
    place, told = ("short", "80-20", "near"), {"units": ["B0"], "limit_s": 2.0}
    whole = distribution(curves(([1.0], [1.0]), ([1.0], [1.0])), place, "ttft_s", told)
    failed = distribution(curves(([1.0], [0.9]), ([1.0], [1.0])), place, "ttft_s", told)
    assert [t["name"] for t in whole["data"]] == ["B0"]
    assert [t["name"] for t in failed["data"]] == ["B0", "B0, accepted alone"]
    assert failed["data"][1]["line"]["dash"] == "dot"


def test_seconds_are_in_order_and_a_class_has_its_own_dash():
    found = over_time(curves(([], []), ([], [])), ["B0"], ("80-20", "near"), ("age", "seconds"))
    short, long = found["data"]
    assert (short["name"], short["x"], short["y"]) == ("B0: short", [0, 2], [3.0, 1.0])
    assert short["line"]["dash"] != long["line"]["dash"]


def test_a_gauge_that_nobody_looked_at_has_no_figure():
    none = curves(([], []), ([], []))
    assert over_time(none, ["B0"], ("80-20", "near"), ("other", "s")) is None
    assert over_time(none, ["B0"], ("other", "near"), ("age", "s")) is None


def test_parts_are_stacked_in_the_order_of_the_way():
    parts = {"mean": {"client_s": 0.1, "rest_s": 0.5}}
    rows = [{"cell_id": "C1", "ttft_parts": parts}, {"cell_id": "B0", "ttft_parts": parts}]
    found = ttft_parts(rows, ["B0", "C1", "C2"], "mean")
    assert [t["y"] for t in found["data"]] == [[0.1, 0.1], [0.5, 0.5]]
    assert found["data"][0]["x"] == ["B0", "C1"]
    assert found["layout"]["barmode"] == "stack"
    assert ttft_parts([{"cell_id": "B0"}], ["B0"], "mean") is None
