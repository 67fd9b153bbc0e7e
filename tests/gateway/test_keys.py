import os
import tomllib
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import keys
from gateway.files import ConfigError
from gateway.keys import KeyRow, known_service_class, list_keys, make_key, revoke_key
from tests.gateway.minimal import CONFIG, write

ZEROS = "0" * 64
FILE = f"""# Who may call.
revoked = [
  "staff:mallory",  # left in March
]

# The web shop.
[key.web]
sha256 = "{ZEROS}"
service_class = "interactive"   # their contract says so
models = [
  "a",  # not [b]
]

# Documents at night.
[ key . "documents" ]
sha256 = "{ZEROS}"
service_class = "batch"
max_in_flight = 4
# end of documents

[key.web-2]
sha256 = "{ZEROS}"
service_class = "batch"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    path.chmod(0o640)
    return path


def test_only_the_digest_of_a_new_key_is_written(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    first, second = make_key("web", "interactive"), make_key("batch-1", "batch")
    first.append_to(path)
    second.append_to(path)
    text = path.read_text()
    assert tomllib.loads(text)["key"] == {
        "web": {
            "sha256": sha256(first.key.encode()).hexdigest(),
            "service_class": "interactive",
        },
        "batch-1": {
            "sha256": sha256(second.key.encode()).hexdigest(),
            "service_class": "batch",
        },
    }
    assert first.key not in text
    assert first.key not in repr(first)
    assert path.stat().st_mode & 0o777 == 0o640 & ~umask()


def umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now


def test_a_new_key_leaves_the_rest_of_the_file_and_its_mode(path: Path) -> None:
    path.chmod(0o600)
    made = make_key("new", "batch")
    made.append_to(path)
    assert path.read_text() == f"{FILE}\n{made.record}"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_changed_file_keeps_its_owner_whoever_changes_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    fake = SimpleNamespace(
        **{name: getattr(os, name) for name in ("open", "fdopen", "fsync", "fchmod")},
        **{name: getattr(os, name) for name in ("O_WRONLY", "O_CREAT", "O_EXCL")},
        fstat=lambda _: SimpleNamespace(st_uid=-7, st_gid=-8),
        fchown=lambda _, uid, gid: given.append((uid, gid)),
    )
    monkeypatch.setattr(keys, "os", fake)
    revoke_key(path, "web")
    assert given == [(path.stat().st_uid, path.stat().st_gid)]


@pytest.mark.parametrize("taken", ["web", "documents"])
def test_an_id_is_taken_once_however_its_table_is_written(path: Path, taken: str) -> None:
    with pytest.raises(ValueError, match=f"there is a key '{taken}' already"):
        make_key(taken, "batch").append_to(path)
    assert path.read_text() == FILE
    assert list(path.parent.iterdir()) == [path]


def test_an_id_must_be_one() -> None:
    with pytest.raises(ValueError, match="use 1 to 32 of a-z"):
        make_key("Not An Id", "batch")


def test_a_file_that_is_no_toml_is_left_alone(path: Path) -> None:
    path.write_text("= nonsense")
    with pytest.raises(ValueError, match="not TOML"):
        make_key("new", "batch").append_to(path)
    assert path.read_text() == "= nonsense"


def test_two_changes_at_once_do_not_lose_one(path: Path) -> None:
    (path.parent / "keys.toml.new").write_text("")
    with pytest.raises(ValueError, match="another change is under way"):
        make_key("new", "batch").append_to(path)
    assert path.read_text() == FILE


def test_a_link_to_the_keys_file_stays_a_link(path: Path) -> None:
    link = path.with_name("link.toml")
    link.symlink_to(path)
    make_key("new", "batch").append_to(link)
    assert link.is_symlink()
    assert [row.id for row in list_keys(path)] == ["web", "documents", "web-2", "new"]


def test_keys_are_listed_without_their_digests(path: Path) -> None:
    rows = list_keys(path)
    assert rows == [
        KeyRow("web", "interactive", ("a",), None, None),
        KeyRow("documents", "batch", None, None, 4),
        KeyRow("web-2", "batch", None, None, None),
    ]
    assert ZEROS not in repr(rows)
    with pytest.raises(ConfigError, match="No such file"):
        list_keys(path.with_name("gone.toml"))


def test_a_revoked_key_is_gone_and_everything_else_stays_to_the_letter(path: Path) -> None:
    revoke_key(path, "documents")
    before, rest = FILE.split('[ key . "documents" ]\n')
    assert path.read_text() == before + rest[rest.index("# end of documents") :]
    revoke_key(path, "web")
    assert "staff:mallory" in path.read_text()
    assert [row.id for row in list_keys(path)] == ["web-2"]
    revoke_key(path, "web-2")
    assert list_keys(path) == []


def test_a_key_that_is_not_there_can_not_be_revoked(path: Path) -> None:
    with pytest.raises(ValueError, match="there is no key 'we'"):
        revoke_key(path, "we")
    assert path.read_text() == FILE


def test_a_table_that_can_not_be_told_from_the_rest_is_left_alone(path: Path) -> None:
    inline = f'[key]\nweb = {{ sha256 = "{ZEROS}", service_class = "batch" }}\n'
    path.write_text(inline)
    with pytest.raises(ValueError, match="remove it by hand"):
        revoke_key(path, "web")
    assert path.read_text() == inline


@given(
    st.lists(st.from_regex(r"[a-z0-9-]{1,8}", fullmatch=True), min_size=1, unique=True), st.data()
)
def test_revoking_any_key_leaves_all_others(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    for key_id in ids:
        make_key(key_id, "batch").append_to(path)
    gone = data.draw(st.sampled_from(ids))
    revoke_key(path, gone)
    assert [row.id for row in list_keys(path)] == [i for i in ids if i != gone]


def test_a_service_class_is_looked_up_in_the_configuration(tmp_path: Path) -> None:
    config = write(tmp_path)
    (tmp_path / "keys.toml").unlink()
    assert known_service_class(config, "batch") == tmp_path / "keys.toml"
    with pytest.raises(ValueError, match=r"--service-class vip: .* has only interactive, batch"):
        known_service_class(config, "vip")
    config.write_text(CONFIG.replace("slots = 128", "slots = -1"))
    with pytest.raises(ConfigError, match=r"limits\.slots"):
        known_service_class(config, "batch")
