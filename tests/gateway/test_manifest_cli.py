"""The verbs of rollback records as typed: alone, against an engine, with a gateway that keeps."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin_flags import TOKEN_VARIABLE
from gateway.cli import main
from gateway.manifest import Record, canonical, document, overlay, seal
from gateway.manifest_fields import RecordError, nested
from gateway.manifest_files import fields_of, read_sealed, sealed_beside
from loadgen.engine.launch import EngineProcess
from tests.gateway.controlled import TOKENS, WHOLE
from tests.gateway.records import EXAMPLE, OTHER, args_of
from tests.gateway.records import WHOLE as FIELDS
from tests.gateway.test_launch_record import POD
from tests.gateway.test_operate_cli import Running, running

Said = pytest.CaptureFixture[str]
ARGS = args_of(seal(FIELDS))
CHANGED = "[args]\nmax_num_batched_tokens = 2048\nmax_num_seqs = 32\n"
UNTOLD = ("image.digest", "model.revision", "model.tokenizer_revision", "deployment.revision")


def run(*words: object) -> int:
    return main(["manifest", *map(str, words)])


def failing(capsys: Said, *words: object) -> str:
    assert run(*words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    return said.err


@pytest.fixture
def sealed(tmp_path: Path, capsys: Said) -> Path:
    path = tmp_path / "baseline.json"
    assert run("seal", "--from", EXAMPLE, "--out", path) == 0
    capsys.readouterr()
    return path


@pytest.fixture
def live(record: Record, engine: EngineProcess, tmp_path: Path) -> tuple[Path, Path]:
    """A record of the engine that runs, and a launch record of its start."""
    path, launch = tmp_path / "live.json", tmp_path / "launch.json"
    path.write_text(json.dumps(document(record)))
    launch.write_text(json.dumps({"effective_args": args_of(record)}))
    return path, launch


@pytest.fixture
def gateway(
    engine: EngineProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Running]:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKENS["ben"][0])
    with running(tmp_path / "gw", WHOLE.replace("http://127.0.0.1:8001", engine.url)) as found:
        yield found


def audit(gateway: Running) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {TOKENS['ben'][0]}"}
    told = httpx.get(f"{gateway.url}/admin/audit", headers=headers).json()
    assert told["chain"] == "whole"
    return [row for row in told["entries"] if row["action"].startswith("manifest")]


# -- alone ---------------------------------------------------------------------------------


def test_the_shipped_example_seals_and_is_told_by_its_digest(tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    command = [sys.executable, "-m", "gateway", "manifest", "seal", "--from", EXAMPLE, "--out", out]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_sealed(out).digest == seal(FIELDS).digest
    assert done.stdout == f"{out}: sealed, digest {seal(FIELDS).digest}\n"


def test_the_same_fields_as_json_make_the_same_record(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "fields.json").write_text(json.dumps(nested(FIELDS)))
    assert run("seal", "--from", tmp_path / "fields.json", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["digest"] == seal(FIELDS).digest
    assert told["file"] == str(tmp_path / "fields.sealed.json")


def test_a_sealed_file_is_not_overwritten_by_another_record(sealed: Path, capsys: Said) -> None:
    assert run("seal", "--from", EXAMPLE, "--out", sealed) == 0
    capsys.readouterr()
    change = sealed.with_name("change.toml")
    change.write_text(CHANGED)
    said = failing(capsys, "seal", "--from", change, "--parent", sealed, "--out", sealed)
    assert f"{sealed}: holds another record" in said


def test_an_incomplete_record_names_file_and_fields(tmp_path: Path, capsys: Said) -> None:
    text = EXAMPLE.read_text()
    for line in ('speculative_config = "null"\n', "seed = 0\n", 'owner = "inference-platform"'):
        assert line in text
        text = text.replace(line, "")
    (tmp_path / "partial.toml").write_text(text)
    said = failing(capsys, "seal", "--from", tmp_path / "partial.toml")
    assert f"{tmp_path}/partial.toml: can't be sealed: 3 fields are missing: " in said
    assert "owner" in said
    assert "args.seed" in said
    assert "args.speculative_config" in said
    assert not (tmp_path / "partial.sealed.json").exists()


def test_a_candidate_is_an_overlay_and_its_difference_is_shown(sealed: Path, capsys: Said) -> None:
    change, out = sealed.with_name("c1.toml"), sealed.with_name("c1.json")
    change.write_text(CHANGED)
    digest = read_sealed(sealed).digest
    # The parent by its digest, of a sealed file beside the input.
    assert run("seal", "--from", change, "--parent", digest[:12], "--out", out) == 0
    assert f"over {digest}, with 2 fields changed" in capsys.readouterr().out
    assert read_sealed(out).parent == digest
    assert run("diff", sealed, out) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("which lies over it: 2 fields")
    assert lines[1:] == [
        "  args.max_num_batched_tokens: 8192 -> 2048",
        "  args.max_num_seqs: 128 -> 32",
    ]
    assert run("diff", out, sealed, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["overlay"] is False
    assert told["changes"][1] == {"field": "args.max_num_seqs", "before": 32, "after": 128}


def test_a_record_is_shown_whole_and_as_the_command_that_starts_it(
    sealed: Path, capsys: Said
) -> None:
    assert run("show", sealed) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"digest {read_sealed(sealed).digest}\nparent -\n")
    assert all(f"  {name} = " in said for name in FIELDS)
    assert run("show", sealed, "--flags") == 0
    said = capsys.readouterr().out
    assert said.startswith("vllm serve /models/demo")
    assert "--no-enable-prefix-caching" in said
    assert "--max-num-seqs 128" in said
    assert "speculative" not in said
    assert run("show", sealed, "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(sealed.read_text())


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.toml", "owner = ", "x.toml: not TOML: "),
        ("x.json", "{", "x.json: not JSON: "),
        ("x.json", "[]", "x.json: holds no table of fields"),
        ("x.toml", "args = 3", "x.toml: args: must be a table"),
    ],
)
def test_an_input_that_cannot_be_read_is_named(
    name: str, content: str, said: str, tmp_path: Path, capsys: Said
) -> None:
    (tmp_path / name).write_text(content)
    assert said in failing(capsys, "seal", "--from", tmp_path / name)


def test_other_files_that_cannot_be_used_are_named(
    sealed: Path, tmp_path: Path, capsys: Said
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    words = ("seal", "--from", EXAMPLE, "--out", tmp_path / "o.json")
    assert f"{bad}: not JSON" in failing(capsys, *words, "--baseline", bad)
    assert f"{bad}: not JSON" in failing(capsys, "show", bad)
    bad.write_text("{}")
    assert f"{bad}: not a captured baseline" in failing(capsys, *words, "--baseline", bad)
    assert f"{bad}: not a sealed rollback record" in failing(capsys, "show", bad)
    at = ("verify", sealed, "--engine", "http://127.0.0.1:9", "--launch-record", bad)
    assert f"{bad}: shows no arguments" in failing(capsys, *at)
    nowhere = tmp_path / "none" / "o.json"
    assert f"{nowhere}: can't be written" in failing(
        capsys, "seal", "--from", EXAMPLE, "--out", nowhere
    )


def test_a_tampered_file_is_refused_everywhere(sealed: Path, capsys: Said) -> None:
    sealed.write_text(sealed.read_text().replace('"max_num_seqs": 128', '"max_num_seqs": 256'))
    for words in (("show", sealed), ("diff", sealed, sealed), ("verify", sealed, "--engine", "x")):
        assert "changed after it was sealed" in failing(capsys, *words)


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        ({"kind": "decision", "synthetic": True, "verdict": "retune(C1)"}, "is no evidence"),
        ({"kind": "report"}, "not a decision of the bench"),
    ],
)
def test_a_synthetic_decision_is_refused_as_evidence(
    decision: dict[str, Any], said: str, tmp_path: Path, capsys: Said
) -> None:
    path = tmp_path / "decision.json"
    path.write_text(json.dumps(decision))
    words = ("seal", "--from", EXAMPLE, "--out", tmp_path / "b.json", "--decision", path)
    assert f"{path}: {said}" in failing(capsys, *words)


def test_a_real_decision_is_kept_in_the_record(tmp_path: Path, capsys: Said) -> None:
    path, out = tmp_path / "decision.json", tmp_path / "b.json"
    path.write_text('{"kind": "decision", "synthetic": false, "verdict": "retain"}')
    assert run("seal", "--from", EXAMPLE, "--out", out, "--decision", path) == 0
    capsys.readouterr()
    assert run("show", out) == 0
    assert ": retain\n" in capsys.readouterr().out
    assert read_sealed(out).digest != seal(FIELDS).digest


def test_a_captured_baseline_and_a_tokenizer_fill_what_is_left_out(
    tmp_path: Path,
    folder: Path,
    capsys: Said,
) -> None:
    head, _, _ = EXAMPLE.read_text().partition("[args]")
    lines = (line for line in head.splitlines() if not line.startswith("tokenizer_probe"))
    (tmp_path / "rest.toml").write_text("\n".join(lines))
    told = {"version": FIELDS["image.version"], "model": FIELDS["model.id"]}
    captured = {"kind": "baseline", "args": ARGS, "engine": told}
    (tmp_path / "b0.json").write_text(json.dumps(captured))
    fill = ("--baseline", tmp_path / "b0.json", "--tokenizer", folder / "tiny.json")
    assert run("seal", "--from", tmp_path / "rest.toml", *fill) == 0
    made = read_sealed(tmp_path / "rest.sealed.json")
    assert args_of(made) == ARGS
    capsys.readouterr()
    words = ("seal", "--from", EXAMPLE, "--out", tmp_path / "x.json")
    assert "is not that of" in failing(capsys, *words, "--tokenizer", folder / "tiny.json")
    (tmp_path / "b0.json").write_text(json.dumps({**captured, "args": {**ARGS, "seed": 9}}))
    said = failing(capsys, *words, "--baseline", tmp_path / "b0.json")
    assert "args.seed is 9, the input says 0" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("verify", "SEALED"), "name an engine with --engine"),
        (("verify", "SEALED", "--pool", "a"), "--pool: needs --admin-url"),
        (
            ("verify", "SEALED", "--engine", "http://127.0.0.1:9", "--accept-unverified", "owner"),
            "--accept-unverified: is written to a gateway's audit",
        ),
        (("show", "nowhere.json"), "nowhere.json: no such file"),
        (("show", "abcdef0123"), "abcdef0123: no sealed record"),
        (("seal", "--from", "none.toml"), "none.toml: can't be read"),
        (("seal", "--from", "SEALED"), "is sealed already"),
    ],
)
def test_what_cannot_be_done_names_what_is_at_fault(
    words: tuple[str, ...], said: str, sealed: Path, capsys: Said
) -> None:
    assert said in failing(capsys, *(str(sealed) if w == "SEALED" else w for w in words))


# -- against an engine ---------------------------------------------------------------------


def test_verify_exits_by_its_verdict_and_names_each_field(
    live: tuple[Path, Path],
    engine: EngineProcess,
    capsys: Said,
) -> None:
    path, launch = live
    at = ("--engine", engine.url)
    assert run("verify", path, *at) == 4
    said = capsys.readouterr().out
    assert f"{engine.url}: unverifiable" in said
    assert 'args.scheduling_policy: recorded "fcfs"; the engine does not tell' in said
    assert "not compared: abort, capacity, drain_deadline_s, health_probe, owner, route (" in said
    assert run("verify", path, *at, "--launch-record", launch, "--json") == 4
    told = json.loads(capsys.readouterr().out)["engines"][0]
    left = {row["field"] for row in told["fields"] if row["state"] == "unverifiable"}
    assert left == set(UNTOLD)
    launch.write_text(launch.read_text().replace('"max_num_seqs": 128', '"max_num_seqs": 64'))
    assert run("verify", path, *at, "--launch-record", launch) == 3
    said = capsys.readouterr().out
    assert "args.max_num_seqs: recorded 128, found 64 (launch record)" in said
    assert run("verify", path, "--engine", "http://127.0.0.1:9") == 1
    assert "http://127.0.0.1:9/health" in capsys.readouterr().err


def test_a_pod_that_proves_everything_verifies(
    record: Record,
    engine: EngineProcess,
    tmp_path: Path,
    capsys: Said,
) -> None:
    proof = {
        "effective_args": args_of(record),
        "image_digest": "sha256:" + "1" * 64,
        "deployment_revision": "7",
        "model_revision": record.fields["model.revision"],
        "tokenizer_revision": record.fields["model.tokenizer_revision"],
    }
    made = overlay(record, {"image.digest": "sha256:" + "1" * 64})
    (tmp_path / "r.json").write_text(json.dumps(document(made)))
    (tmp_path / "proof.json").write_text(json.dumps(proof))
    words = ("verify", tmp_path / "r.json", "--engine", engine.url, "--launch-record")
    assert run(*words, tmp_path / "proof.json") == 0
    assert ": verified" in capsys.readouterr().out
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    assert run(*words, tmp_path / "pod.json") == 3  # the pod of another model
    assert "launch_record (model.id)" in capsys.readouterr().out


# -- with a gateway ------------------------------------------------------------------------


def test_a_gateway_keeps_records_once_and_writes_who_sealed_them(
    gateway: Running, tmp_path: Path, capsys: Said
) -> None:
    at = ("--admin-url", gateway.url)
    words = ("seal", "--from", EXAMPLE, "--out", tmp_path / "b.json", *at)
    assert run(*words, "--why", "before the canary") == 0
    assert f"kept by {gateway.url}" in capsys.readouterr().out
    digest = read_sealed(tmp_path / "b.json").digest
    assert run(*words) == 0
    (entry,) = audit(gateway)
    assert (entry["who"], entry["why"]) == ("ben", "before the canary")
    assert entry["detail"] == {"digest": digest, "parent": None}
    capsys.readouterr()
    assert run("show", digest[:10], *at, "--json") == 0
    assert json.loads(capsys.readouterr().out)["digest"] == digest
    (tmp_path / "b.json").unlink()
    (tmp_path / "c1.toml").write_text(CHANGED)
    over = ("seal", "--from", tmp_path / "c1.toml", "--parent", digest, *at)
    assert run(*over) == 0
    listed = gateway_says(gateway, "/admin/manifests")["manifests"]
    assert [row["parent"] for row in listed if row["digest"] != digest] == [digest]
    assert {row["owner"] for row in listed} == {"inference-platform"}


def gateway_says(gateway: Running, path: str, body: Any = None, who: str = "ben") -> Any:
    headers = {"authorization": f"Bearer {TOKENS[who][0]}"}
    if body is None:
        return httpx.get(gateway.url + path, headers=headers).json()
    answer = httpx.post(gateway.url + path, headers=headers, content=canonical(body))
    return {"status": answer.status_code, **answer.json()}


def test_a_gateway_holds_a_record_against_its_pool_and_audits_what_was_accepted(
    gateway: Running, live: tuple[Path, Path], capsys: Said, tmp_path: Path
) -> None:
    at = ("--pool", "a", "--admin-url", gateway.url)
    path, launch = live
    assert run("verify", path, *at) == 1
    assert "has no route to pool 'a'" in capsys.readouterr().err
    facts = gateway_says(gateway, "/admin/manifests?pool=a")["gateway"]
    own = {name: value for name, value in read_sealed(path).fields.items() if "route." not in name}
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps(document(seal({**own, **facts}))))
    accept = [word for name in UNTOLD for word in ("--accept-unverified", name)]
    words = ("verify", mine, *at, "--launch-record", launch)
    assert run(*words) == 4
    assert run(*words, *accept, "--why", "no registry here") == 0
    assert "model.revision: recorded" in capsys.readouterr().out
    newest = audit(gateway)[0]
    assert (newest["who"], newest["why"]) == ("ben", "no registry here")
    assert newest["detail"]["seen_from"] == "gateway"
    (told,) = newest["detail"]["engines"]
    assert (told["verdict"], set(told["accepted_unverified"])) == ("verified", set(UNTOLD))
    assert told["launch_record_sha256"]
    other = overlay(read_sealed(mine), {"capacity.slots": OTHER["capacity.slots"]})
    mine.write_text(json.dumps(document(other)))
    assert run(*words, *accept) == 3
    assert "capacity.slots: recorded 127, found 128 (gateway)" in capsys.readouterr().out


def test_an_acceptance_at_an_engine_asked_from_here_is_audited_too(
    gateway: Running,
    live: tuple[Path, Path],
    engine: EngineProcess,
    capsys: Said,
) -> None:
    path, launch = live
    accept = [word for name in UNTOLD for word in ("--accept-unverified", name)]
    words = ("verify", path, "--engine", engine.url, "--launch-record", launch, *accept)
    assert run(*words, "--admin-url", gateway.url) == 0
    assert "accepted" in capsys.readouterr().out
    (entry,) = audit(gateway)
    assert entry["detail"]["seen_from"] == "operator"
    assert set(entry["detail"]["engines"][0]["accepted_unverified"]) == set(UNTOLD)


def test_the_endpoints_refuse_what_is_wrong_and_who_may_not(gateway: Running, sealed: Path) -> None:
    base = read_sealed(sealed)
    body = {"manifest": document(overlay(base, {"args.seed": 4}))}
    said = gateway_says(gateway, "/admin/manifests", body)
    assert (said["status"], "send that record first" in said["error"]) == (400, True)
    assert gateway_says(gateway, "/admin/manifests", body, "anna")["status"] == 403
    assert gateway_says(gateway, "/admin/manifests", {"manifest": 3})["status"] == 400
    assert gateway_says(gateway, "/admin/manifests", [1])["status"] == 400
    headers = {"authorization": f"Bearer {TOKENS['ben'][0]}"}
    broken = httpx.post(f"{gateway.url}/admin/manifests", headers=headers, content=b"{")
    assert (broken.status_code, "not JSON" in broken.json()["error"]) == (400, True)
    at = "/admin/manifests/verifications"
    assert gateway_says(gateway, at, {"manifest": "0" * 64, "pool": "a"})["error"].endswith(
        "no such record is kept here"
    )
    assert gateway_says(gateway, at, {"pool": "a"})["error"].startswith("manifest: ")
    assert gateway_says(gateway, at, {"found": [3]})["status"] == 400
    assert gateway_says(gateway, at, {}, "anna")["status"] == 403
    assert "error" in gateway_says(gateway, "/admin/manifests?digest=abc")
    assert audit(gateway) == []


def test_a_kept_record_that_was_tampered_with_is_named_and_not_used(
    gateway: Running, sealed: Path
) -> None:
    base = document(read_sealed(sealed))
    assert gateway_says(gateway, "/admin/manifests", {"manifest": base})["new"] is True
    state = gateway.held.control.trail.state
    state.put("manifest", base["digest"], {**base, "parent": "0" * 64})
    (row,) = gateway_says(gateway, "/admin/manifests")["manifests"]
    assert "changed after it was sealed" in row["fault"]
    said = gateway_says(gateway, f"/admin/manifests?digest={base['digest']}")["error"]
    assert said.startswith(f"manifest {base['digest']}, kept here: changed after")
    other = document(seal({**FIELDS, "owner": "me"}))
    state.put("manifest", base["digest"], other)
    assert "another record" in gateway_says(gateway, "/admin/manifests")["manifests"][0]["fault"]


def test_an_engine_asked_from_here_is_held_against_a_gateways_side_too(
    gateway: Running, sealed: Path, engine: EngineProcess, capsys: Said
) -> None:
    at = ("--engine", engine.url, "--pool", "a", "--admin-url", gateway.url)
    assert run("verify", sealed, *at, "--json") == 3
    (told,) = json.loads(capsys.readouterr().out)["engines"]
    found = {row["field"]: (row["state"], row["seen"], row["by"]) for row in told["fields"]}
    assert found["capacity.engines"] == ("drifted", 1, "gateway")
    assert found["health_probe.failures"] == ("matched", 3, "gateway")
    assert found["route.demo/short"] == ("drifted", None, "the gateway has no such route")
    assert all(name.startswith(("abort.", "owner")) for name in told["not_compared"])


def test_an_engine_that_speaks_tls_is_verified_by_the_given_authority(
    sealed: Path, tmp_path: Path, capsys: Said
) -> None:
    words = ("verify", sealed, "--engine", "https://127.0.0.1:9", "--engine-ca-file")
    said = failing(capsys, *words, tmp_path / "none.pem")
    assert said.startswith(f"error: --engine-ca-file: {tmp_path}/none.pem ")


def test_a_pool_whose_engine_cannot_be_asked_verifies_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKENS["ben"][0])
    made = tmp_path / "r.json"
    routed = {n: v for n, v in FIELDS.items() if "route." not in n} | {"route.m/short": "a"}
    made.write_text(json.dumps(document(seal(routed))))
    with running(tmp_path / "gw", WHOLE.replace("127.0.0.1:8001", "127.0.0.1:9")) as gateway:
        assert run("verify", made, "--pool", "a", "--admin-url", gateway.url) == 1
        assert audit(gateway) == []
    assert "the engine can't be asked: http://127.0.0.1:9/health" in capsys.readouterr().err


def test_a_key_that_stands_twice_is_refused_and_named(tmp_path: Path) -> None:
    source = tmp_path / "twice.json"
    source.write_text('{"owner": "a", "args": {"seed": 0, "seed": 1}}')
    with pytest.raises(RecordError, match=r"twice\.json: not JSON: 'seed' stands there twice"):
        fields_of(source)
    with pytest.raises(RecordError, match=r"twice\.json: not JSON: 'seed' stands there twice"):
        read_sealed(source)


def test_a_folder_among_the_records_is_passed_by(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    assert sealed_beside(tmp_path, "0" * 64) is None
