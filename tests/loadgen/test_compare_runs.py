import math

import pytest
from scipy import stats

from loadgen.compare_runs import compare_results, contract_differences
from loadgen.files import read_json
from tests.loadgen.made import Behaviour, analysis, better, plan


def made(behaviours=None, **more):
    return analysis(behaviours, **more), {"verdict": "retain"}


def rows(found, **wanted):
    return [r for r in found["rows"] if all(r[k] == v for k, v in wanted.items())]


def test_a_result_is_the_same_as_itself():
    one = made()
    found = compare_results(one, one, same_arrivals=True)
    assert found["same"]
    assert found["tested"] == len(found["rows"]) > 0
    assert found["differing"] == 0


def test_a_gain_is_found_where_it_is_and_nowhere_else():
    found = compare_results(made(), made({"C1": better(short_stall=0.5)}), same_arrivals=True)
    differing = [r for r in found["rows"] if r.get("differs")]
    assert {(r["cell_id"], r["size_class"], r["measure"]) for r in differing} == {
        ("C1", "short", "max_stall_p95_s")
    }
    assert all(r["low"] <= r["ratio"] == pytest.approx(0.5, rel=0.05) for r in differing)
    assert not found["same"]


def per_round(result, measure="ttft_s"):
    row = next(r for r in result[0]["strata"] if (r["cell_id"], r["size_class"]) == ("B0", "short"))
    return [math.log(v) for v in row["per_run_p95"][measure]]


@pytest.mark.parametrize("same", [True, False])
def test_the_p_is_that_of_scipys_t_test(same):
    one, other = made(), made({"B0": Behaviour(ttft_s={"short": 0.41, "long": 0.6})})
    own = rows(
        compare_results(one, other, same_arrivals=same),
        cell_id="B0", size_class="short", measure="ttft_p95_s", mix="80-20",
    )[0]  # fmt: skip
    a, b = per_round(one), per_round(other)
    if same:
        assert own["p"] == pytest.approx(stats.ttest_rel(b, a).pvalue)
        low, high = stats.ttest_rel(b, a).confidence_interval()
        assert (own["low"], own["high"]) == pytest.approx((math.exp(low), math.exp(high)))
    else:
        welch = stats.ttest_ind(b, a, equal_var=False)
        assert own["p"] >= welch.pvalue  # degrees of freedom are rounded down
        assert own["p"] == pytest.approx(2 * stats.t.sf(abs(welch.statistic), math.floor(welch.df)))


def test_an_unbounded_p95_is_told_and_not_tested():
    failing = made({"C1": Behaviour(failed={"long": 0.2})})
    found = compare_results(made(), failing, same_arrivals=True)
    (own, _) = rows(found, cell_id="C1", size_class="long", measure="ttft_p95_s")
    assert own["b"] is None
    assert "p" not in own
    assert any(r.get("differs") for r in rows(found, cell_id="C1", measure="attainment"))


def test_contracts_that_differ_are_named_by_their_limit():
    one, other = made(), made()
    other[0]["contract"]["short"]["ttft_s"] = 9.0
    del other[0]["contract"]["long"]
    said = contract_differences(one[0], other[0])
    assert said == ["long: only A has a contract", "short.ttft_s: 2.0 in A, 9.0 in B"]
    assert not compare_results(one, other, same_arrivals=True)["same"]


def test_what_only_one_of_them_holds_is_named():
    found = compare_results(made(), made(made=plan(("B0", "C1", "C2"))), same_arrivals=True)
    assert "only in A: C3 80-20 near short" in found["only_in_one"]
    assert not found["same"]


def test_another_verdict_is_a_difference():
    one = made()
    assert not compare_results(one, (one[0], {"verdict": "retune(C1)"}), same_arrivals=True)["same"]


def test_demonstrations_have_one_round_and_only_figures(demo):
    one = tuple(read_json(demo[0] / f"{n}.json") for n in ("analysis", "decision"))
    found = compare_results(one, one, same_arrivals=True)
    assert found["tested"] == 0
    assert rows(found, measure="goodput_per_s")[0]["a"] is not None
    assert found["same"]


def test_what_has_a_number_in_one_of_them_alone_is_not_called_the_same():
    failing = made({"B0": Behaviour(failed={"short": 0.12})})
    found = compare_results(failing, failing, same_arrivals=True)
    assert found["number_in_one"] == 0
    found = compare_results(made(), failing, same_arrivals=True)
    lopsided = rows(found, cell_id="B0", size_class="short", measure="ttft_p95_s")
    assert [(row["a"] is None, row["b"] is None, "p" in row) for row in lopsided] == [
        (False, True, False)
    ] * 2
    assert found["number_in_one"] >= 2
    assert not found["same"]
