import re

import pytest

from loadgen.files import read_json
from loadgen.report import render_report


@pytest.fixture
def page(demo):
    folder = demo[0]
    analysis, decision = read_json(folder / "analysis.json"), read_json(folder / "decision.json")
    return render_report(analysis, decision, [("</script><b>", [], [])], "var Plotly;")


def test_the_verdict_comes_before_every_table(page):
    assert page.index("verdict: ") < page.index("<table")


def test_each_contract_names_what_makes_an_answer_valid(page):
    assert page.count("finish reason, usage and forced length</td>") == 2


def test_nothing_is_fetched(page):
    assert not re.search(r"<(script|img|iframe|source)[^>]+src=|<link|@import|url\(", page)


def test_a_label_cannot_break_out_of_the_figures(page):
    assert "</script><b>" not in page
    assert page.count("</script>") == 3


def test_the_page_says_how_to_reproduce_it_and_names_its_inputs(page, demo):
    assert "bench verify" in page
    assert read_json(demo[0] / "plan.json")["corpus_sha256"] in page or "plan_sha256" in page


def test_an_invalid_run_is_shown_with_its_reason(demo):
    folder = demo[0]
    analysis, decision = read_json(folder / "analysis.json"), read_json(folder / "decision.json")
    analysis["runs"][0]["faults"] = ["loop lag 99 <ms>"]
    page = render_report(analysis, decision, [], "")
    assert "loop lag 99 &lt;ms&gt;" in page


def test_an_attempt_that_was_run_again_stays_in_the_report(demo):
    found, decision = (read_json(demo[0] / f"{name}.json") for name in ("analysis", "decision"))
    told = {"run_id": found["runs"][0]["run_id"], "attempt": "1", "faults": ["loop lag 34 <ms>"]}
    page = render_report({**found, "attempts": [told]}, decision, [], "")
    said = "pass-through, shared, attempt 1, kept and run again: loop lag 34 &lt;ms&gt;"
    assert page.index("What was invalid") < page.index(said) < page.index("Checks")
