"""The state of a gateway: whole after any crash, locked, and honest about what can't be written."""

import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.audit import Note
from gateway.state import FILE, Revision, State, StateError
from tests.gateway.crashing import POOLS, tables

ROOT = Path(__file__).parents[2]
NOTE = Note("ben", "flip", "m/short", 1, 2, "because", {"changed": []})


def revision(number: int) -> Revision:
    return Revision(number, "now", "ben", "flip", "", number - 1, "digest", {"routes": []})


def written(folder: Path, count: int = 3) -> Path:
    state = State(folder)
    for number in range(1, count + 1):
        state.commit("now", NOTE, revision(number))
    state.close()
    return folder / FILE


# -- what is kept --------------------------------------------------------------------------


def test_what_is_committed_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    state = State(tmp_path / "new" / "state")
    salt = state.salt
    entry = state.commit("now", NOTE, revision(1), [("watch", "m/short", {"since": 1})])
    state.close()
    again = State(tmp_path / "new" / "state")
    assert again.revisions(10) == [again.revision(1)] == [revision(1)]
    assert again.audit(10) == ([entry], None)
    assert again.get_all("watch") == {"m/short": {"since": 1}}
    assert (again.salt, len(salt)) == (salt, 32)
    assert again.revision(2) is None
    again.close()


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    written(tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    assert (tmp_path / "state" / FILE).stat().st_mode & 0o077 == 0


def test_in_memory_all_works_and_nothing_is_kept() -> None:
    first, second = State(None), State(None)
    first.commit("now", NOTE, revision(1))
    assert (first.kept, second.revisions(1), first.salt != second.salt) == (False, [], True)
    first.close()
    second.close()


def test_records_are_kept_by_kind_and_id_and_forgotten(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.put("manifest", "b", {"n": 1})
    state.put("manifest", "b", {"n": 2})
    state.put("manifest", "a", {"n": 3})
    state.put("watch", "a", {"n": 4})
    assert list(state.get_all("manifest").items()) == [("a", {"n": 3}), ("b", {"n": 2})]
    state.commit("now", NOTE, None, [("manifest", "a", None), ("watch", "c", {"n": 5})])
    assert state.get_all("manifest") == {"b": {"n": 2}}
    assert state.get_all("watch") == {"a": {"n": 4}, "c": {"n": 5}}
    state.delete("manifest", "b")
    state.delete("manifest", "b")
    assert state.get_all("manifest") == {}
    assert state.revisions(1) == []
    state.close()


# -- crashes -------------------------------------------------------------------------------


def test_a_crash_at_any_statement_leaves_the_old_or_the_new_table_whole() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gateway.crashing", "25"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    # Six moves of at least seven statements each, and the making of the file.
    assert counts["statements"] >= 6 * 7 + 5
    assert counts["moments"] > 0


def test_the_crash_tests_moves_differ_from_each_other() -> None:
    made = tables()
    assert len({table.revision for table in made}) == len(made) == 6
    assert all(a.routes != b.routes or a.draining != b.draining for a, b in pairwise(made))
    assert set(POOLS) == {"a", "b", "c"}


def test_a_change_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.commit("now", NOTE, revision(1))
    with pytest.raises(StateError, match="UNIQUE"):
        state.commit("now", NOTE, revision(1), [("watch", "x", {})])
    assert (len(state.audit(9)[0]), state.get_all("watch"), state.broken_at()) == (1, {}, None)
    state.commit("now", NOTE, revision(2))
    assert [row.revision for row in state.revisions(9)] == [2, 1]
    state.close()


# -- what can't be written -----------------------------------------------------------------


def test_a_full_disk_refuses_the_change_and_keeps_what_there_was(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.commit("now", NOTE, revision(1))
    pages = state.connection.execute("PRAGMA page_count").fetchone()[0]
    state.connection.execute(f"PRAGMA max_page_count = {pages}")
    large = Note("ben", "flip", why="x" * 100_000)
    with pytest.raises(StateError, match=rf"{FILE}: the disk is full"):
        state.commit("now", large, revision(2))
    assert state.fault is not None
    assert ([r.revision for r in state.revisions(9)], state.broken_at()) == ([1], None)
    state.connection.execute("PRAGMA max_page_count = 100000")
    state.commit("now", large, revision(2))
    assert state.fault is None
    state.close()


LIMITED = """
import resource, signal, sys
from pathlib import Path
from gateway.audit import Note
from gateway.state import State, StateError
state = State(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    state.commit("now", Note("ben", "flip", why="x" * 100_000))
except StateError as error:
    print(error, len(state.audit(9)[0]), state.broken_at())
"""


def test_a_file_system_that_takes_no_more_refuses_the_change(tmp_path: Path) -> None:
    size = written(tmp_path).stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(size)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"{tmp_path / FILE}: ")
    assert done.stdout.endswith(" 3 None\n")
    state = State(tmp_path)
    assert ([r.revision for r in state.revisions(9)], state.broken_at()) == ([3, 2, 1], None)
    state.close()


READER = """
import os, sys
from pathlib import Path
from gateway.audit import Note
from gateway.state import State, StateError
if os.geteuid() == 0:
    os.setuid(65534)
state = State(Path(sys.argv[1]))
print([row.revision for row in state.revisions(9)], state.fault)
try:
    state.commit("now", Note("ben", "flip"))
except StateError as error:
    print(error)
"""


@pytest.mark.parametrize("there", [True, False])
def test_a_directory_that_is_read_only_is_read_and_nothing_is_written(
    tmp_path: Path, there: bool
) -> None:
    folder = tmp_path / "state"
    if there:
        written(folder).chmod(0o444)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o555)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.is_relative_to(tempfile.gettempdir()) and parent != Path(tempfile.gettempdir()):
            parent.chmod(parent.stat().st_mode | 0o055)  # the reader may be another user
    before = set(folder.iterdir())
    try:
        done = subprocess.run(
            [sys.executable, "-c", READER, str(folder)],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    finally:
        folder.chmod(0o755)
    first, second = done.stdout.splitlines()
    assert first == f"{[3, 2, 1] if there else []} {folder}: is read-only"
    assert second.endswith(": is read-only")
    assert set(folder.iterdir()) == before


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    state = State(tmp_path)
    with pytest.raises(StateError) as refused:
        State(tmp_path)
    assert str(refused.value) == f"{tmp_path}: another gateway uses this state directory"
    state.close()
    State(tmp_path).close()


def no_database(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def no_salt(path: Path) -> None:
    change(path, "DELETE FROM meta WHERE key = 'salt'")


def newer(path: Path) -> None:
    change(path, "PRAGMA user_version = 9")


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (no_database, "the file is damaged: it is no SQLite database"),
        (cut_off, "the file is damaged"),
        (no_salt, "the file is damaged: it has no salt"),
        (newer, "is of version 9, and this reads 1"),
    ],
)
def test_a_file_that_is_damaged_or_of_another_version_is_named(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    path = written(tmp_path)
    spoil(path)
    with pytest.raises(StateError) as refused:
        State(tmp_path)
    assert str(refused.value).startswith(f"{path}: {words}")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("lose", "words"),
    [(Path.unlink, "is gone, but state.sqlite-journal is there"), (emptied, "is empty")],
)
def test_a_file_that_was_lost_is_not_begun_anew_until_somebody_says_so(
    tmp_path: Path, lose: Callable[[Path], None], words: str
) -> None:
    path = written(tmp_path)
    lose(path)
    before = sorted(tmp_path.iterdir())
    for _ in range(2):
        with pytest.raises(StateError) as refused:
            State(tmp_path)
        assert str(refused.value).startswith(f"{path}: {words}")
        assert "to begin without routes, audit and records" in str(refused.value)
    assert sorted(tmp_path.iterdir()) == before
    for left in before:
        left.unlink()
    state = State(tmp_path)
    assert (state.revisions(9), state.audit(9)) == ([], ([], None))
    state.close()


def test_a_copy_that_was_put_back_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path)
    kept = path.read_bytes()
    path.unlink()
    path.write_bytes(kept)
    state = State(tmp_path)
    assert len(state.audit(9)[0]) == 3
    state.close()


