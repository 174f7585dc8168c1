"""What an engine's grammar is given says only what it keeps, and as much of it as it can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from jsonschema import Draft202012Validator

from programs.errors import ImpossibleSchemaError
from programs.library.guide import guide
from programs.library.schema_check import check_schema
from tests.programs.library.test_schema_check import POSSIBLE, SCHEMAS, VALUES

KEPT = frozenset(
    {"type", "enum", "anyOf", "$ref", "$defs", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"minLength", "maxLength", "pattern", "format", "items", "prefixItems", "minItems", "maxItems"}
    | {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"}
)
"""Keywords that SGLang's grammars keep (tests/real/test_extract.py asks it)."""


def written(schema: Any, *, relaxed: bool = False) -> dict[str, Any]:
    return guide(check_schema(schema), relaxed=relaxed)


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in schema.items():
        if keyword in ("properties", "patternProperties", "$defs"):
            inner = list(value.values())
        else:
            inner = value if keyword in ("anyOf", "prefixItems") else [value] if keyword != "enum" else []
        for one in inner:
            yield from parts(one)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"allOf": [{"type": "string"}, {"minLength": 2}, {"minLength": 1}]}, {"type": "string", "minLength": 2}),
        (
            {"$ref": "#/$defs/n", "minimum": 5, "$defs": {"n": {"type": "integer"}}},
            {"type": "integer", "minimum": 5, "maximum": 10**18},
        ),
        ({"type": "string", "anyOf": [{"type": "integer"}, {"const": "a"}]}, {"enum": ["a"]}),
        ({"enum": [1, 2, 3], "not": {"const": 2}}, {"enum": [1, 3]}),
        (
            {"type": "integer", "exclusiveMinimum": 1.5, "exclusiveMaximum": 4},
            {"type": "integer", "minimum": 2, "maximum": 3},
        ),
        ({"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 19}, {"enum": [5, 10, 15]}),
        ({"type": "number", "multipleOf": 5, "minimum": 1}, {"type": "number", "minimum": 1}),
        ({"type": "integer", "minimum": 10**19}, {"type": "integer"}),
        ({"minimum": 3}, {"type": "number", "minimum": 3}),
        ({"type": "string", "pattern": "b|c", "maxLength": 5}, {"type": "string", "pattern": "^.*(b|c).*$"}),
        ({"type": "string", "pattern": r"^a\$"}, {"type": "string", "pattern": r"^(a\$).*$"}),
        ({"type": "string", "pattern": r"a\\$"}, {"type": "string", "pattern": r"^.*(a\\)$"}),
        ({"type": "string", "pattern": "^(?=a)b", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "colour"}, {"type": "string"}),
        ({"type": "array", "items": False}, {"enum": [[]]}),
        (
            {"type": "array", "prefixItems": [{"type": "null"}, False]},
            {"type": "array", "prefixItems": [{"type": "null"}], "items": False, "maxItems": 1},
        ),
        ({"title": "Anything"}, {}),
    ],
)
def test_a_schema_is_said_in_the_words_of_a_grammar(schema: Any, expected: Any) -> None:
    assert written(schema) == expected


def test_properties_that_cannot_be_are_left_out_and_those_that_must_be_are_put_in() -> None:
    schema = {
        "type": "object",
        "properties": {"a": False, "b": {"type": "null"}},
        "required": ["c"],
        "additionalProperties": {"type": "boolean"},
    }
    assert written(schema) == {
        "type": "object",
        "properties": {"b": {"type": "null"}, "c": {"type": "boolean"}},
        "required": ["c"],
        "additionalProperties": {"type": "boolean"},
    }


def test_relaxed_everything_is_asked_for_and_may_be_absent_but_in_items() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "tags": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
            "seen": {
                "type": "array",
                "items": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
            },
            "place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            "maybe": {"type": "object", "properties": {}},
        },
        "required": ["name", "tags", "place"],
    }
    relaxed = written(schema, relaxed=True)
    defs = relaxed["$defs"]
    shown = {
        name: defs[one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        for name, one in relaxed["properties"].items()
    }
    assert relaxed["required"] == list(schema["properties"])
    assert shown["name"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert shown["tags"] == {"type": "array", "items": {"type": "string", "minLength": 1}}
    assert shown["place"]["properties"]["city"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert {"type": "null"} in shown["maybe"]["anyOf"]
    items = defs[
        next(one for one in shown["seen"]["anyOf"] if one["type"] == "array")["items"]["$ref"].rpartition("/")[2]
    ]
    assert items["required"] == ["x"]
    assert items["properties"] == {"x": {"type": "boolean"}}


def test_a_schema_that_holds_itself_is_said_once() -> None:
    node = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    for relaxed in (False, True):
        said = written(schema, relaxed=relaxed)
        assert len(said["$defs"]) == 1
        assert (
            Draft202012Validator(said).is_valid(
                {"value": 1, "next": {"value": 2, "next": {"value": None if relaxed else 3, "next": None}}}
            )
            == relaxed
        )


@pytest.mark.parametrize("schema", POSSIBLE)
def test_it_is_a_schema_of_kept_words(schema: Any) -> None:
    for relaxed in (False, True):
        said = written(schema, relaxed=relaxed)
        Draft202012Validator.check_schema(said)
        for part in parts(said):
            assert set(part) <= KEPT
            assert not ({"$ref", "anyOf"} & set(part) and set(part) - {"$ref", "anyOf", "$defs"})


JUDGED_LATER = ("not", "if", "contains", "uniqueItems", "multipleOf", "oneOf", "propertyNames")


def keys(value: Any) -> set[str]:
    """Of all objects in a value."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


@settings(max_examples=200)
@example(schema={"properties": {"a": False}}, value={"a": None})
@given(schema=SCHEMAS, value=VALUES)
def test_what_it_allows_the_schema_allows_but_for_what_only_a_value_can_be_judged_by(schema: Any, value: Any) -> None:
    try:
        said = written(schema)
    except ImpossibleSchemaError:
        return
    Draft202012Validator.check_schema(said)
    if keys(value) & (keys(schema) - keys(said)):
        return  # a name that nothing may have is left out, and does not keep others from being written
    if not any(keyword in repr(schema) for keyword in JUDGED_LATER) and Draft202012Validator(said).is_valid(value):
        assert Draft202012Validator(schema).is_valid(value)
