import argparse
import io
import re

import orjson
import pytest
from rich.console import Console

from loadgen.cli import add_bench_parser, run_bench
from loadgen.files import read_json
from loadgen.sweep_file import read_sweep
from tests.loadgen.sweeps import DEFAULT, write


def bench(*args):
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    out = io.StringIO()
    code = run_bench(parser.parse_args(["bench", *map(str, args)]), Console(file=out, width=200))
    return code, out.getvalue()


def test_a_sweep_is_planned_simulated_analysed_decided_and_verified(tmp_path):
    out = tmp_path / "out"
    code, printed = bench("plan", write(tmp_path), "--out", out)
    assert code == 0
    assert printed.splitlines()[0].startswith("12 runs on 6 engine starts: ")
    assert printed.splitlines()[0].endswith(" at time scale 1")
    assert f"{out}/plan.json: 12 runs" in printed
    code, printed = bench("simulate", out / "plan.json", "--out", tmp_path / "sim")
    assert code == 0
    assert "12 runs in virtual time" in printed
    assert bench("analyse", tmp_path / "sim")[0] == 0
    bench("decide", tmp_path / "sim")
    assert read_json(tmp_path / "sim" / "decision.json")["synthetic"] is True
    code, printed = bench("simulate", out, "--out", tmp_path / "sim", "--compare", tmp_path / "sim")
    assert code == 0
    assert "apart by 0.0% (median)" in printed


def test_what_to_expect_is_said_of_a_file_and_of_a_folder_alike(tmp_path):
    path, out = write(tmp_path), tmp_path / "out"
    code, printed = bench("plan", "--check", path, "--sweeps", 3)
    assert code == 0
    assert "expected verdict: " in printed
    assert "cells all alike: " in printed
    assert "C1 with stalls 20% shorter: " in printed
    assert not out.exists()
    bench("plan", path, "--out", out)
    told = [
        orjson.loads(bench("plan", "--check", at, "--sweeps", 0, "--json")[1]) for at in (path, out)
    ]
    assert told[0] == told[1]
    assert len(told[0]["loads"]) == 4


def test_rates_found_in_virtual_time_can_be_named_by_the_sweep(tmp_path):
    text = re.sub(r"\[rates\.[^\[]*", "", DEFAULT.read_text())
    (tmp_path / "bare.toml").write_text(text)
    rates = tmp_path / "rates.json"
    code, printed = bench("calibrate", tmp_path / "bare.toml", "--virtual", "--out", rates)
    assert code == 0
    assert "near " in printed
    (tmp_path / "named.toml").write_text(text.replace("# rates_file", "rates_file"))
    sweep = read_sweep(tmp_path / "named.toml")
    assert sweep.settings.rates["80-20"].near == read_json(rates)["rates"]["80-20"]["near"]
    assert sweep.rates_source["virtual"] is True


def test_the_ladder_is_printed_with_its_knee():
    code, printed = bench("capacity", DEFAULT, "--cell", "C1", "--mix", "50-50")
    assert code == 0
    assert "C1 on 50-50: " in printed
    assert "knee at " in printed


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("plan",), "name a sweep file"),
        (("plan", "SWEEP"), "--out DIR is missing"),
        (("plan", "--check"), "name a sweep file"),
        (("calibrate", "SWEEP", "--out", "x"), "give either --virtual or --url"),
        (("plan", "nowhere.toml", "--out", "x"), "nowhere.toml: cannot be read"),
    ],
)
def test_what_is_missing_is_said_in_one_line(tmp_path, capsys, args, reason):
    path = write(tmp_path)
    assert bench(*(path if a == "SWEEP" else a for a in args))[0] == 2
    assert reason in capsys.readouterr().err


def test_the_demo_s_plan_does_not_overwrite_another_corpus(tmp_path, capsys):
    (tmp_path / "corpus.jsonl").write_text("{}\n")
    assert bench("plan", "--demo", "--out", tmp_path)[0] == 2
    assert "choose an empty folder" in capsys.readouterr().err


def test_a_plan_of_another_kind_is_said_to_have_no_forecast_and_what_has_one(capsys):
    code, _ = bench("plan", "--check", DEFAULT.with_name("prefix_reuse.toml"))
    assert code != 0
    said = capsys.readouterr().err
    assert "prefix_reuse.toml: a prefix_reuse plan has no forecast" in said
    path = DEFAULT.with_name("prefix_reuse.toml")
    commands = said.rpartition("instead: ")[2].split(" && ")
    assert commands[0] == f"sluicegate bench plan {path} --out out/prefix_reuse"
    verbs = argparse.ArgumentParser()
    add_bench_parser(verbs.add_subparsers(dest="command"))
    assert [verbs.parse_args(command.split()[1:]).verb for command in commands] == [
        "plan",
        "simulate",
        "analyse",
        "decide",
    ]