def test_what_a_crash_left_of_making_the_file_is_no_loss(tmp_path: Path) -> None:
    (tmp_path / f"{FILE}.new").write_bytes(b"half of a database")
    (tmp_path / f"{FILE}.new-journal").write_bytes(b"half of a journal")
    State(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir() if ".new" in path.name] == []


def test_a_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=str(tmp_path / "file" / "state")):
        State(tmp_path / "file" / "state")


@pytest.mark.parametrize(
    ("statement", "at"),
    [
        ("UPDATE audit SET body = replace(body, 'ben', 'eve') WHERE n = 2", 2),
        ("DELETE FROM audit WHERE n = 2", 2),
        ("DELETE FROM audit WHERE n = 3", 3),
        ("UPDATE audit SET body = 'no JSON' WHERE n = 2", 2),
        ("UPDATE audit SET body = '{}' WHERE n = 3", 3),
    ],
)
def test_an_audit_trail_that_was_tampered_with_says_where(
    tmp_path: Path, statement: str, at: int
) -> None:
    change(written(tmp_path), statement)
    state = State(tmp_path)
    assert state.broken_at() == at
    for limit in (2, 3, 9):
        assert state.audit(limit)[1] == at
    assert state.audit(1)[1] == (3 if at == 3 else None)  # what stands before is not read
    state.close()


