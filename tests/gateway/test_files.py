from pathlib import Path

import pytest

from gateway.files import ConfigError, Findings, raise_all, read_text, resolve, validated
from gateway.schema import Probe


def test_a_file_that_is_no_text_is_named_by_itself_or_by_what_names_it(tmp_path: Path) -> None:
    path, config = tmp_path / "keys.toml", tmp_path / "gateway.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError) as itself:
        read_text(path, path, "")
    assert str(itself.value) == f"{path}: can't be read: not UTF-8 text"
    with pytest.raises(ConfigError) as named:
        read_text(path, config, "auth.keys_file")
    reason = f"{path} can't be read: not UTF-8 text"
    assert str(named.value) == f"{config}: auth.keys_file: {reason}"


def test_a_value_of_another_type_is_named_but_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        validated(Probe, 'interval_s = "hunter2"', tmp_path)
    assert str(raised.value).startswith(f"{tmp_path}: interval_s: ")
    assert "hunter2" not in str(raised.value)


def test_a_reference_is_relative_to_the_file_it_stands_in() -> None:
    config = Path("/etc/gateway/gateway.toml")
    assert resolve(config, "keys.toml") == Path("/etc/gateway/keys.toml")
    assert resolve(config, "/srv/keys.toml") == Path("/srv/keys.toml")
    inside = resolve(config, "package:pydantic/py.typed")
    assert inside.is_file()
    assert resolve(config, "package:no_such_package/x") == Path("package:no_such_package/x")


def test_findings_hold_each_fault_of_all_steps_once_in_order(tmp_path: Path) -> None:
    found, reached = Findings(), []
    for number, key in enumerate(("b", "a", "b")):
        with found.step():
            raise_all(tmp_path, [(key, "is wrong"), ("both", "are wrong")])
            reached.append(number)
    with found.step():
        raise_all(tmp_path, [])
        reached.append(3)
    with pytest.raises(ConfigError) as raised:
        found.settle()
    assert reached == [3]
    assert [fault.key for fault in raised.value.faults] == ["b", "both", "a"]
    assert str(raised.value).splitlines()[0] == f"{tmp_path}: b: is wrong"
    assert (raised.value.file, raised.value.key) == (tmp_path, "b")


def test_findings_of_nothing_let_go_on() -> None:
    Findings().settle()


def test_what_is_no_fault_of_a_configuration_is_not_kept() -> None:
    with pytest.raises(KeyError), Findings().step():
        raise KeyError
