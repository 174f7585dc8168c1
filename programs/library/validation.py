"""JSON Schema's keywords as jsonschema has them, but for those that match patterns (`patterns.py` says why)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from programs.library.patterns import matcher


def _pattern(validator: Validator, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not matcher(pattern).found_in(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, inner in patterns.items():
            for name, value in instance.items():
                if matcher(pattern).found_in(name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, additional: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        patterns = schema.get("patternProperties", {})
        for name in (name for name in instance if name not in schema.get("properties", {})):
            if not any(matcher(pattern).found_in(name) for pattern in patterns):
                yield from validator.descend(instance[name], additional, path=name)


_extend: Any = extend
SchemaValidator: type[Any] = _extend(
    Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    },
)
