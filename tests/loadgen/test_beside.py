import re

import pytest

from loadgen.beside import arms_section, expected_section, isolation_section
from tests.loadgen.made import Behaviour, analysis, better, plan


def test_the_split_is_told_with_states_reasons_and_cost():
    topology = analysis(
        {"shared": Behaviour(missed={"short": 0.5})}, plan(("shared", "isolated"), "topology")
    )
    html = isolation_section(topology, ["2 replicas"]).html
    assert '<td class="fail" data-head="contract">fail</td>' in html
    assert '<td class="pass" data-head="contract">pass</td>' in html
    assert "short at 80-20 near: fail" in html
    assert "<li>2 replicas</li>" in html


def test_arms_are_compared_with_admission_off():
    arms = analysis({"enforce": better(short_stall=0.5)}, plan(("off", "enforce"), "arms"))
    html = arms_section(arms).html
    assert "the baseline" in html
    assert "short p95 stall: -5" in html


def test_what_was_expected_stands_beside_what_was_measured_and_how_far_apart():
    slower = Behaviour(ttft_s={"short": 0.8, "long": 0.6}, variation=0.0)
    told, found = (analysis({"B0": b}) for b in (Behaviour(variation=0.0), slower))
    html = expected_section(told, found).html
    assert re.search(r"<td>47\d ms → 94\d ms</td>", html)
    assert "TTFT p95: measured differs from expected by 0% in the median and 100% at most" in html
    assert "<td>80-20 near</td><td>+0% (+0% to +100%)</td>" in html


def test_a_stratum_that_was_not_foretold_is_left_out():
    told = analysis(made=plan(("B0", "C1")))
    html = expected_section(told, analysis()).html
    assert html.count("<tr>") == (1 + 2 * 2) + (1 + 2 * 2 * 2)


@pytest.mark.parametrize("failing", ["told", "found"])
def test_what_is_unbounded_has_no_ratio_but_is_shown(failing):
    broken = {"B0": Behaviour(failed={"short": 0.3, "long": 0.3})}
    told = analysis(broken if failing == "told" else None, plan(("B0",)))
    found = analysis(broken if failing == "found" else None, plan(("B0",)))
    html = expected_section(told, found).html
    assert "failed)" in html
    assert "TTFT p95: measured differs" not in html
