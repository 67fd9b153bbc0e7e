"""The verbs of rollback records: seal one, say what changes, hold it against what runs, show it.

Exit codes: 0 done or verified; 1 an engine or gateway said no or can't be reached; 2 wrong usage,
or a record that can't be sealed or read; 3 drifted; 4 something could not be verified.
"""

import argparse
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from gateway.admin_flags import add_admin_flags
from gateway.command import Said, add_group, add_verb
from gateway.manifest import ABSENT, Change, Record, diff, document, overlay, seal
from gateway.manifest_fields import RecordError, Scalar
from gateway.manifest_files import (
    fields_of,
    read_decision,
    with_baseline,
    write_sealed,
)
from gateway.verify_cli import add_verify_verb, find_record, named_admins

__all__ = ["add_manifest_verbs"]

COMMIT = re.compile(r"[0-9a-f]{40,64}")
PROBE = "model.tokenizer_probe"


# -- seal ----------------------------------------------------------------------------------


def _seal(args: argparse.Namespace) -> int:
    admins = named_admins(args)
    out = args.out or args.source.with_suffix(".sealed.json")
    parent = None if args.parent is None else find_record(args.parent, args.source.parent, admins)
    try:
        record = _sealed(args, parent)
    except RecordError as error:
        raise RecordError(f"{args.source}: can't be sealed: {error}") from error
    write_sealed(record, out)
    for admin in admins:  # all of them are there before the first keeps it
        admin.get("/admin/manifests")
    for admin in admins:
        admin.post("/admin/manifests", {"manifest": document(record), "why": args.why})
    changes = diff(parent, record) if parent else ()
    if args.json:
        told = {"digest": record.digest, "parent": record.parent, "file": str(out)}
        _print_json({**told, "kept_by": [admin.url for admin in admins]})
        return 0
    print(f"{out}: sealed, digest {record.digest}")
    if parent:
        print(f"over {parent.digest}, with {_count(len(changes), 'field')} changed")
        _tell_changes(changes)
    for admin in admins:
        print(f"kept by {admin.url}")
    return 0


def _sealed(args: argparse.Namespace, parent: Record | None) -> Record:
    fields: dict[str, Scalar] = fields_of(args.source)
    if args.baseline is not None:
        fields = with_baseline(fields, args.baseline)
    if args.tokenizer is not None:
        from gateway.inspect_engine import probe_of_tokenizer  # noqa: PLC0415  slow to load

        found = probe_of_tokenizer(args.tokenizer)
        if fields.setdefault(PROBE, found) != found:
            raise RecordError(f"{PROBE}: is not that of {args.tokenizer}, which is {found}")
    evidence = None
    if args.decision is not None:
        evidence = read_decision(args.decision, candidate=parent is not None)
    return seal(fields, None, evidence) if parent is None else overlay(parent, fields, evidence)


# -- diff and show -------------------------------------------------------------------------


def _diff(args: argparse.Namespace) -> int:
    admins = named_admins(args)
    before, after = (find_record(ref, Path(), admins) for ref in (args.before, args.after))
    changes = diff(before, after)
    if args.json:
        rows = [{"field": c.field, **_sides(c)} for c in changes]
        over = after.parent == before.digest
        told = {"before": before.digest, "after": after.digest, "overlay": over}
        _print_json({**told, "changes": rows})
        return 0
    lies = ", which lies over it" if after.parent == before.digest else ""
    print(f"{before.digest[:12]} -> {after.digest[:12]}{lies}: {_count(len(changes), 'field')}")
    _tell_changes(changes)
    return 0


def _sides(change: Change) -> dict[str, Any]:
    sides = {"before": change.before, "after": change.after}
    return {key: value for key, value in sides.items() if value is not ABSENT}


def _tell_changes(changes: Sequence[Change]) -> None:
    for change in changes:
        print(f"  {change.field}: {_word(change.before)} -> {_word(change.after)}")


