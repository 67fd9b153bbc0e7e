"""Rules about the code that a reader relies on, checked by machine."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.contract import CONTRACT
from gateway.domain import Outcome

ROOT = Path(__file__).parent.parent
MODULES = sorted([*ROOT.glob("gateway/**/*.py"), *ROOT.glob("loadgen/**/*.py")])
MAX_LINES = 400
MAX_FUNCTION_LINES = 60


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_imports_keep_the_contracts():
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_one_idea_and_says_which(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring
    assert docstring.splitlines()[0].rstrip().endswith((".", ":", ","))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_function_fits_a_screen(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MAX_FUNCTION_LINES, node.name


def test_every_outcome_has_a_row_in_the_contract():
    assert set(CONTRACT) == set(Outcome)


def test_every_pure_module_says_so_and_the_contract_names_it():
    pure = {p for p in MODULES if "Pure: no I/O, no clock." in (p.read_text() or "")}
    listed = (ROOT / "pyproject.toml").read_text()
    for path in pure:
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert f'"{dotted}"' in listed, f"{dotted} says it is pure, the contract does not know it"


@pytest.mark.parametrize(
    ("package", "begin", "end"),
    [
        ("gateway", "## Gateway modules", "## The bench"),
        ("loadgen", "## The bench", "## Decisions"),
    ],
)
def test_the_architecture_names_every_module(package: str, begin: str, end: str) -> None:
    told = (ROOT / "ARCHITECTURE.md").read_text()
    table = told[told.index(begin) : told.index(end)]
    modules = {path.stem for path in (ROOT / package).glob("[!_]*.py")}
    assert modules - set(re.findall(r"`(\w+)`", table)) == set()
