import pytest

from loadgen.files import file_digest, read_json, tree_digest, write_bytes, write_json
from loadgen.record import BenchError, digest


def test_a_written_file_has_the_digest_that_writing_returned(tmp_path):
    path = tmp_path / "deep" / "a.json"
    assert write_json(path, {"a": 1}) == file_digest(path) == digest(b'{"a":1}\n')


def test_writing_leaves_no_part_file(tmp_path):
    write_bytes(tmp_path / "a", b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BenchError, match=r"gone\.json: cannot be read"):
        read_json(tmp_path / "gone.json")


def test_a_json_list_is_not_taken_for_an_object(tmp_path):
    write_bytes(tmp_path / "a.json", b"[]")
    with pytest.raises(BenchError, match=r"a\.json: expected a JSON object, found list"):
        read_json(tmp_path / "a.json")


def test_a_tree_digest_changes_with_a_name_and_with_content_but_not_with_other_files(tmp_path):
    write_bytes(tmp_path / "a.py", b"1")
    before = tree_digest(tmp_path, ("*.py",))
    write_bytes(tmp_path / "a.txt", b"2")
    assert tree_digest(tmp_path, ("*.py",)) == before
    write_bytes(tmp_path / "a.py", b"3")
    changed = tree_digest(tmp_path, ("*.py",))
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({before, changed, tree_digest(tmp_path, ("*.py",))}) == 3
