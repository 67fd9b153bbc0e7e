"""Rollback records: canonical form, completeness, overlays, differences, tampering, evidence."""

import copy
import json
import random
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.manifest import (
    ABSENT,
    abort_rules,
    canonical,
    decision_of,
    diff,
    document,
    opened,
    overlay,
    seal,
)
from gateway.manifest_fields import RecordError, flat, nested
from gateway.thresholds import from_json
from tests.gateway.records import OTHER, WHOLE

SOME = st.sets(st.sampled_from(sorted(OTHER)), min_size=1)
LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
    | st.floats(-1e15, 1e15, allow_nan=False)
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


def shuffled(value: Any, order: random.Random) -> Any:
    """The same value, its objects' keys in another order."""
    if isinstance(value, list):
        return [shuffled(inner, order) for inner in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    order.shuffle(keys)
    return {key: shuffled(value[key], order) for key in keys}


def typed(value: Any) -> Any:
    """A value in which true is not 1, for comparing."""
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    return (isinstance(value, bool), value)


def test_there_is_another_value_for_every_field() -> None:
    assert OTHER.keys() == WHOLE.keys()
    assert all(canonical(OTHER[name]) != canonical(value) for name, value in WHOLE.items())


@given(VALUES, st.randoms())
def test_the_canonical_form_does_not_depend_on_the_order_of_keys(
    value: Any, order: random.Random
) -> None:
    form = canonical(value)
    assert canonical(shuffled(value, order)) == form
    assert typed(json.loads(form)) == typed(value)


@given(VALUES, VALUES)
def test_two_values_have_one_form_only_if_they_are_equal(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) is (typed(one) == typed(other))


def test_the_canonical_form_is_the_one_that_is_written_down() -> None:
    value = {"b": [1, 2.5, True, None], "a": {"é": "\n\u2028", "Z": 60.0, "z": -0.0}}
    form = canonical(value)
    assert form == '{"a":{"Z":60,"z":0,"é":"\\n\u2028"},"b":[1,2.5,true,null]}'.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53 + 1, b"bytes", {1: 2}])
def test_what_readers_of_json_would_change_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(RecordError):
        canonical({"x": value})


@given(SOME, st.randoms())
def test_a_changed_field_changes_the_digest_and_is_alone_in_the_difference(
    names: set[str], order: random.Random
) -> None:
    base = seal(WHOLE)
    changes = {name: OTHER[name] for name in names}
    made = overlay(base, changes)
    assert made.parent == base.digest != made.digest
    found = {change.field: change for change in diff(base, made)}
    assert found.keys() == names
    assert all(canonical(found[n].after) == canonical(OTHER[n]) for n in names)
    assert all(canonical(found[n].before) == canonical(WHOLE[n]) for n in names)
    fresh = seal(shuffled(dict(made.fields), order), base.digest)
    assert fresh.digest == made.digest
    assert diff(fresh, made) == ()


@given(SOME)
def test_an_overlay_taken_back_is_the_base_again_but_names_where_it_came_from(
    names: set[str],
) -> None:
    base = seal(WHOLE)
    made = overlay(base, {name: OTHER[name] for name in names})
    back = overlay(made, {name: WHOLE[name] for name in names})
    assert diff(base, back) == ()
    assert (back.parent, back.digest != base.digest) == (made.digest, True)


def test_an_overlay_may_add_arguments_and_must_change_something() -> None:
    base = seal(WHOLE)
    more = overlay(base, {"args.stream_interval": 4})
    (change,) = diff(base, more)
    assert (change.field, change.before, change.after) == ("args.stream_interval", ABSENT, 4)
    (gone,) = diff(more, base)
    assert gone.after is ABSENT
    with pytest.raises(RecordError, match="changes nothing"):
        overlay(base, {"args.max_num_seqs": WHOLE["args.max_num_seqs"]})


@given(st.sets(st.sampled_from(sorted(n for n in WHOLE if not n.startswith("route."))), min_size=1))
def test_a_record_that_misses_fields_is_not_sealed_and_each_is_named(names: set[str]) -> None:
    with pytest.raises(RecordError) as raised:
        seal({name: value for name, value in WHOLE.items() if name not in names})
    said, _, listed = str(raised.value).partition(" missing: ")
    assert set(listed.split(", ")) == names
    assert said.split()[0] == str(len(names))


