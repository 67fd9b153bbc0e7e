import argparse
import io
import shutil

import orjson
import pytest
from rich.console import Console

from loadgen.cli import add_bench_parser, run_bench
from loadgen.engine.flags import add_arguments, settings_from
from loadgen.files import read_json
from tests.loadgen.standin import StandIn  # noqa: F401 - shows what answers below


def bench(*args):
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    out = io.StringIO()
    code = run_bench(parser.parse_args(["bench", *map(str, args)]), Console(file=out, width=200))
    return code, out.getvalue()


def test_corpus_and_trace_chain_by_files(tmp_path):
    shape = "--class"
    code, _ = bench("corpus", "--out", tmp_path, shape, "short=64:8:20", shape, "long=256:8:6")
    assert code == 0
    args = ("--rate", 10, "--mix", "short=0.8,long=0.2", "--window", 2, "--ramp", 0, "--seed", 1)
    code, printed = bench("trace", tmp_path, *args)
    assert code == 0
    assert "20 arrivals" in printed
    assert read_json(tmp_path / "trace-mixed.manifest.json")["observed"] == {"short": 16, "long": 4}


def test_analyse_decide_and_report_can_be_run_again_alone(demo, tmp_path):
    folder = shutil.copytree(demo[0], tmp_path / "copy")
    before = read_json(folder / "decision.json")
    for name in ("analysis.json", "decision.json", "report.html"):
        (folder / name).unlink()
    assert bench("analyse", folder)[0] == 0
    code, printed = bench("decide", folder, "--json")
    assert orjson.loads(printed) == before
    assert code == (1 if before["verdict"] == "invalid" else 0)
    assert bench("report", folder)[0] == 0
    assert bench("verify", folder) == (0, "identical\n")


def test_verify_says_no_by_its_exit_status(demo, tmp_path):
    folder = shutil.copytree(demo[0], tmp_path / "copy")
    (folder / "decision.json").write_bytes(b"{}")
    code, printed = bench("verify", folder)
    assert code == 1
    assert "decision.verdict" in printed


def test_resuming_a_finished_plan_runs_nothing(demo):
    stamps = [p.stat().st_mtime_ns for p in sorted(demo[0].rglob("samples.jsonl"))]
    assert bench("run", demo[0], "--resume")[0] == 0
    assert [p.stat().st_mtime_ns for p in sorted(demo[0].rglob("samples.jsonl"))] == stamps


def test_a_run_that_the_plan_lacks_is_named_with_those_it_has(demo, capsys):
    assert bench("run", demo[0], "--resume", "--run-id", "r2-nothing")[0] == 2
    said = capsys.readouterr().err
    assert "--run-id r2-nothing: not in" in said
    assert "r1-admission-shared" in said


def test_a_replay_that_cannot_start_is_said_on_one_line(demo, tmp_path, capsys):
    folder = shutil.copytree(demo[0], tmp_path / "copy")
    (folder / "trace-mixed.jsonl").unlink()
    url = "http://127.0.0.1:1"
    assert bench("run", folder, "--run-id", "r1-admission-shared", "--url", url)[0] == 2
    said = capsys.readouterr().err
    assert "trace-mixed.jsonl: cannot be read" in said
    assert len(said.splitlines()) == 1


def test_an_external_server_is_asked_for_the_simulators_model_unless_told_otherwise(demo):
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    args = parser.parse_args(["bench", "run", str(demo[0])])
    engine = argparse.ArgumentParser()
    add_arguments(engine)
    assert args.model == settings_from(engine.parse_args([])).served_model_name


def test_a_missing_folder_is_named_on_one_line(tmp_path, capsys):
    assert bench("analyse", tmp_path / "none")[0] == 2
    assert "plan.json: is not there yet; run: sluicegate bench plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        ("corpus", "--out", "x", "--class", "short=64"),
        ("trace", "x", "--rate", "1", "--seed", "1", "--mix", "short"),
        ("nothing",),
    ],
)
def test_bad_usage_is_refused_by_the_parser(args, capsys):
    with pytest.raises(SystemExit) as raised:
        bench(*args)
    assert raised.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["corpus", "trace", "plan", "run", "analyse", "report", "verify"])
def test_every_verb_explains_itself_with_a_real_example(verb, capsys):
    with pytest.raises(SystemExit):
        bench(verb, "--help")
    assert f"sluicegate bench {verb} " in capsys.readouterr().out
