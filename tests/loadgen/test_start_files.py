import pytest

from loadgen.files import file_digest, read_json
from loadgen.record import BenchError
from loadgen.results import conclude, verify_folder
from loadgen.start_files import FILE, held_starts, seal_start, uncovered_starts
from tests.loadgen.made import plan, write_folder


@pytest.fixture
def start(tmp_path):
    folder = tmp_path / "starts" / "01-r1-B0-1"
    (folder / "engines").mkdir(parents=True)
    (folder / "gateway.toml").write_text("[server]\n")
    (folder / "keys.toml").write_text("secret")
    (folder / "engines" / "0.log").write_text("up\n")
    seal_start(folder)
    return folder


def test_every_file_of_a_start_is_named_but_its_keys(start):
    assert set(read_json(start / FILE)["files"]) == {"gateway.toml", "engines/0.log"}
    (start / "keys.toml").unlink()
    assert held_starts(start.parents[1]) == {start.name: file_digest(start / FILE)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: (s / "gateway.toml").write_text("[serve]\n"), "gateway.toml: its sha256 is"),
        (lambda s: (s / "engines" / "0.log").unlink(), "0.log: missing"),
        (lambda s: (s / "late.log").write_text(""), "late.log: not there when the start ended"),
    ],
)
def test_what_was_altered_after_the_start_is_named(start, change, said):
    change(start)
    with pytest.raises(BenchError, match=said):
        held_starts(start.parents[1])


def test_a_start_without_digests_is_not_covered_and_no_fault(start):
    (start / FILE).unlink()
    assert held_starts(start.parents[1]) == {}
    assert uncovered_starts(start.parents[1]) == [start.name]


def test_a_start_that_left_nothing_needs_no_digests(tmp_path):
    seal_start(tmp_path / "starts" / "none")
    assert not (tmp_path / "starts").exists()
    assert uncovered_starts(tmp_path) == []


def test_verify_names_an_altered_log_and_passes_over_an_old_start(start):
    folder = start.parents[1]
    write_folder(folder, {}, plan(("B0", "C1")))
    conclude(folder)
    assert read_json(folder / "analysis.json")["inputs"]["starts"].keys() == {start.name}
    (folder / "starts" / "02-r1-C1-1").mkdir()
    assert verify_folder(folder) == []
    (start / "engines" / "0.log").write_text("down\n")
    (said,) = verify_folder(folder)
    assert "0.log: its sha256 is" in said
