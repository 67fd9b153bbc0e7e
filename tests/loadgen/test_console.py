import io

import pytest
from rich.console import Console

from loadgen.console import Progress, Stages, show_result
from loadgen.files import read_json
from loadgen.tables import COLUMNS

ROW = {
    "source": "client",
    "t_s": 6.0,
    "offered": {"short": 9, "long": 2},
    "done": {"short": 4},
    "refused": {"long": 1},
    "failed": {},
    "in_flight": {"short": 5, "long": 1},
    "dispatch_lag_ms": 0.4,
    "loop_lag_ms": 1.2,
}
GATEWAY = {"source": "gateway", "up": True, "oldest_age_s": {"short": 2.5}}


def shown(terminal, rows):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120)
    with Progress(console, "way 1 of 4", 30.0) as progress:
        for row in rows:
            progress.row(row)
    return out.getvalue()


def test_a_log_gets_a_plain_line_with_counts_lag_and_time_left():
    printed = shown(False, [GATEWAY, ROW])
    assert "way 1 of 4, at most 24 s left" in printed
    assert "offered long=2 short=9" in printed
    assert "client lag 0.4 ms" in printed


def test_a_log_gets_a_line_every_five_seconds_only():
    rows = [{**ROW, "t_s": float(n)} for n in range(1, 13)]
    assert len(shown(False, rows).splitlines()) == 2


def test_a_terminal_gets_a_table_per_class_with_the_oldest_age():
    printed = shown(True, [GATEWAY, ROW])
    assert "2.5 s" in printed
    assert "not measured" in printed


def test_a_narrow_terminal_gets_tables_in_which_nothing_is_cut(demo):
    out = io.StringIO()
    folder = demo[0]
    show_result(
        Console(file=out, width=80),
        read_json(folder / "analysis.json"),
        read_json(folder / "decision.json"),
    )
    for heading in ("requests", "latency", "unfinished", "goodput/s", "TTFT p95", "accepted"):
        assert heading in out.getvalue()
    assert "…" not in out.getvalue()


@pytest.mark.parametrize("width", [80, 120, 150])
def test_wide_figures_are_not_cut_either(demo, width):
    analysis = read_json(demo[0] / "analysis.json")
    unbounded = {"value": None, "failed": 123, "above_s": 14.99}
    for run in analysis["runs"]:
        run["valid"] = False
        for figures in run["classes"].values():
            for measure in ("ttft_s", "e2e_s", "max_stall_s"):
                for view in figures[measure].values():
                    view.update(p50=unbounded, p95=unbounded)
    out = io.StringIO()
    show_result(Console(file=out, width=width), analysis, read_json(demo[0] / "decision.json"))
    assert "…" not in out.getvalue()
    for word in (*COLUMNS, "INVALID", "isolated"):
        assert word in out.getvalue()


def test_the_result_has_table_changes_checks_and_verdict(demo):
    out = io.StringIO()
    folder = demo[0]
    show_result(
        Console(file=out, width=220),
        read_json(folder / "analysis.json"),
        read_json(folder / "decision.json"),
    )
    for said in ("TTFT p95", "change: ", "prompt tokens equal to plan", "verdict: ", "because"):
        assert said in out.getvalue()


def staged(terminal, steps):
    """What a stage of ten says whose steps are done at these moments."""
    out, moments = io.StringIO(), iter(steps)
    stages = Stages(Console(file=out, force_terminal=terminal), lambda: next(moments))
    for done in range(len(steps)):
        stages("playing", done, len(steps) - 1)
    return out.getvalue()


def test_on_a_terminal_a_stage_is_one_line_that_is_written_over_each_second():
    said = staged(True, [0.0, 0.5, 1.0, 1.9, 2.0])
    assert said.split("\r\x1b[K") == [
        "",
        *(f"playing: {n} of 4" for n in (0, 2)),
        "playing: 4 of 4\n",
    ]


def test_elsewhere_a_stage_says_a_line_every_five_seconds_and_at_both_ends():
    said = staged(False, [0.0, 4.0, 5.0, 6.0, 7.0])
    assert said.splitlines() == [f"playing: {n} of 4" for n in (0, 2, 4)]
