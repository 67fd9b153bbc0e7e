"""Seals rollback records: decides their canonical form, digest, completeness and differences.

A record is the flat mapping of its fields (``manifest_fields``), the digest of the record it lies
over, and the decision it rests on. It is sealed by the SHA-256 of its canonical form: JSON in
UTF-8, object keys sorted by code point, no white space, no NaN or infinity, and a float without a
fraction written as an integer, so that 60 and 60.0 are one value (RFC 8785 agrees on all of this
for the numbers and names that occur here). The digest covers everything but itself. A candidate
is an overlay: a sealed record with some fields changed, sealed anew with the first one's digest
as its parent. Pure: no I/O, no clock.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from gateway.manifest_fields import RecordError, Scalar, flat, nested, shaped

__all__ = [
    "ABSENT",
    "Change",
    "Decision",
    "Record",
    "abort_rules",
    "canonical",
    "decision_of",
    "diff",
    "document",
    "opened",
    "overlay",
    "seal",
]

KIND = "rollback-record"
FORMAT = 1
EXACT = 2**53
DIGEST = re.compile("[0-9a-f]{64}")


class _Absent:
    """No value at all, which is something else than null."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class Decision:
    """What the bench decided, and the digest of the file that says so."""

    sha256: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Record:
    """A sealed record. Only ``seal``, ``overlay`` and ``opened`` make one."""

    fields: Mapping[str, Scalar]
    digest: str
    parent: str | None = None
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs; ``ABSENT`` where a record does not have it."""

    field: str
    before: Scalar
    after: Scalar


def canonical(value: Any) -> bytes:
    """The one form that a value is digested in.

    Raises:
        RecordError: it holds what JSON has no word for, or a number that JSON readers round.
    """
    try:
        return orjson.dumps(_plain(value), option=orjson.OPT_SORT_KEYS)
    except (TypeError, RecursionError, orjson.JSONEncodeError) as error:
        raise RecordError(f"has no canonical form: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if value != value or abs(value) > EXACT:  # noqa: PLR0124  NaN alone differs from itself
        raise RecordError(f"{value}: no number that every JSON reader keeps")
    return int(value) if value == int(value) else value


def seal(
    fields: Mapping[str, Scalar], parent: str | None = None, decision: Decision | None = None
) -> Record:
    """Seal a whole record.

    Raises:
        RecordError: naming every field that is missing or wrong.
    """
    shaped(fields)
    kept = orjson.loads(canonical(nested(fields)))
    return Record(flat(kept), _digest(kept, parent, decision), parent, decision)


def overlay(
    base: Record, changes: Mapping[str, Scalar], decision: Decision | None = None
) -> Record:
    """Seal a candidate: ``base`` with some fields changed, which names ``base`` as its parent.

    Raises:
        RecordError: it changes nothing, or what comes out is no record.
    """
    made = seal({**base.fields, **changes}, base.digest, decision)
    if not diff(base, made):
        raise RecordError("changes nothing of the record it lies over")
    return made


def diff(before: Record, after: Record) -> tuple[Change, ...]:
    """Exactly the fields that differ, by name; parent, decision and digest are none."""
    names = sorted(before.fields.keys() | after.fields.keys())
    pairs = ((n, before.fields.get(n, ABSENT), after.fields.get(n, ABSENT)) for n in names)
    return tuple(Change(n, old, new) for n, old, new in pairs if _differ(old, new))


def _differ(one: Scalar, other: Scalar) -> bool:
    if one is ABSENT or other is ABSENT:
        return one is not other
    return canonical(one) != canonical(other)


def abort_rules(record: Record) -> list[dict[str, Any]]:
    """What a canary on the record is watched by, as ``thresholds.from_json`` reads it."""
    named = (name.partition(".") for name in record.fields)
    return [
        {"metric": metric, **record.fields[f"abort.{metric}"]}
        for section, _, metric in named
        if section == "abort"
    ]


def document(record: Record) -> dict[str, Any]:
    """The sealed record as it is written down."""
    return {**_body(nested(record.fields), record.parent, record.decision), "digest": record.digest}


def opened(found: Any) -> Record:
    """The record in a sealed document.

    Raises:
        RecordError: it is none, is incomplete, or was changed after it was sealed.
    """
    if not isinstance(found, Mapping) or found.get("kind") != KIND:
        raise RecordError(f"not a sealed rollback record (kind {KIND!r})")
    if found.get("format") != FORMAT:
        raise RecordError(f"format {found.get('format')!r}: this release reads {FORMAT}")
    if missing := {"parent", "decision", "record", "digest"} - found.keys():
        raise RecordError(f"a sealed record has {', '.join(sorted(missing))}")
    if not _is_digest_or_none(found["parent"]):
        raise RecordError("parent: must be a digest or null")
    told = {key: value for key, value in found.items() if key != "digest"}
    digest = sha256(canonical(told)).hexdigest()
    if digest != found["digest"]:
        raise RecordError(
            f"changed after it was sealed: its digest is {found['digest']}, its content's {digest}"
        )
    record = seal(_fields(found["record"]), found["parent"], _decision(found["decision"]))
    if record.digest != digest:  # content that no sealing writes
        raise RecordError(f"holds more than a record does; the record alone has {record.digest}")
    return record


def _is_digest_or_none(found: Any) -> bool:
    return found is None or (isinstance(found, str) and bool(DIGEST.fullmatch(found)))


def _fields(found: Any) -> dict[str, Scalar]:
    if not isinstance(found, Mapping):
        raise RecordError("record: must be an object")
    return flat(found)


def _decision(found: Any) -> Decision | None:
    if found is None:
        return None
    if not isinstance(found, Mapping) or found.keys() != {"sha256", "verdict"}:
        raise RecordError("decision: must have sha256 and verdict alone")
    if not all(isinstance(value, str) for value in found.values()):
        raise RecordError("decision: sha256 and verdict must be text")
    return Decision(**found)


def _body(tree: Any, parent: str | None, decision: Decision | None) -> dict[str, Any]:
    rests = None if decision is None else {"sha256": decision.sha256, "verdict": decision.verdict}
    return {"kind": KIND, "format": FORMAT, "parent": parent, "decision": rests, "record": tree}


def _digest(tree: Any, parent: str | None, decision: Decision | None) -> str:
    return sha256(canonical(_body(tree, parent, decision))).hexdigest()


def decision_of(content: bytes, *, candidate: bool) -> Decision:
    """What a decision of the bench says, if it may be evidence.

    Args:
        content: of its file.
        candidate: whether it is to carry a change; a baseline may also rest on "keep it".

    Raises:
        RecordError: it is none; engines or time were simulated; or it carries no change.
    """
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"not JSON: {error}") from error
    if not isinstance(found, Mapping) or found.get("kind") != "decision":
        raise RecordError("not a decision of the bench (kind 'decision')")
    if found.get("synthetic") is not False:
        raise RecordError("is no evidence: it is stamped synthetic, or not stamped at all")
    if candidate and found.get("deployable") is not True:
        reasons = found.get("not_deployable") or ["it is not marked deployable"]
        raise RecordError(f"does not carry a change: {'; '.join(map(str, reasons))}")
    return Decision(sha256(content).hexdigest(), str(found.get("verdict")))
