"""What a reload may change, and how it names what it changes."""

from pathlib import Path

import pytest

from gateway.config import parse
from gateway.reload import MAX_NAMED, changed_keys, fixed_faults
from gateway.schema import Document
from tests.gateway.minimal import CONFIG, write


def document(folder: Path, *tables: str) -> Document:
    return parse("\n".join([*tables, CONFIG]), write(folder)).document


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("[server]\nport = 1", "server.port"),
        ('[server]\nhost = "::1"', "server.host"),
        ("[server]\nmax_connections = 5", "server.max_connections"),
        ("[admin]\nport = 1", "admin.port"),
        ("[scheduling]\nquantum = 7", "scheduling.quantum"),
        ("[tracing]\nenabled = true", "tracing.enabled"),
        ('[server.tls]\ncert_file = "c"\nkey_file = "k"', "server.tls"),
        ('[admin.tls]\ncert_file = "c"\nkey_file = "k"', "admin.tls"),
    ],
)
def test_what_needs_a_restart_is_named(tmp_path: Path, table: str, key: str) -> None:
    before, after = document(tmp_path), document(tmp_path, table)
    for faults in (list(fixed_faults(before, after)), list(fixed_faults(after, before))):
        assert [found for found, _ in faults] == [key]
        assert "restart" in faults[0][1]


def test_whether_callers_need_certificates_can_not_change_but_the_files_can(tmp_path: Path) -> None:
    tls = '[server.tls]\ncert_file = "{}"\nkey_file = "k"\n'
    plain, other = (document(tmp_path, tls.format(name)) for name in ("a", "b"))
    asking = document(tmp_path, tls.format("a") + 'client_ca_file = "ca"')
    assert list(fixed_faults(plain, other)) == []
    assert [key for key, _ in fixed_faults(plain, asking)] == ["server.tls.client_ca_file"]


def test_anything_else_may_change(tmp_path: Path) -> None:
    before = document(tmp_path)
    more = '[[admin.tokens]]\nname = "x"\nrole = "viewer"\nsha256 = "' + "1" * 64 + '"'
    after = document(tmp_path, "[server]\nmax_requests = 5", more, "[upstream]\nretry_budget = 0.0")
    assert list(fixed_faults(before, after)) == []


def test_changes_are_named_by_their_dotted_keys() -> None:
    before = {"a": {"b": 1, "c": [1, {"d": 2}]}, "gone": 1, "same": [1]}
    after = {"a": {"b": 2, "c": [1, {"d": 3}]}, "new": 1, "same": [1]}
    assert changed_keys(before, after) == ["a.b", "a.c[2].d", "gone", "new"]
    assert changed_keys(before, before) == []
    assert changed_keys({"l": [1]}, {"l": [1, 2]}) == ["l"]


def test_many_changes_are_counted_after_a_while() -> None:
    after = {str(n): n for n in range(MAX_NAMED + 3)}
    named = changed_keys({}, after)
    assert len(named) == MAX_NAMED + 1
    assert named[-1] == "and 3 more"
