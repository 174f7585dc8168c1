"""What was found in several places becomes one valid value, and what differs is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from programs.library.merge import ABSENT, Found, filled, merged, missing
from programs.library.schema_form import key_of
from programs.library.schema_forms import SchemaForms

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "nick": {"type": ["string", "null"]}},
    "required": ["name", "nick"],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "year": {"type": "integer", "multipleOf": 5},
        "people": {"type": "array", "items": PERSON, "maxItems": 3},
        "place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "a/b~c": {"type": "boolean"}},
            "required": ["city"],
        },
        "kind": {"const": "report"},
        "notes": {"type": "array", "items": {"type": "string"}},
        "either": {"oneOf": [{"type": "object", "properties": {"x": {}}, "required": ["x"]}, {"type": "object"}]},
    },
    "additionalProperties": {"type": "integer"},
    "required": ["title", "people", "kind"],
}


def found(*values: Any) -> list[Found]:
    return [Found(value, "doc", number) for number, value in enumerate(values, 1)]


def merge(*values: Any, schema: Any = SCHEMA) -> Any:
    return merged(SchemaForms(schema), found(*values)).value


def conflicts(*values: Any, schema: Any = SCHEMA) -> dict[str, list[Any]]:
    """By path, the values that differ."""
    result = merged(SchemaForms(schema), found(*values))
    return {conflict.path: [one.value for one in conflict.found] for conflict in result.conflicts}


def test_objects_are_merged_by_property_and_what_has_no_choice_is_put_in() -> None:
    value = merge({"title": "A", "place": {"city": "Rome"}}, {"title": None, "year": 1995, "place": {"a/b~c": True}})
    assert value == {
        "title": "A",
        "year": 1995,
        "people": [],
        "place": {"city": "Rome", "a/b~c": True},
        "kind": "report",
    }


def test_arrays_are_united_and_an_item_that_says_less_than_another_is_left_out() -> None:
    ann, more = {"name": "Ann", "nick": None}, {"name": "Ann", "nick": None, "age": 30}
    bob = {"name": "Bob", "nick": "B"}
    assert merge({"people": [ann, bob]}, {"people": [more, bob]}, {"people": []})["people"] == [bob, more]
    assert merge({"notes": ["b", "a"]}, {"notes": ["a", "c", "b"]})["notes"] == ["b", "a", "c"]


def test_what_the_schema_does_not_allow_is_left_out() -> None:
    value = merge({"year": 1996, "people": [{"name": 1}]}, {"year": 2000, "extra": "x", "more": 3})
    assert value == {"people": [], "kind": "report", "year": 2000, "more": 3}


def test_the_value_that_is_found_most_often_wins_and_all_are_told() -> None:
    values = [{"title": "A", "more": 1}, {"title": "B"}, {"title": None}, {"title": "B", "more": 1.0}]
    assert merge(*values)["title"] == "B"
    assert conflicts(*values) == {"/title": ["A", "B", "B"]}
    places = merged(SchemaForms(SCHEMA), found(*values)).conflicts[0].found
    assert [(one.document, one.chunk) for one in places] == [("doc", 1), ("doc", 2), ("doc", 4)]


def test_the_first_of_equally_frequent_values_wins() -> None:
    assert merge({"title": "B"}, {"title": "A"})["title"] == "B"


def test_a_path_is_a_json_pointer() -> None:
    values = [{"place": {"a/b~c": True}}, {"place": {"a/b~c": False}}]
    assert conflicts(*values) == {"/place/a~1b~0c": [True, False]}


def test_an_array_that_may_not_hold_everything_is_a_conflict() -> None:
    people = [{"name": name, "nick": None} for name in "abcde"]
    values = [{"people": people[:3]}, {"people": people[2:]}, {"people": []}]
    assert merge(*values)["people"] == people[:3]
    assert conflicts(*values) == {"/people": [people[:3], people[2:]]}


def test_an_object_of_one_of_several_kinds_is_taken_whole() -> None:
    values = [{"either": {"x": 2, "y": 2}}, {"either": {"y": 1}}, {"either": {"z": 1}}]
    assert merge(*values)["either"] == {"y": 1}, "what two kinds allow is no value of oneOf"
    assert conflicts(*values) == {"/either": [{"y": 1}, {"z": 1}]}


def test_true_is_not_one() -> None:
    assert conflicts(1, True, 1.0, schema={}) == {"": [1, True, 1.0]}
    assert conflicts(1, 1.0, schema={}) == {}


def test_nothing_found_is_absent_unless_there_is_no_choice() -> None:
    assert merge(None, {}) is ABSENT
    assert merge(None, schema={"type": ["integer", "null"]}) is None
    assert merge(None, schema={"type": "array"}) == []
    assert merge(None, schema={"type": "object", "properties": {"a": {"const": 3}}, "required": ["a"]}) == {"a": 3}
    assert merge(None, schema={"type": "array", "minItems": 1}) is ABSENT


@pytest.mark.parametrize(
    ("value", "lacking"),
    [
        (ABSENT, [""]),
        ({}, ["/title", "/people", "/kind"]),
        ({"title": "A", "people": [], "kind": "report", "place": {}}, ["/place/city"]),
    ],
)
def test_what_is_missing_is_told_by_its_pointer(value: Any, lacking: list[str]) -> None:
    assert missing(SchemaForms(SCHEMA), SCHEMA, value) == lacking


def test_a_value_is_filled_with_what_it_lacks_alone() -> None:
    whole = {"title": "X", "people": [1], "place": {"city": "Y", "z": 1}, "n": [2]}
    assert filled({"title": "A", "people": [], "place": {"city": "B"}, "n": [3]}, whole) == {
        "title": "A",
        "people": [1],
        "place": {"city": "B", "z": 1},
        "n": [3],
    }
    assert filled(ABSENT, whole) == whole


NAMES = st.sampled_from(["a", "b", "c"])
LEAF_SCHEMAS = st.sampled_from(
    [{"type": "integer"}, {"type": "string"}, {"type": "boolean"}, {"enum": [1, "x"]}, {"type": ["integer", "null"]}]
)


def _object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda properties, required: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in required],
            "additionalProperties": False,
        },
        st.dictionaries(NAMES, inner, min_size=1),
        st.sets(NAMES),
    )


OBJECT_SCHEMAS = _object(
    st.recursive(
        LEAF_SCHEMAS,
        lambda inner: _object(inner) | st.builds(lambda items: {"type": "array", "items": items}, inner),
        max_leaves=5,
    )
)


def _part(schema: Any) -> st.SearchStrategy[Any]:
    """A value that may be null wherever the schema asks for one thing."""
    kind = schema.get("type")
    if kind == "object":
        members = {name: _part(member) for name, member in schema["properties"].items()}
        return st.fixed_dictionaries({}, optional=members)
    return st.lists(_whole(schema["items"]), max_size=3) if kind == "array" else st.none() | _whole(schema)


def _whole(schema: Any) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "integer":
            return st.integers(0, 2)
        case "string":
            return st.sampled_from(["p", "q"])
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(_whole(schema["items"]), max_size=3)
        case "object":
            members = {name: _whole(member) for name, member in schema["properties"].items()}
            needed = {name: member for name, member in members.items() if name in schema["required"]}
            rest = {name: member for name, member in members.items() if name not in needed}
            return st.fixed_dictionaries(needed, optional=rest)
        case _:
            return st.none() | st.integers(0, 2)


CASES = OBJECT_SCHEMAS.flatmap(lambda schema: st.tuples(st.just(schema), st.lists(_part(schema), max_size=4)))


@settings(max_examples=75)
@given(CASES)
def test_what_is_merged_of_valid_parts_is_valid_where_nothing_is_missing(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    forms = SchemaForms(schema)
    value = merged(forms, found(*values)).value
    lacking = missing(forms, schema, value)
    assert value is ABSENT or Draft202012Validator(schema).is_valid(value) == (not lacking)


def _scalars(value: Any, path: str = "") -> dict[str, set[str]]:
    """What is said at each place that is neither in an array nor an object or array itself."""
    if isinstance(value, dict):
        inner = [_scalars(one, f"{path}/{name}") for name, one in value.items()]
        return {place: said for one in inner for place, said in one.items()}
    return {} if value is None or isinstance(value, list) else {path: {key_of(value)}}


@settings(max_examples=75)
@given(CASES, st.randoms())
def test_conflicts_are_where_scalars_differ_and_nothing_but_the_order_of_places_depends_on_it(
    case: tuple[Any, list[Any]], dice: Any
) -> None:
    schema, values = case
    said: dict[str, set[str]] = {}
    for value in values:
        for path, more in _scalars(value).items():
            said[path] = said.get(path, set()) | more
    expected = {path for path, one in said.items() if len(one) > 1}
    assert set(conflicts(*values, schema=schema)) == expected
    shuffled = values[:]
    dice.shuffle(shuffled)
    assert set(conflicts(*shuffled, schema=schema)) == expected
    once, again = merge(*values, schema=schema), merge(*shuffled, schema=schema)
    assert (once is ABSENT) == (again is ABSENT)
    if not expected and once is not ABSENT:
        assert _unordered(once) == _unordered(again)


def _unordered(value: Any) -> Any:
    if isinstance(value, list):
        return frozenset(map(key_of, value))
    return {name: _unordered(one) for name, one in value.items()} if isinstance(value, dict) else key_of(value)
