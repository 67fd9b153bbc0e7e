import io
import json

from rich.console import Console

from loadgen.sweep_view import JsonView, SweepView

ROW = {
    "event": "row",
    "source": "client",
    "t_s": 12.0,
    "offered": {"short": 20, "long": 5},
    "done": {"short": 18},
    "refused": {"long": 1},
    "failed": {},
    "in_flight": {"long": 4},
    "dispatch_lag_ms": 0.4,
    "loop_lag_ms": 1.0,
}
RUN = {
    "event": "run",
    "run_id": "r1-C3-80-20-near",
    "number": 7,
    "of": 126,
    "attempt": 1,
    "limit_s": 60.0,
    "time_scale": 2.0,
    "left_s": 4000.0,
}
END = {"event": "run-end", "run_id": "r1-C3-80-20-near", "attempt": 1, "faults": []}


def shown(*events, terminal=False):
    out = io.StringIO()
    view = SweepView(Console(file=out, width=160, force_terminal=terminal))
    with view:
        for event in events:
            view.tell(event)
    return out.getvalue()


def test_a_log_has_run_k_of_n_the_time_left_counters_and_lag():
    text = shown(RUN, ROW, END)
    assert "run 7 of 126: r1-C3-80-20-near (whole sweep: 1 h 07 min left)" in text
    assert "offered long=5 short=20" in text
    assert "at most 24 s left" in text, "48 recorded seconds are 24 real ones"
    assert "client lag 0.4 ms" in text
    assert "offered 25, done 18, refused 1, failed 0; valid" in text


def test_a_spoilt_attempt_says_why_and_its_rerun_says_which_it_is():
    text = shown(RUN, {**END, "faults": ["loop lag 40.0 ms"]}, {**RUN, "attempt": 2})
    assert "INVALID: loop lag 40.0 ms" in text
    assert "r1-C3-80-20-near, attempt 2" in text


def test_what_happens_between_runs_is_a_line_each():
    text = shown(
        {"event": "start", "start": "03-r1-C3-1", "cell_id": "C3"},
        {"event": "warm-up", "round": 1, "of": 6, "seconds": {"short": 0.671}},
        {"event": "start-failed", "start": "03-r1-C3", "reason": "no memory"},
        {"event": "engine-died", "start": "03-r1-C3-1", "left": 2},
        {"event": "incompatible", "cell_id": "C3", "reason": "another max_num_seqs"},
        {"event": "interrupted", "finished": 3, "of": 126},
    )
    for said in (
        "start 03-r1-C3-1",
        "warm-up 1 of at most 6: short 0.671 s",
        "03-r1-C3 failed: no memory",
        "an engine of 03-r1-C3-1 died; its record stands, 2 runs left",
        "cell C3 is left out: another max_num_seqs",
        "interrupted: 3 of 126 runs are there",
    ):
        assert said in text


def test_a_terminal_has_the_table_of_the_run_that_goes_on():
    assert "oldest waiting" in shown(RUN, ROW, END, terminal=True)


def test_events_are_json_lines():
    out = io.StringIO()
    view = JsonView(Console(file=out))
    with view:
        for event in (RUN, ROW, END):
            view.tell(event)
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [RUN, ROW, END]