def test_no_more_of_the_audit_trail_is_read_than_is_asked_for(tmp_path: Path) -> None:
    state, read = State(tmp_path), []
    for number in range(1, 41):
        state.commit("now", NOTE, revision(number))
    state.connection.create_function("touched", 1, lambda body: read.append(body) or body)
    state.connection.execute("ALTER TABLE audit RENAME TO kept")
    state.connection.execute("CREATE VIEW audit AS SELECT n, touched(body) AS body FROM kept")
    entries, broken = state.audit(5)
    assert ([entry.n for entry in entries], broken, len(read)) == ([40, 39, 38, 37, 36], None, 5)
    state.close()


def test_entries_of_the_audit_trail_that_can_be_read_are_shown_beside_one_that_can_not(
    tmp_path: Path,
) -> None:
    change(written(tmp_path), "UPDATE audit SET body = 'no JSON' WHERE n = 2")
    state = State(tmp_path)
    assert [entry.n for entry in state.audit(9)[0]] == [3, 1]
    state.close()


@pytest.mark.parametrize(
    ("statement", "act"),
    [
        ("DELETE FROM meta WHERE key = 'head'", State.broken_at),
        ("UPDATE meta SET value = x'00' WHERE key = 'head'", lambda s: s.commit("now", NOTE)),
        ("INSERT INTO records VALUES ('drain', 'a', '[]')", lambda s: s.get_all("drain")),
        ("INSERT INTO records VALUES ('drain', 'a', 'x')", lambda s: s.get_all("drain")),
    ],
)
def test_what_can_not_be_read_is_damage_and_names_the_file(
    tmp_path: Path, statement: str, act: Callable[[State], object]
) -> None:
    path = written(tmp_path)
    change(path, statement)
    state = State(tmp_path)
    with pytest.raises(StateError, match=f"{path}: the file is damaged"):
        act(state)
    state.close()


def test_a_file_that_was_moved_away_takes_no_change_and_says_why(tmp_path: Path) -> None:
    path = written(tmp_path)
    state = State(tmp_path)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="was moved, removed or replaced"):
        state.commit("now", NOTE, revision(4))
    (tmp_path / "elsewhere").rename(path)
    state.commit("now", NOTE, revision(4))
    assert (len(state.audit(9)[0]), state.broken_at()) == (4, None)
    state.close()
