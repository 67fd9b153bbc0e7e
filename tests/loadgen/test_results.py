import shutil

import pytest

from loadgen.files import read_json, write_json
from loadgen.record import BenchError
from loadgen.results import analyse_folder, verify_folder

RUN = "runs/r1-admission-shared"


@pytest.fixture
def copy(demo, tmp_path):
    return shutil.copytree(demo[0], tmp_path / "copy")


def test_an_untouched_folder_verifies_as_identical_elsewhere_too(copy):
    assert verify_folder(copy) == []


def test_the_analysis_follows_from_the_records_alone(copy):
    recorded = read_json(copy / "analysis.json")
    (copy / "analysis.json").unlink()
    write_json(copy / "analysis.json", analyse_folder(copy))
    assert read_json(copy / "analysis.json") == recorded


def edit(path, old, new):
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "old", "new", "where"),
    [
        ("corpus.jsonl", b'"class"', b'"klass"', "corpus.jsonl: its sha256"),
        ("trace-mixed.jsonl", b'"seq":1', b'"seq":9', "trace-mixed.jsonl"),
        ("plan.json", b'"rounds":1', b'"rounds":3', "plan.json"),
        (f"{RUN}/config.json", b'"repeat":1', b'"repeat":2', "config.json"),
        (f"{RUN}/requests.jsonl", b'"outcome":"ok"', b'"outcome":"error"', "requests_sha256"),
        (f"{RUN}/samples.jsonl", b'"up":true', b'"up":false', "samples_sha256"),
        ("analysis.json", b'"valid":', b'"valid_":', "analysis"),
        ("decision.json", b'"deployable":false', b'"deployable":true', "decision.deployable"),
        ("predictions.json", b"0.02", b"0.03", "predictions_sha256"),
        ("report.html", b"Deployable: no", b"Deployable: oh", "report.html: byte "),
    ],
)
def test_any_altered_file_is_found_and_named(copy, name, old, new, where):
    edit(copy / name, old, new)
    found = verify_folder(copy)
    assert any(where in line for line in found), found


def test_a_cut_report_is_found_and_a_report_never_written_is_no_difference(copy):
    report = copy / "report.html"
    report.write_bytes(report.read_bytes()[:-1])
    assert len(verify_folder(copy)) == 1
    report.unlink()
    assert verify_folder(copy) == []


def test_a_missing_run_is_named(copy):
    shutil.rmtree(copy / RUN)
    assert "config.json: cannot be read" in verify_folder(copy)[0]


def test_samples_without_their_header_are_refused(copy):
    (copy / RUN / "samples.jsonl").write_bytes(b"")
    with pytest.raises(BenchError, match=r"samples.jsonl line 1: not the header"):
        analyse_folder(copy)
