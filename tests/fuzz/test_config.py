"""The published configuration with lines lost, doubled, moved and changed: settings or a reason."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ConfigError, Settings, parse
from tests.e2e.harness import ROOT
from tests.fuzz.depth import fuzz

SOURCE = ROOT / "config" / "gateway.toml"
LINES = SOURCE.read_text().splitlines()
# What says something: not the comments, which are most of the file.
PLACES = [n for n, line in enumerate(LINES) if line.strip() and not line.startswith("#")]

VALUES = st.one_of(
    st.sampled_from(
        ["true", "false", "0", "-1", "1e308", "nan", "inf", "-inf", "0.0", '""', '"x"', "[]", "[1]",
         "{}", '{a = 1}', "1979-05-27", '"\\u0000"', '"http://127.0.0.1:1"', '["http://h:1/p"]',
         '["ftp://h"]', '"../../../etc/passwd"', '"package:os/x"', '"package:"', "9" * 400, "0x10",
         '["a", 1]', '"fcfs"', '"required"', '[["a"]]', '"short"', '"\\ud800"', "1_000", "."]
    ),
    st.integers(-(2**64), 2**64).map(str),
    st.floats().map(repr),
    st.text(max_size=9).map(json.dumps),
)  # fmt: skip
KEYS = st.sampled_from(
    ["x", "port", "weight", "slots", "host", '"a b"', "a.b", "", "max_age_s", "=", "é"]
)
HEADS = st.sampled_from(
    ["[server]", "[model.demo]", "[[route]]", "[pool.shared]", "[size.short]", "[flow.a.b]", "[x]",
     "[service.\"\"]", "[flow.short]", "[[pool.shared]]", "[", "[]", "[model]", "[auth]",
     "[[admin]]"]
)  # fmt: skip


Change = Callable[[list[str], int, st.DrawFn], str]


def _swapped(lines: list[str], at: int, draw: st.DrawFn) -> str:
    other = draw(st.sampled_from(PLACES))
    kept, lines[other] = lines[other], lines[at]
    return kept


CHANGES: Mapping[str, Change] = {
    "lose": lambda lines, at, draw: "",
    "double": lambda lines, at, draw: f"{lines[at]}\n{lines[at]}",
    "value": lambda lines, at, draw: f"{lines[at].partition('=')[0]}= {draw(VALUES)}",
    "key": lambda lines, at, draw: f"{draw(KEYS)} = {draw(VALUES)}",
    "head": lambda lines, at, draw: draw(HEADS),
    "swap": _swapped,
    "cut": lambda lines, at, draw: lines[at][: draw(st.integers(0, 30))],
    "noise": lambda lines, at, draw: lines[at] + draw(st.text(max_size=5)),
}


@st.composite
def changed(draw: st.DrawFn) -> str:
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.sampled_from(PLACES))
        lines[at] = CHANGES[draw(st.sampled_from(list(CHANGES)))](lines, at, draw)
    return "\n".join(lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("config")
    for path in SOURCE.parent.glob("*.toml"):
        shutil.copy(path, found)
    return found


@given(text=changed())
@fuzz(250)
def test_a_changed_configuration_is_settings_or_an_error_that_names_file_and_reason(
    folder: Path, text: str
) -> None:
    path = folder / "gateway.toml"
    try:
        settings = parse(text, path)
    except ConfigError as error:
        said = str(error)
        assert said.startswith((str(path), str(folder))), said
        assert max(map(len, said.splitlines())) < 1000, said
        assert "Traceback" not in said
    else:
        assert isinstance(settings, Settings)
        json.dumps(settings.effective())
        assert len(settings.digest()) == 64


def test_the_unchanged_configuration_is_read(folder: Path) -> None:
    assert parse("\n".join(LINES), folder / "gateway.toml").flows