def test_nothing_at_all_misses_every_field() -> None:
    with pytest.raises(RecordError) as raised:
        seal({})
    listed = set(str(raised.value).partition(" missing: ")[2].split(", "))
    assert listed == {n for n in WHOLE if not n.startswith("route.")} | {"route"}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("model.revision", "main", "model.revision: "),
        ("image.digest", "vllm/vllm-openai:latest", "image.digest: "),
        ("args.max_num_seqs", "many", "args.max_num_seqs: should be a valid integer"),
        ("args.enable_prefix_caching", 1, "args.enable_prefix_caching: "),
        ("args.api_key", "sk-1", "args: api_key is a secret"),
        ("abort.error_rate", {"window_s": 60, "min_count": 5}, "abort: error_rate: needs a limit"),
        ("abort.refusals", {"max": 2.0, "window_s": 60, "min_count": 5}, "abort: refusals: "),
        ("abort.ttft_attainment", {"max": 0.5, "window_s": 60, "min_count": 5}, "unknown key"),
        ("abort.latency", {"max": 1, "window_s": 60, "min_count": 5}, "abort.latency: unknown"),
        ("capacity.kv_tokens", 0, "capacity.kv_tokens: should be greater"),
        ("ownr", "me", "ownr: unknown field"),
        ("route.demo", "shared", "route.demo: "),
    ],
)
def test_a_wrong_field_is_named_with_the_reason_and_without_the_value(
    field: str, value: Any, said: str
) -> None:
    with pytest.raises(RecordError) as raised:
        seal({**WHOLE, field: value})
    assert said in str(raised.value)
    assert "sk-1" not in str(raised.value)


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(tree, dict):
        return [leaf for key, inner in tree.items() for leaf in leaves(inner, (*path, key))]
    return [path]


SEALED = document(overlay(seal(WHOLE), {"args.max_num_seqs": 32}))


@pytest.mark.parametrize("path", leaves(SEALED), ids=lambda path: ".".join(map(str, path)))
def test_whatever_is_changed_in_a_sealed_record_is_found_out(path: tuple[Any, ...]) -> None:
    tampered = copy.deepcopy(SEALED)
    place = tampered
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = "0" * 64
    with pytest.raises(RecordError):
        opened(tampered)
    del place[path[-1]]
    with pytest.raises(RecordError):
        opened(tampered)


def test_a_sealed_record_opens_as_what_was_sealed() -> None:
    evidence = decision_of(
        b'{"kind":"decision","synthetic":false,"verdict":"retain"}', candidate=False
    )
    record = seal(WHOLE, None, evidence)
    assert opened(json.loads(json.dumps(document(record)))) == record
    assert nested(flat(nested(WHOLE))) == nested(WHOLE)
    own = {key: value for key, value in document(record).items() if key != "digest"}
    assert sha256(canonical(own)).hexdigest() == record.digest


def test_a_record_resealed_with_something_beside_it_is_refused() -> None:
    body = {**document(seal(WHOLE)), "note": "x"}
    body["digest"] = sha256(canonical({k: v for k, v in body.items() if k != "digest"})).hexdigest()
    with pytest.raises(RecordError, match="more than a record"):
        opened(body)
    for none in (None, [], {"kind": "decision"}):
        with pytest.raises(RecordError, match="not a sealed rollback record"):
            opened(none)
    with pytest.raises(RecordError, match="format 2"):
        opened({**SEALED, "format": 2})


@pytest.mark.parametrize(
    ("decision", "candidate", "said"),
    [
        ({"kind": "decision", "synthetic": True, "deployable": True}, False, "no evidence"),
        ({"kind": "decision", "deployable": True}, True, "no evidence"),
        ({"kind": "analysis", "synthetic": False}, False, "not a decision"),
        (
            {"kind": "decision", "synthetic": False, "deployable": False,
             "not_deployable": ["the runs took place in virtual time"]},
            True,
            "virtual time",
        ),
    ],
)  # fmt: skip
def test_a_decision_that_proves_nothing_is_refused(
    decision: dict[str, Any], candidate: bool, said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        decision_of(json.dumps(decision).encode(), candidate=candidate)


def test_a_decision_is_kept_by_the_digest_of_its_file() -> None:
    content = (
        b'{"kind": "decision", "synthetic": false, "deployable": true, "verdict": "retune(C1)"}'
    )
    found = decision_of(content, candidate=True)
    assert (found.sha256, found.verdict) == (sha256(content).hexdigest(), "retune(C1)")
    with pytest.raises(RecordError, match="not JSON"):
        decision_of(b"{", candidate=True)


def test_the_abort_thresholds_are_those_that_a_canary_reads() -> None:
    rules = from_json(abort_rules(seal(WHOLE)))
    assert {str(rule.metric) for rule in rules} == {
        "error_rate", "refusals", "ttft_attainment", "stall_attainment", "oldest_age_s"
    }  # fmt: skip
    (errors,) = (rule for rule in rules if rule.metric == "error_rate")
    assert (errors.limit, errors.margin, errors.window_s, errors.min_count) == (0.02, 0.01, 60, 50)


@pytest.mark.parametrize("name", ["x; touch /tmp/y", "a b", "$(id)", "api-key", "a\nb", ""])
def test_no_argument_has_a_name_that_a_shell_or_a_terminal_would_act_on(name: str) -> None:
    with pytest.raises(RecordError, match="is no argument's name"):
        seal({**WHOLE, f"args.{name}": "1"})


def test_a_field_that_is_written_in_two_ways_is_refused() -> None:
    with pytest.raises(RecordError, match=r"image\.digest: stands there twice"):
        flat({"image": {"digest": "one"}, "image.digest": "another"})
