import tomllib
from hashlib import sha256

import pytest

from gateway.keys import make_key


def test_only_the_digest_of_a_new_key_is_written(tmp_path):
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
    assert path.stat().st_mode & 0o007 == 0


def test_an_id_is_taken_once_and_must_be_one(tmp_path):
    path = tmp_path / "keys.toml"
    made = make_key("web", "interactive")
    made.append_to(path)
    before = path.read_text()
    with pytest.raises(ValueError, match="there is a key 'web' already"):
        make_key("web", "batch").append_to(path)
    assert path.read_text() == before
    with pytest.raises(ValueError, match="use 1 to 32 of a-z"):
        make_key("Not An Id", "batch")
