import pytest

from loadgen.causes import findings
from loadgen.record import Outcome
from tests.loadgen.made import Behaviour, analysis, better, plan
from tests.loadgen.swept import ARGS, UNITS, samples

SHORT_ALONE = Behaviour(ttft_s={"short": 0.03, "long": 0.6}, stall_s={"short": 0.03, "long": 0.2})


def swept(behaviours=None, rows=None, strip=()):
    made = plan(UNITS)
    for cell in made["cells"]:
        cell["args"] = ARGS[cell["cell_id"]]
    found = analysis(behaviours, made, samples=samples("C2") if rows is None else rows)
    for key in strip:
        for row in found["explain"]["strata"]:
            row.pop(key, None)
    return found


def row(found, start):
    return next(f for f in findings(found) if f.observation.startswith(start))


def with_control(found, *, stall_s=0.03, ttft_s=0.03):
    """Add the short class alone, at the same rate."""
    told = found["explain"]["strata"]
    for base in [s for s in told if s["cell_id"] == "B0"]:
        short = {
            **base["classes"]["short"],
            "stall_p95": {"value": stall_s},
            "ttft_p95": {"value": ttft_s},
        }
        told.append({**base, "mix": "short", "classes": {"short": short}})
    return found


def test_stalls_are_seen_against_the_class_alone_with_both_numbers():
    found = row(with_control(swept({"C1": better(short_stall=0.5)})), "Running streams stall")
    assert found.seen == "seen"
    assert any("B0: short p95 stall 2" in n for n in found.numbers)
    assert any("short alone at near: 30 ms" in n for n in found.numbers)
    assert any(line.startswith("C1 (budget 2,048): stall ×0.") for line in found.action)
    assert any(
        line.startswith("C1: every guardrail of the long class held") for line in found.rejection
    )


def test_stalls_no_worse_than_alone_are_not_seen():
    found = row(with_control(swept(), stall_s=0.2), "Running streams stall")
    assert found.seen == "not seen"


def test_without_a_control_nothing_is_claimed():
    for start in ("Running streams stall", "New short prompts wait"):
        found = row(swept(), start)
        assert found.seen == "not measured"
        assert any("no control" in n for n in found.numbers)


def test_without_oldest_ages_there_is_no_fairness_claim():
    rows = [{"source": "client", "loop_lag_ms": 1.0, "cpu_share": 0.1, "t_s": 0.0}]
    found = row(swept(rows=rows), "New short prompts wait")
    assert any("no fairness claim" in line for line in found.check)


def test_the_oldest_age_that_was_recorded_is_told_with_its_class():
    found = row(swept(), "New short prompts wait")
    assert any("oldest wait in the gateway 1.00 s (long" in line for line in found.check)


def test_a_gateway_in_which_nobody_waited_is_not_blamed():
    rows = [
        {**row, "oldest_age_s": {"short": 0.0}} if row["source"] == "gateway" else row
        for row in samples("B0")
    ]
    found = row(swept(rows=rows), "New short prompts wait")
    assert "nobody waited in the gateway" in found.check
    assert "oldest without an answer 0.20 s (short, 80-20 near)" in found.check


def test_preemptions_are_told_by_cell_with_restarts_and_never_by_class():
    found = row(swept(), "Preemptions rise")
    assert found.seen == "seen"
    assert "C2 (16 sequences): 18 preemptions" in found.numbers  # 3 in each of 6 runs
    assert any("which class caused them is not known" in line for line in found.check)
    assert any(line.startswith("18 counter restarts") for line in found.check)


def test_preemptions_that_no_engine_exported_are_not_measured():
    found = row(swept(strip=["preemptions"]), "Preemptions rise")
    assert found.seen == "not measured"


def test_a_cell_that_serves_more_while_a_class_loses_is_named():
    worse = Behaviour(missed={"short": 0.4, "long": 0.0})
    lost = Behaviour(failed={"long": 0.2}, failure=Outcome.REJECTED)
    found = row(swept({"B0": worse, "C1": lost}), "Throughput rises")
    assert found.seen == "seen"
    assert any(n.startswith("C1 at 80-20 near") and "long attains" in n for n in found.numbers)
    assert any("C1: " in line and "long not answered validly" in line for line in found.check)


@pytest.mark.parametrize("outcome", [Outcome.UNFINISHED, Outcome.TIMEOUT, Outcome.EXPIRED])
def test_longs_that_never_end_are_counted_and_successes_do_not_hide_them(outcome):
    starved = Behaviour(failed={"long": 0.1}, failure=outcome)
    found = row(swept({"C1": starved}), "The long class never completes")
    assert found.seen == "seen"
    assert any(n.startswith("C1 at 80-20 near: 24 of 240") for n in found.numbers)
    assert any("of all offered > " in line for line in found.rejection)


def test_no_material_gain_is_seen_only_where_nothing_is_better():
    start = "The baseline and the candidates"
    assert row(swept(), start).seen == "seen"
    assert row(swept({"C1": better(short_stall=0.5)}), start).seen == "not seen"
