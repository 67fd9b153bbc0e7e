import shutil

import pytest

from gateway.cli import main
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
        ("corpus.manifest.json", b'"licence":"', b'"licence":"x', "corpus.manifest.json: its sha"),
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


@pytest.mark.parametrize(
    ("missing", "verb"),
    [
        ("plan.json", "plan FILE --out"),
        ("corpus.jsonl", "plan FILE --out"),
        ("runs", "run"),
        ("analysis.json", "analyse"),
        ("decision.json", "decide"),
    ],
)
def test_a_folder_that_is_half_made_is_refused_with_the_command_that_goes_on(copy, missing, verb):
    (copy / missing).rename(copy / "away")
    with pytest.raises(BenchError) as told:
        verify_folder(copy)
    assert str(told.value) == (
        f"{copy / missing}: is not there yet; run: sluicegate bench {verb} {copy}"
    )


def test_a_folder_that_is_not_there_is_told_from_one_that_differs(tmp_path, capsys):
    assert main(["bench", "verify", str(tmp_path / "none")]) == 2
    assert f"{tmp_path}/none/plan.json: is not there yet; run: " in capsys.readouterr().err


def test_a_file_that_was_cut_off_is_named(copy):
    path = copy / "analysis.json"
    path.write_bytes(path.read_bytes()[:100])
    assert any("analysis.json" in line and "JSON" in line for line in verify_folder(copy))


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
