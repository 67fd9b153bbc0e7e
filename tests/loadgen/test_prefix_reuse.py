"""A plan of kind prefix_reuse from its file to the hit rates of its analysis, in virtual time."""

import json
import re
from collections import Counter

import pytest

from loadgen.corpus import body_of, load_corpus
from loadgen.decide import decide
from loadgen.engine.cost import StepCost
from loadgen.engine.textmodel import TextModel
from loadgen.files import read_bytes, read_json
from loadgen.freeze import freeze_sweep
from loadgen.record import BenchError, decode_requests
from loadgen.results import analyse_folder
from loadgen.reuse import table_rows
from loadgen.run_folder import trace_path
from loadgen.sessions import shared_tokens
from loadgen.sweep_file import read_sweep
from loadgen.trace import decode_trace, encode_trace
from loadgen.virtual_sweep import simulate_plan
from tests.loadgen.sweeps import ROOT, SMALL, write

COST = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8, source="test")
CELL = "args = { max_num_batched_tokens = 128, max_num_seqs = 16 }"
REUSE = """
[reuse.short]
sessions = 2
shared_tokens = 64
share = 0.5
[reuse.long]
sessions = 1
shared_tokens = 320
"""
SWAP = {
    "seed = 3": 'seed = 3\nkind = "prefix_reuse"',
    "prompt_tokens = 96": "prompt_tokens = 160",
    CELL: f"args = {{ enable_prefix_caching = true }}\n{REUSE}",
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    base = tmp_path_factory.mktemp("reuse")
    freeze_sweep(read_sweep(write(base, swap=SWAP)), base / "plan")
    return base / "plan"


@pytest.fixture(scope="module")
def analysis(planned):
    simulate_plan(planned, planned / "sim", COST)
    return analyse_folder(planned / "sim")


def test_every_prompt_has_its_exact_count_and_sessions_share_what_was_asked(planned):
    model, corpus = TextModel(), load_corpus(planned / "corpus.jsonl").by_class()
    assert read_json(planned / "corpus.manifest.json")["session_prefix_tokens"]["long"] >= 320
    for name, prompts in corpus.items():
        ids = {p.sha256: model.chat_ids(body_of(p.text)) for p in prompts}
        assert {len(own) for own in ids.values()} == {160 if name == "short" else 400}
        one, other, *_ = [p for p in prompts if p.session == f"{name}-0"]
        least = 64 if name == "short" else 320
        assert least <= shared_tokens(ids[one.sha256], ids[other.sha256]) < least + 16


def test_a_trace_names_sessions_and_blocks_as_mooncake_does_and_survives_its_encoding(planned):
    data = read_bytes(trace_path(planned, "80-20-near-r1"))
    trace = decode_trace(data, "t")
    assert encode_trace(trace) == data
    rows = [json.loads(line) for line in data.splitlines()]
    assert all(len(row["hash_ids"]) == -(-row["input_length"] // 16) for row in rows)
    longs = [row for row in rows if row["extra"]["class"] == "long"]
    assert {row["session_id"] for row in longs} == {"long-0"}
    assert len({tuple(row["hash_ids"][:20]) for row in longs}) == 1
    assert len({row["hash_ids"][-1] for row in longs}) == len(longs)
    alone = [row for row in rows if "-" not in row["session_id"]]
    assert len(alone) == Counter(a.session for a in trace)[None] > 0


def test_every_run_has_a_fresh_engine_that_is_asked_to_tell(planned):
    plan = read_json(planned / "plan.json")
    assert plan["engine_starts"] == len(plan["runs"]) == len({r["start"] for r in plan["runs"]})
    assert all(cell["args"]["enable_prompt_tokens_details"] for cell in plan["cells"])
    assert plan["reuse"]["short"] == {"sessions": 2, "shared_tokens": 64, "share": 0.5}


def test_the_hit_rate_is_told_per_class_and_beside_it_what_the_engines_counted(analysis):
    rows = {(r["cell_id"], r["mix"], r["size_class"]): r for r in analysis["prefix_reuse"]}
    off, on = (rows[cell, "80-20", "long"] for cell in ("B0", "C1"))
    assert off["hit_rate"] == 0.0
    assert "engines" not in off, "what caches nothing is asked nothing"
    assert on["planned_rate"] == 0.8
    assert 0.6 < on["hit_rate"] <= 0.8
    assert on["engines"]["hits"] >= on["cached_tokens"] / 3
    short = rows["C1", "80-20", "short"]
    assert 0.05 < short["hit_rate"] <= 0.2 + 16 / 160
    assert table_rows(analysis)[0][0] in {"B0", "C1"}


def test_hits_are_no_fault_here_and_the_decision_names_rates_not_a_cell(analysis):
    assert [said for run in analysis["runs"] for said in run["checks"]] == []
    decision = decide(analysis, "x")
    assert decision["verdict"] == "none"
    (said,) = (line for line in decision["reasons"] if line.startswith("C1 at 80-20 near: "))
    assert re.search(
        r"short [\d.]+%, long [\d.]+% \(begin alike by the plan: 20.0%, 80.0%; by", said
    )


def test_what_is_cached_need_not_be_computed_so_first_tokens_come_sooner(analysis):
    ttft = {
        row["cell_id"]: row["ttft_s"]["offered"]["p50"]["value"]
        for row in analysis["strata"]
        if (row["mix"], row["size_class"]) == ("80-20", "long")
    }
    assert ttft["C1"] < ttft["B0"]


def test_records_bear_the_cached_tokens(planned, analysis):
    assert analysis["virtual"]
    runs = read_json(planned / "plan.json")["runs"]
    run = next(r for r in runs if (r["cell_id"], r["mix"]) == ("C1", "80-20"))
    path = planned / "sim" / "runs" / run["run_id"] / "requests.jsonl"
    _, records = decode_requests(path.read_bytes(), "r")
    cached = {r.cached_tokens for r in records if r.size_class == "long"}
    assert max(cached) == 320


def test_an_ordinary_sweep_says_nothing_of_reuse(tmp_path):
    path = write(tmp_path, text=SMALL)
    assert read_sweep(path).settings.reuse == {}


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ('kind = "prefix_reuse"', 'kind = "sweep"', "reuse: belongs to kind"),
        (REUSE, "", 'reuse: kind = "prefix_reuse" needs'),
        ("shared_tokens = 64", "shared_tokens = 100", r"reuse\.short\.shared_tokens: 100 must be"),
        ("share = 0.5", "share = 0.0", r"reuse\.short: sessions must be at least 1"),
        ("[reuse.long]", "[reuse.huge]", r"reuse\.huge: is not under"),
        ("enable_prefix_caching = true", "max_num_seqs = 8", "cells: none says enable_prefix"),
    ],
)
def test_what_would_measure_no_reuse_is_refused_by_key(tmp_path, before, after, reason):
    text = SMALL
    for old, new in SWAP.items():
        text = text.replace(old, new)
    with pytest.raises(BenchError, match=reason):
        read_sweep(write(tmp_path, text=text, swap={before: after}))


def test_the_shipped_example_can_be_read():
    settings = read_sweep(ROOT / "config" / "prefix_reuse.toml").settings
    assert settings.kind == "prefix_reuse"
    assert settings.cells[0].args == {"enable_prefix_caching": True}
