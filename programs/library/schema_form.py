"""One form that a JSON Schema's values have: types, and rules that all hold. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from programs.library.patterns import matcher

Schema = Mapping[str, Any] | bool

TYPES = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
"""JSON Schema's, but that a number is an integer or has a fraction."""
_TYPE_OF = {"number": frozenset({"integer", "fraction"})}
_LARGEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def key_of(value: Any) -> str:
    """Equal for values that JSON Schema calls equal: `1` and `1.0` are, `1` and `true` are not."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)


def type_of(value: Any) -> str:
    """One of TYPES."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def both(schemas: Iterable[Schema]) -> Schema:
    """A schema that allows what all of them do."""
    distinct = {key_of(schema): schema for schema in schemas if schema is not True and schema != {}}
    if not distinct:
        return True
    return next(iter(distinct.values())) if len(distinct) == 1 else {"allOf": list(distinct.values())}


@dataclass(frozen=True)
class Form:
    """`rules` are schemas of which all hold. `values`: it is one of these; None: it need not be."""

    types: frozenset[str]
    rules: tuple[Mapping[str, Any], ...] = ()
    values: tuple[Any, ...] | None = None

    def __and__(self, other: Form) -> Form:
        rules = {key_of(rule): rule for rule in (*self.rules, *other.rules)}
        values = self.values if other.values is None else other.values
        if self.values is not None and other.values is not None:
            shared = set(map(key_of, other.values))
            values = tuple(value for value in self.values if key_of(value) in shared)
        return Form(self.types & other.types, tuple(rules.values()), values)

    @cached_property
    def bounds(self) -> dict[str, Any]:
        """The strictest of each bound."""
        found: dict[str, Any] = {}
        for keywords, strictest in ((_LARGEST, max), (_SMALLEST, min)):
            for keyword in keywords:
                if given := self.said(keyword):
                    found[keyword] = strictest(given)
        return found

    def said(self, keyword: str) -> list[Any]:
        """What the rules say under a keyword, each that says anything."""
        return [rule[keyword] for rule in self.rules if keyword in rule]

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Names that an object must have, those included that others bring along."""
        names = dict.fromkeys(name for given in self.said("required") for name in given)
        waiting = list(names)
        while waiting:
            brought = [more for rule in self.said("dependentRequired") for more in rule.get(waiting[0], ())]
            waiting = [*waiting[1:], *(name for name in dict.fromkeys(brought) if name not in names)]
            names |= dict.fromkeys(brought)
        return tuple(names)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All properties that it speaks of by name, in the order in which it does."""
        spoken = [name for rule in self.rules for name in rule.get("properties", {})]
        named = [name for given in self.said("propertyNames") for name in listed_values(given)]
        return tuple(dict.fromkeys([*spoken, *self.required, *named]))

    def member(self, name: str) -> Schema:
        """The schema of an object's property."""
        return both(schema for rule in self.rules for schema in _property(rule, name))

    @property
    def unnamed(self) -> Schema:
        """The schema of properties that it does not speak of."""
        return both(self.said("additionalProperties"))

    @property
    def prefix(self) -> int:
        """How many of an array's items have a schema of their own."""
        return max((len(given) for given in self.said("prefixItems")), default=0)

    def item(self, index: int) -> Schema:
        """The schema of an array's item; of all those behind the prefix for `prefix` itself."""
        return both(_item(rule, index) for rule in self.rules)


def own_form(schema: Mapping[str, Any]) -> Form:
    """What a schema says itself, not what it combines or refers to."""
    types = TYPES
    if (given := schema.get("type")) is not None:
        named = [given] if isinstance(given, str) else given
        types = frozenset().union(*(_TYPE_OF.get(name, {name}) for name in named))
    values = schema.get("enum")
    if "const" in schema:
        equal = values is None or key_of(schema["const"]) in map(key_of, values)
        values = [schema["const"]] if equal else []
    return Form(types, (schema,), None if values is None else tuple(values))


def _property(rule: Mapping[str, Any], name: str) -> Iterator[Schema]:
    declared = rule.get("properties", {})
    matched = [
        schema for pattern, schema in rule.get("patternProperties", {}).items() if matcher(pattern).found_in(name)
    ]
    if name in declared:
        yield declared[name]
    yield from matched
    if name not in declared and not matched:
        yield rule.get("additionalProperties", True)


def _item(rule: Mapping[str, Any], index: int) -> Schema:
    prefix: Sequence[Schema] = rule.get("prefixItems", ())
    rest: Schema = rule.get("items", True)
    return prefix[index] if index < len(prefix) else rest


def listed_values(schema: Schema) -> list[Any]:
    """The values that a schema lists itself, if it does."""
    if not isinstance(schema, Mapping):
        return []
    return [schema["const"]] if "const" in schema else schema.get("enum", [])


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
