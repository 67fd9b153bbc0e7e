from loadgen import staging
from loadgen.files import write_json


def attempt(folder, run_id, *names):
    part = staging.part_of(folder, run_id)
    for name in names:
        (part / name).write_text("{}\n")
    return part


WHOLE = ("config.json", "requests.jsonl", "samples.jsonl")


def test_a_run_is_finished_once_it_has_its_name_and_not_before(tmp_path):
    part = attempt(tmp_path, "r1", *WHOLE)
    assert not staging.finished(tmp_path, "r1")
    staging.keep(part, "r1", None)
    assert staging.finished(tmp_path, "r1")
    assert not part.exists()


def test_a_run_without_samples_is_not_finished(tmp_path):
    staging.keep(attempt(tmp_path, "r1", "config.json", "requests.jsonl"), "r1", None)
    assert not staging.finished(tmp_path, "r1")


def test_a_run_whose_cell_cannot_be_needs_nothing_more(tmp_path):
    part = attempt(tmp_path, "r1")
    write_json(part / "config.json", {"incompatible": "max_num_seqs"})
    staging.keep(part, "r1", None)
    assert staging.finished(tmp_path, "r1")


def test_spoilt_attempts_are_counted_and_do_not_finish_the_run(tmp_path):
    for n in (1, 2):
        staging.keep(attempt(tmp_path, "r1", *WHOLE), "r1", n)
    staging.keep(attempt(tmp_path, "r10", *WHOLE), "r10", 1)
    assert staging.attempts_kept(tmp_path, "r1") == 2
    assert not staging.finished(tmp_path, "r1")


def test_what_was_in_flight_is_dropped_and_nothing_else(tmp_path):
    staging.keep(attempt(tmp_path, "r1", *WHOLE), "r1", None)
    attempt(tmp_path, "r2", *WHOLE)
    staging.clear(tmp_path)
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"r1"}


def test_an_attempt_begins_in_an_empty_folder(tmp_path):
    attempt(tmp_path, "r1", "requests.jsonl")
    assert list(staging.part_of(tmp_path, "r1").iterdir()) == []
