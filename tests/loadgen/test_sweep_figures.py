import pytest

from loadgen.curves import join_curves, run_curves
from loadgen.files import read_json
from loadgen.report_file import read_run
from loadgen.sweep_figures import Drawn, class_figures, comparison_figure, time_figure


@pytest.fixture
def drawn(sweep_once):
    analysis, plan = read_json(sweep_once / "analysis.json"), read_json(sweep_once / "plan.json")
    runs = (run_curves(r, *read_run(sweep_once, r["run_id"])) for r in analysis["runs"])
    return Drawn.of(analysis, plan, join_curves(runs))


def test_every_choice_that_is_offered_has_a_figure(drawn):
    choosers = [*class_figures(drawn, "short", drawn.rows("short")), *time_figure(drawn)]
    for chooser in choosers:
        names = [""] if not chooser.axes else None
        if names is None:
            names = list(chooser.axes[0][1])
            for _, options in chooser.axes[1:]:
                names = [f"{name}|{option}" for name in names for option in options]
        assert set(names) <= set(chooser.figures), chooser.title


def test_the_start_is_among_the_choices(drawn):
    for chooser in [*class_figures(drawn, "long", drawn.rows("long")), *time_figure(drawn)]:
        for start, (_, options) in zip(chooser.start, chooser.axes, strict=False):
            assert start in options


def test_a_class_that_was_never_offered_has_no_figure(drawn):
    assert class_figures(drawn, "short", []) == []


def test_without_candidates_there_is_no_comparison(drawn):
    alone = {**drawn.analysis, "comparisons": []}
    assert comparison_figure(Drawn(alone, drawn.units, drawn.strata, {})) == []
    assert time_figure(Drawn(alone, drawn.units, drawn.strata, {})) == []


def test_the_baseline_comes_first_and_strata_as_planned(drawn):
    plan = {"strata": [{"mix": "50-50", "rate": "near"}, {"mix": "80-20", "rate": "near"}]}
    cells = list(reversed(drawn.analysis["cells"]))
    made = Drawn.of({**drawn.analysis, "cells": cells}, plan, {})
    assert made.units[0] == "B0"
    assert made.strata == [("50-50", "near"), ("80-20", "near")]
    assert made.busiest("short") == ("80-20", "near")