def _show(args: argparse.Namespace) -> int:
    record = find_record(args.record, Path(), named_admins(args))
    if args.json:
        _print_json(document(record))
    elif args.flags:
        print(" \\\n  ".join(_flags(record)))
    else:
        print(f"digest {record.digest}\nparent {record.parent or '-'}")
        if record.decision is not None:
            print(f"rests on decision {record.decision.sha256}: {record.decision.verdict}")
        for name, value in record.fields.items():
            print(f"  {name} = {_word(value)}")
    return 0


def _flags(record: Record) -> list[str]:
    """The lines of a command that starts the engine again with everything pinned."""
    fields = record.fields
    lines = [f"vllm serve {shlex.quote(fields['model.root'])}"]
    pinned = {"served_model_name": fields["model.id"]}
    for name in ("revision", "tokenizer_revision"):
        if COMMIT.fullmatch(fields[f"model.{name}"]):
            pinned[name] = fields[f"model.{name}"]
    args = {n.removeprefix("args."): v for n, v in fields.items() if n.startswith("args.")}
    for name, value in {**pinned, **args}.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            lines.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            text = value if isinstance(value, str) else _word(value)
            lines.append(f"--{flag} {shlex.quote(text)}")
    return lines


# -- what they share -----------------------------------------------------------------------


def _print_json(told: object) -> None:
    print(orjson.dumps(told).decode())


def _word(value: Any) -> str:
    return "absent" if value is ABSENT else json.dumps(value, ensure_ascii=False)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def add_manifest_verbs(verbs: Any, said: Said) -> None:
    """Declare ``manifest`` and its verbs."""
    group = add_group(verbs, "manifest", said["manifest"], _MANIFEST)
    _add_seal(group)
    two = add_verb(
        group, "diff", _diff, "say exactly what changes from one record to another", _DIFF
    )
    two.add_argument("before", metavar="RECORD", help="a sealed file, or a digest")
    two.add_argument("after", metavar="RECORD", help="a sealed file, or a digest")
    add_admin_flags(two, optional=True)
    add_verify_verb(group)
    show = add_verb(group, "show", _show, "print a sealed record", _SHOW)
    show.add_argument("record", metavar="RECORD", help="a sealed file, or a digest")
    show.add_argument(
        "--flags", action="store_true", help="print what to start the engine with, all pinned"
    )
    add_admin_flags(show, optional=True)


def _add_seal(group: Any) -> None:
    add = add_verb(group, "seal", _seal, "seal a whole record, or a candidate over one", _SEAL)
    add.add_argument(
        "--from", dest="source", type=Path, required=True, metavar="FILE", help="fields: TOML, JSON"
    )
    add.add_argument(
        "--parent", metavar="RECORD", help="the input is an overlay on this file or digest"
    )
    add.add_argument(
        "--decision", type=Path, metavar="FILE", help="the bench's decision.json it rests on"
    )
    add.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="take what is missing from a captured baseline",
    )
    add.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="take the probe from this tokenizer.json"
    )
    add.add_argument("--out", type=Path, metavar="FILE", help="default: beside it, .sealed.json")
    add.add_argument("--why", default="", metavar="TEXT", help="for the audit of --admin-url")
    add_admin_flags(add, optional=True)


_MANIFEST = """  sluicegate manifest seal --from deploy/manifests/baseline.toml --out baseline.json
  sluicegate manifest diff baseline.json candidate.json
  sluicegate manifest verify baseline.json --engine http://127.0.0.1:8001 --launch-record vllm.log
"""
_SEAL = """  sluicegate manifest seal --from deploy/manifests/baseline.toml --out baseline.json
  sluicegate manifest seal --from record.toml --baseline b0.json --tokenizer tokenizer.json
  sluicegate manifest seal --from c1.toml --parent baseline.json --decision out/sweep/decision.json
  sluicegate manifest seal --from record.toml --admin-url http://gw-1:8081 --why 'before C1'
"""
_DIFF = """  sluicegate manifest diff baseline.json candidate.json
  sluicegate manifest diff 3f2a9c1d 77e0b412 --admin-url http://127.0.0.1:8081 --json
"""
_SHOW = """  sluicegate manifest show baseline.json
  sluicegate manifest show baseline.json --flags      # the command line, everything pinned
"""
