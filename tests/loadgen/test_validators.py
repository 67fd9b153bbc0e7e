import pytest

from loadgen.events import Response
from loadgen.record import BenchError
from loadgen.validators import check_validator, task_fault


def response(text="", finish="stop", tokens=3):
    return Response((1, 2), finish, 5, tokens, None, True, text)


@pytest.mark.parametrize(
    ("validator", "good", "bad"),
    [
        ({"tokens": 3}, response(), response(tokens=4)),
        ({"tokens": 3}, response(), response(tokens=None)),
        ({"finish_reason": "stop"}, response(), response(finish="length")),
        ({"regex": "^a.c$"}, response("abc"), response("abcd")),
        ({"json_schema": {"type": "object"}}, response("{}"), response("[]")),
        ({"json_schema": True}, response("3"), response("{")),
    ],
)
def test_each_part_passes_what_it_allows_and_names_itself_otherwise(validator, good, bad):
    check_validator(validator, "line 1")
    assert task_fault(validator, good) is None
    assert task_fault(validator, bad) == f"validator_{next(iter(validator))}"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, "3", "true"),
        ({"type": ["string", "null"]}, "null", "3"),
        ({"type": "boolean"}, "false", "0"),
        ({"enum": [1, "b"]}, "1", "true"),
        ({"const": {"a": 1}}, '{"a":1}', '{"a":2}'),
        ({"required": ["a"]}, '{"a":1}', "{}"),
        ({"properties": {"a": {"type": "string"}}}, '{"b":1}', '{"a":1}'),
        ({"items": {"minimum": 2}}, "[2,3]", "[2,1]"),
        ({"maximum": 2}, "2", "2.5"),
        ({"minLength": 2, "maxLength": 3}, '"abc"', '"abcd"'),
        ({"minItems": 1, "maxItems": 2}, "[1]", "[]"),
        ({"pattern": "^x"}, '"xy"', '"yx"'),
        ({"anyOf": [{"const": 1}, {"const": 2}]}, "2", "3"),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, "2", "3"),
        ({"properties": {"a": {}}, "additionalProperties": False}, '{"a":1}', '{"b":1}'),
        ({"additionalProperties": {"type": "null"}}, '{"b":null}', '{"b":1}'),
        ({"title": "x", "properties": {"a": False}}, "{}", '{"a":1}'),
    ],
)
def test_a_schema_decides_as_json_schema_says(schema, good, bad):
    validator = {"json_schema": schema}
    check_validator(validator, "line 1")
    assert task_fault(validator, response(good)) is None
    assert task_fault(validator, response(bad)) == "validator_json_schema"


@pytest.mark.parametrize(
    ("validator", "reason"),
    [
        ({"length": 3}, r"validator\.length: not one of tokens"),
        ({"tokens": "3"}, "'3' is not a number of tokens"),
        ({"tokens": True}, "True is not a number of tokens"),
        ({"regex": "("}, "no regular expression"),
        ({"finish_reason": None}, "None is not a finish reason"),
        ({"json_schema": 3}, "a schema is an object, found int"),
        ({"json_schema": {"$ref": "#"}}, r"keyword '\$ref' is not supported"),
        ({"json_schema": {"items": {"oneOf": []}}}, "'oneOf' is not supported"),
        ({"json_schema": {"anyOf": [{"type": "text"}]}}, "'text' is not a JSON type"),
        ({"json_schema": {"properties": {"a": {"pattern": "["}}}}, "no regular expression"),
    ],
)
def test_a_validator_that_could_not_judge_is_refused_before_anything_runs(validator, reason):
    with pytest.raises(BenchError, match=f"line 1: .*{reason}"):
        check_validator(validator, "line 1")
