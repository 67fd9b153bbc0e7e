import argparse
import io
import json

import pytest
from rich.console import Console

from loadgen import run_cli
from loadgen.cli import add_bench_parser, run_bench
from loadgen.engine.flags import read_step_model
from loadgen.files import read_json, write_json
from loadgen.identity import cost_path
from loadgen.staging import finished
from loadgen.sweep import Outcome
from loadgen.virtual_sweep import simulate_plan
from tests.loadgen.tiny import TINY


def bench(*args):
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    out = io.StringIO()
    code = run_bench(parser.parse_args(["bench", *map(str, args)]), Console(file=out, width=200))
    return code, out.getvalue()


@pytest.fixture
def swept(tmp_path, monkeypatch):
    """Runs are made in virtual time instead of measured; the rest of the chain is the real one."""
    calls = []

    async def conduct(folder, runs, time_scale, tell, *, rerun_faulty):
        calls.append((len(runs), time_scale))
        tell({"event": "start", "start": "01-r1-B0-1", "cell_id": "B0"})
        simulate_plan(folder, folder, read_step_model(cost_path()))
        return Outcome(sum(finished(folder, r["run_id"]) for r in runs), len(runs))

    monkeypatch.setattr(run_cli, "conduct_sweep", conduct)
    (tmp_path / "sweep.toml").write_text(TINY)
    return tmp_path, calls


def test_one_command_goes_from_a_sweep_file_to_verdict_and_report(swept):
    folder, calls = swept
    code, printed = bench("all", folder / "sweep.toml", "--out", folder / "out", "--time-scale", 3)
    assert calls == [(12, 3.0)]
    assert "finished: 12 of 12 runs are there" in printed
    assert "verdict: " in printed
    assert (folder / "out" / "report.html").is_file()
    verdict = read_json(folder / "out" / "decision.json")["verdict"]
    assert code == (1 if verdict == "invalid" else 0)


def test_asked_again_it_goes_on_with_the_plan_that_is_there(swept):
    folder, calls = swept
    args = ("all", folder / "sweep.toml", "--out", folder / "out")
    bench(*args)
    before = (folder / "out" / "plan.json").read_bytes()
    bench(*args)
    assert len(calls) == 2
    assert (folder / "out" / "plan.json").read_bytes() == before


def test_a_sweep_file_that_changed_since_is_refused_and_what_changed_is_named(swept, capsys):
    folder, calls = swept
    args = ("all", folder / "sweep.toml", "--out", folder / "out")
    bench(*args)
    (folder / "sweep.toml").write_text(TINY.replace("ttft_s = 1.0", "ttft_s = 0.9", 1))
    assert bench(*args)[0] == 2
    assert "sweep.toml: contract changed since" in capsys.readouterr().err
    assert len(calls) == 1


def test_with_json_standard_output_holds_events_only(swept, capsys):
    folder, _ = swept
    _, printed = bench("all", folder / "sweep.toml", "--out", folder / "out", "--json")
    events = [json.loads(line)["event"] for line in printed.splitlines()]
    assert events == ["start", "finished"]
    assert "verdict: " in capsys.readouterr().err


def test_runs_that_are_there_are_only_gone_on_from_when_asked(swept, capsys):
    folder, calls = swept
    bench("all", folder / "sweep.toml", "--out", folder / "out")
    assert bench("run", folder / "out")[0] == 2
    assert "12 runs are finished; add --resume to go on" in capsys.readouterr().err
    assert bench("run", folder / "out", "--resume")[0] == 0
    assert len(calls) == 2


def test_a_chosen_run_that_there_is_not_is_named(swept, capsys):
    folder, _ = swept
    bench("plan", folder / "sweep.toml", "--out", folder / "out")
    assert bench("run", folder / "out", "--run-id", "r9")[0] == 2
    assert "--run-id r9: not in" in capsys.readouterr().err


def test_a_sweep_is_not_pointed_at_a_server_from_the_command_line(swept, capsys):
    folder, _ = swept
    bench("plan", folder / "sweep.toml", "--out", folder / "out")
    assert bench("run", folder / "out", "--url", "http://127.0.0.1:1")[0] == 2
    assert 'launcher kind = "external"' in capsys.readouterr().err


def test_what_is_left_out_is_said_and_the_answer_is_no(swept, monkeypatch):
    folder, _ = swept

    async def conduct(found, runs, time_scale, tell, *, rerun_faulty):
        return Outcome(11, 12, ("C1: max_num_seqs is 9 at the engine, 8 in the plan",))

    monkeypatch.setattr(run_cli, "conduct_sweep", conduct)
    bench("plan", folder / "sweep.toml", "--out", folder / "out")
    code, printed = bench("run", folder / "out")
    assert code == 1
    assert "left out: C1: max_num_seqs is 9 at the engine" in printed


def test_a_launcher_setting_that_there_is_not_is_refused_before_anything_starts(tmp_path, capsys):
    (tmp_path / "sweep.toml").write_text(TINY)
    bench("plan", tmp_path / "sweep.toml", "--out", tmp_path / "out")
    plan = read_json(tmp_path / "out" / "plan.json")
    plan["launcher"] = {"kind": "vllm", "model": "m", "prot": 1}
    write_json(tmp_path / "out" / "plan.json", plan)
    assert bench("run", tmp_path / "out")[0] == 2
    assert "launcher.prot: unknown key" in capsys.readouterr().err
    assert not (tmp_path / "out" / "inputs.json").exists()


@pytest.mark.parametrize("scale", ["0", "-1", "1001", "x"])
def test_an_impossible_time_scale_is_wrong_usage(scale, capsys):
    with pytest.raises(SystemExit) as ended:
        bench("run", "somewhere", "--time-scale", scale)
    assert ended.value.code == 2
    assert "--time-scale" in capsys.readouterr().err
