"""Schemas that nothing satisfies are told from those that something does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from programs.errors import ImpossibleSchemaError, ProgramParametersError
from programs.library.schema_check import check_schema


def obj(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def one(schema: Any) -> dict[str, Any]:
    """An object that has to have `a`."""
    return obj(properties={"a": schema}, required=["a"])


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
FORBIDS_B = obj(properties={"a": {}}, additionalProperties=False)

IMPOSSIBLE: list[tuple[Any, str]] = [
    (False, "the value is forbidden"),
    ({"type": "integer", "minimum": 7, "maximum": 3}, "minimum 7 and maximum 3"),
    ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "exclusiveMinimum 1"),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "no multiple of 1"),
    ({"type": "integer", "minimum": 4, "maximum": 7, "multipleOf": 8}, "no multiple of 8"),
    ({"type": "number", "minimum": 0.1, "maximum": 0.2, "multipleOf": 0.3}, "no multiple of 3/10"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength 3 above maxLength 2"),
    ({"type": "array", "minItems": 3, "maxItems": 1}, "minItems 3 above maxItems 1"),
    (obj(minProperties=2, maxProperties=1), "minProperties 2 above maxProperties 1"),
    ({"enum": []}, "nothing is left"),
    ({"type": "integer", "enum": ["a"]}, "nothing is left"),
    ({"type": "string", "const": 3}, "nothing is left"),
    ({"const": 3, "enum": [4]}, "nothing is left"),
    ({"enum": [1, 2], "not": {"type": "number"}}, "nothing is left"),
    (one(False), "a is forbidden"),
    (one({"type": "integer", "minimum": 2, "maximum": 1}), "a has minimum 2 and maximum 1"),
    (obj(properties={"a": {}}, required=["b"], additionalProperties=False), "b is forbidden"),
    (obj(patternProperties={"^b": False}, required=["b"]), "b is forbidden"),
    (obj(required=["ab"], propertyNames={"maxLength": 1}), "propertyNames"),
    (obj(required=["a", "b"], maxProperties=1), "requires 2 properties, and may have 1"),
    (obj(properties={"a": {}}, minProperties=2, additionalProperties=False), "may have 1"),
    (obj(required=["a"], dependentRequired={"a": ["b"]}, properties={"b": False}), "b is forbidden"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "contradict"),
    ({"allOf": [{"const": 1}, {"const": 2}]}, "contradict"),
    ({"allOf": [FORBIDS_B, obj(required=["b"])]}, "b is forbidden"),
    ({"type": "integer", "minimum": 5, "allOf": [{"maximum": 3}]}, "minimum 5 and maximum 3"),
    ({"anyOf": [False, {"type": "integer", "minimum": 2, "maximum": 1}]}, "minimum 2"),
    ({"type": "object", "anyOf": [{"type": "string"}, {"type": "null"}]}, "contradict"),
    ({"if": {"type": "string"}, "then": False, "type": "string", "else": {"type": "integer"}}, "contradict"),
    ({"type": "array", "items": False, "minItems": 1}, "[] is forbidden"),
    ({"type": "array", "prefixItems": [{}, False], "minItems": 2}, "[] is forbidden"),
    ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3}, "there are 2"),
    ({"type": "array", "contains": False}, "[] is forbidden"),
    ({"type": "array", "contains": {}, "minContains": 3, "maxItems": 2}, "contain 3 items"),
    (one({"$ref": "#"}), "without end"),
    ({"$ref": "#/$defs/n", "$defs": {"n": obj(properties={"n": {"$ref": "#/$defs/n"}}, required=["n"])}}, "end"),
    ({"$ref": "#"}, "nothing but itself"),
    ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "nothing but itself"),
    (one({"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 1}, "minItems": 1}), "a[]"),
    # no schema, or one that is not read
    ({"type": "text"}, "not a JSON Schema, at /type"),
    ({"properties": []}, "not a JSON Schema"),
    ({"minLength": -1}, "not a JSON Schema"),
    ({"pattern": "("}, "pattern"),
    ({"$ref": "#/$defs/gone"}, "#/$defs/gone"),
    ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, "https://example.com/a.json"),
    ({"$ref": "#/title", "title": "t"}, "no schema"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"),
    ({"pattern": r"(a)\1"}, "backreferences are not supported"),
    ({"pattern": "b(?=a)"}, "look-around"),
    ({"patternProperties": {"(?<=a)b": {}}}, "look-around"),
    ({"patternProperties": {"a": {}}, "allOf": [{"unevaluatedProperties": False}]}, "unevaluatedProperties"),
    ({"description": "x" * 100_001}, "longer than 100000"),
    ({"allOf": [{"anyOf": [{"minimum": n} for n in range(20)]} for _ in range(3)]}, "more than 256"),
]

POSSIBLE: list[Any] = [
    True,
    {},
    {"type": "integer", "minimum": 3, "maximum": 3},
    {"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
    {"type": "number", "minimum": 0.3, "maximum": 0.3, "multipleOf": 0.1},
    {"type": ["integer", "null"], "minimum": 7, "maximum": 3},
    {"minimum": 7, "maximum": 3},
    obj(properties={"a": False}),
    obj(properties={"a": False, "b": {}}, minProperties=1),
    obj(properties={"a": False}, minProperties=1),
    {"type": "array", "items": False},
    {"type": "array", "prefixItems": [{}], "items": False, "minItems": 1},
    {"type": "array", "contains": False, "minContains": 0},
    {"enum": [1, "a"], "type": "string"},
    {"enum": [1.0], "type": "integer"},
    {"allOf": [{"const": 1}, {"const": 1.0}]},
    {"allOf": [obj(properties={"a": {"type": "integer"}}), obj(properties={"a": {"minimum": 3}}, required=["a"])]},
    {"anyOf": [False, {"type": "string"}]},
    {"oneOf": [{"type": "integer", "minimum": 2, "maximum": 1}, {"type": "string"}]},
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    {"$ref": "#/$defs/tree", "$defs": {"tree": obj(properties={"kids": {"type": "array", "items": {"$ref": "#"}}})}},
    {"$ref": "#leaf", "$defs": {"x": {"$anchor": "leaf", "type": "null"}}},
    {"$ref": "#/$defs/n", "minimum": 5, "$defs": {"n": {"type": "integer"}}},
    one({"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "type": "object"},
]


@pytest.mark.parametrize(("schema", "reason"), IMPOSSIBLE)
def test_a_schema_that_nothing_satisfies_is_refused_and_told_why(schema: Any, reason: str) -> None:
    with pytest.raises(ImpossibleSchemaError) as refused:
        check_schema(schema)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, ProgramParametersError)


@pytest.mark.parametrize("schema", POSSIBLE)
def test_a_schema_that_something_satisfies_is_taken(schema: Any) -> None:
    assert check_schema(schema).root == schema


def test_a_schema_nested_without_reason_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(2_000):
        schema = {"items": schema}
    with pytest.raises(ImpossibleSchemaError, match="nested more than"):
        check_schema(schema)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, "", "a", "ab"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
SCHEMAS = st.recursive(
    st.booleans()
    | st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"]),
            "enum": st.lists(VALUES, max_size=2),
            "minimum": st.integers(-2, 2),
            "exclusiveMaximum": st.integers(-2, 2),
            "multipleOf": st.sampled_from([2, 0.5]),
            "minLength": st.integers(0, 2),
            "maxLength": st.integers(0, 2),
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "required": st.lists(st.sampled_from("ab"), max_size=2, unique=True),
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(0, 2),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "if": inner,
            "then": inner,
            "not": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "contains": inner,
            "uniqueItems": st.booleans(),
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "additionalProperties": inner,
            "propertyNames": st.just({"maxLength": 1}),
        },
    ),
    max_leaves=5,
)


@settings(max_examples=200)
@given(schema=SCHEMAS, values=st.lists(VALUES, min_size=5, max_size=5))
def test_a_schema_that_a_value_satisfies_is_never_refused(schema: Any, values: list[Any]) -> None:
    if any(Draft202012Validator(schema).is_valid(value) for value in values):
        check_schema(schema)
