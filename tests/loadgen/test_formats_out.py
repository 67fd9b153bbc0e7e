import csv
import json

import pytest

from loadgen.formats_out import FORMATS, export
from loadgen.record import BenchError


def test_vllm_gets_a_file_for_each_run_and_their_summary(sweep_once, tmp_path):
    paths = export(sweep_once, "vllm", tmp_path)
    assert len(paths) == 18 + 1
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    one = json.loads((tmp_path / "r1-C2-80-20-near.json").read_bytes())
    assert {row["cell_id"] for row in summary} == {"B0", "C1", "C2"}
    assert one["num_prompts"] == 160
    assert one["failed"] == 8
    assert one["request_goodput"] * one["duration"] == pytest.approx(152)


def test_csv_holds_runs_requests_and_strata(sweep_once, tmp_path):
    export(sweep_once, "csv", tmp_path)
    texts = {path.stem: path.read_text() for path in tmp_path.glob("*.csv")}
    told = {name: list(csv.DictReader(text.splitlines())) for name, text in texts.items()}
    assert {k: len(v) for k, v in told.items()} == {
        "runs": 36,
        "requests": 18 * 160,
        "strata": 3 * 2 * 2,
    }


def test_flat_json_says_verdict_and_version(sweep_once, tmp_path):
    (path,) = export(sweep_once, "json", tmp_path)
    found = json.loads(path.read_bytes())
    assert (found["kind"], found["version"], found["verdict"]) == ("export", 1, "retune(C1)")
    assert len(found["comparisons"]) == 2


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_demonstration_is_exported_too(demo, tmp_path, name):
    assert all(path.stat().st_size for path in export(demo[0], name, tmp_path))


def test_an_unknown_format_is_refused_by_name(sweep_once, tmp_path):
    with pytest.raises(BenchError, match=r"no format is named xml; there are vllm, csv, json"):
        export(sweep_once, "xml", tmp_path)
