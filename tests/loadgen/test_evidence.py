import io
import lzma
import tarfile
from pathlib import Path

import pytest

from loadgen.evidence import RECORDS, pack, unpack, unpacked
from loadgen.record import BenchError
from loadgen.report_file import write_report
from loadgen.results import verify_folder
from tests.loadgen.conftest import ROOT

PUBLISHED = sorted(p.parent for p in (ROOT / "deploy/evidence").glob("*/plan.json"))


def archived(path, *entries):
    with tarfile.open(path / RECORDS, mode="w:xz") as archive:
        for name, kind in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, 1 if kind == tarfile.REGTYPE else 0
            archive.addfile(entry, io.BytesIO(b"x"))
    return path


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_what_is_published_follows_from_its_records(folder):
    with unpacked(folder) as whole:
        assert verify_folder(whole) == []


def test_there_is_published_evidence():
    assert {folder.name.rsplit("-", 3)[0] for folder in PUBLISHED} >= {"h200-arms", "h200-sweep"}


def test_packed_and_taken_apart_again_a_sweep_is_the_same_but_for_keys(swept, tmp_path):
    start = swept / "starts" / "01-r1-B0-1"
    start.mkdir(parents=True)
    (start / "gateway.log").write_text("a line")
    (start / "keys.toml").write_text("digests")
    (swept / "runs" / "r9.part").mkdir()
    (swept / "runs" / "r9.part" / "config.json").write_text("{}")
    assert pack(swept, tmp_path / "packed") < 1e6
    unpack(tmp_path / "packed", tmp_path / "again")
    left = {"keys.toml"}

    def held(folder):
        files = {p for p in folder.rglob("*") if p.is_file() and p.name not in left}
        return {p.relative_to(folder): p.read_bytes() for p in files if ".part/" not in str(p)}

    assert held(tmp_path / "again") == held(swept)
    assert verify_folder(tmp_path / "again") == []


def test_the_same_folder_packs_to_the_same_bytes(sweep_once, tmp_path):
    for name in ("one", "two"):
        pack(sweep_once, tmp_path / name)
    assert (tmp_path / "one" / RECORDS).read_bytes() == (tmp_path / "two" / RECORDS).read_bytes()


def test_a_record_altered_in_packed_evidence_is_found(swept, tmp_path):
    pack(swept, tmp_path / "packed")
    unpack(tmp_path / "packed", tmp_path / "again")
    path = next((tmp_path / "again" / "runs").glob("*/requests.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    pack(tmp_path / "again", tmp_path / "packed")
    with unpacked(tmp_path / "packed") as whole:
        assert verify_folder(whole)


@pytest.mark.parametrize("change", [lambda page: page.replace(b"retune", b"retain"), None])
def test_a_report_altered_in_packed_evidence_is_found(swept, tmp_path, change):
    write_report(swept)
    pack(swept, tmp_path / "packed")
    with unpacked(tmp_path / "packed") as whole:
        assert verify_folder(whole) == []
    data = lzma.compress(change((swept / "report.html").read_bytes())) if change else b"garbage"
    (tmp_path / "packed" / "report.html.xz").write_bytes(data)
    if change is None:
        with pytest.raises(BenchError, match=r"report.html.xz: damaged"):
            unpack(tmp_path / "packed", tmp_path / "out")
        return
    with unpacked(tmp_path / "packed") as whole:
        assert [line.split(":")[0] for line in verify_folder(whole)] == ["report.html"]


def test_a_folder_that_is_not_packed_is_taken_as_it_is(sweep_once):
    with unpacked(sweep_once) as folder:
        assert folder == sweep_once


def test_nothing_is_overwritten_by_taking_apart(sweep_once, tmp_path):
    pack(sweep_once, tmp_path / "packed")
    with pytest.raises(BenchError, match="is there already"):
        unpack(tmp_path / "packed", tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        ("../outside", tarfile.REGTYPE),
        ("/tmp/outside", tarfile.REGTYPE),  # noqa: S108 - a name, never written
        ("runs/../../outside", tarfile.REGTYPE),
        ("runs/link", tarfile.SYMTYPE),
        ("runs/device", tarfile.CHRTYPE),
    ],
    ids=lambda entry: Path(entry[0]).name + str(entry[1]),
)
def test_an_archive_that_would_write_elsewhere_is_refused(tmp_path, entry):
    with pytest.raises(BenchError, match="not a file of packed evidence"):
        unpack(archived(tmp_path, entry), tmp_path / "out")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("data", [b"", b"not xz", lzma.compress(b"not tar")[:-9]])
def test_a_damaged_archive_is_named(tmp_path, data):
    (tmp_path / RECORDS).write_bytes(data)
    with pytest.raises(BenchError, match="not packed evidence"):
        unpack(tmp_path, tmp_path / "out")
