"""The schema that an engine's grammar is made of, for another JSON Schema: pure.

SGLang's grammars know less than JSON Schema: some keywords they refuse (`not`, `if`, `contains`, `uniqueItems`,
`multipleOf`, ...), some they pass over in silence (`allOf` of several, whatever stands beside `$ref` or `anyOf`). So
they are given only what they keep, and as much of it as can be said in their words. What they write is then validated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from programs.library.schema_check import Satisfiable
from programs.library.schema_form import TYPES, Form, Schema, key_of, listed_values
from programs.library.schema_forms import SchemaForms

_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer", "relative-json-pointer"}
    | {"time", "uri", "uri-reference", "uri-template", "uuid"}
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_OF_KIND = {
    "integer": _NUMBERS,
    "fraction": _NUMBERS,
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems"}),
    "object": frozenset(
        {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
        | {"minProperties", "maxProperties", "dependentRequired"}
    ),
}
_LARGEST_INTEGER = 10**18
"""Grammars, and JSON as we write it, count in 64 bits; without any bound a model may go on with digits for ever."""
_LARGEST_NUMBER = 10**15
_MOST_MULTIPLES = 100
_UNUSABLE = re.compile(r"\(\?(?!:)|\\[1-9bBAZpPk]|[*+?}][?+]")
"""In patterns: groups that look around or have names, references, word boundaries, lazy quantifiers."""


def guide(forms: SchemaForms, *, relaxed: bool = False) -> dict[str, Any]:
    """What has to be written for a value of the whole schema.

    `relaxed`: for a text that need not say everything. Arrays may be empty, and what objects would have to have may be
    null; all properties that they speak of are asked for. An array's items are as the schema wants them, and so is what
    cannot be put together from parts.
    """
    return _Writer(forms).whole(forms.root, relaxed)


class _Writer:
    def __init__(self, forms: SchemaForms) -> None:
        self._forms = forms
        self._check = Satisfiable(forms)
        self._defs: dict[str, Any] = {}
        self._names: dict[tuple[str, bool, bool], str] = {}

    def whole(self, schema: Schema, relaxed: bool) -> dict[str, Any]:
        written = self._written(schema, relaxed, relaxed and self._atomic(schema))
        return {**written, "$defs": self._defs} if self._defs else written

    def _named(self, schema: Schema, relaxed: bool, nullable: bool) -> dict[str, Any]:
        """A schema within another: under a name of its own if it could hold itself."""
        if not any(form.types & {"array", "object"} and form.values is None for form in self._forms.forms(schema)):
            return self._written(schema, relaxed, nullable)
        key = key_of(schema), relaxed, nullable
        if key not in self._names:
            name = self._names[key] = f"part{len(self._names)}"
            self._defs[name] = self._written(schema, relaxed, nullable)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _written(self, schema: Schema, relaxed: bool, nullable: bool) -> dict[str, Any]:
        forms = self._forms.forms(schema)
        if any(_says_nothing(form) for form in forms):
            return {}
        mergeable = (self._forms.object_form(schema), self._forms.list_form(schema)) if relaxed else ()
        choices = [self._kind(form, kind, form in mergeable) for form in forms for kind in self._kinds(form)]
        if nullable:
            choices.append({"type": "null"})
        distinct = list({key_of(choice): choice for choice in choices}.values())
        return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}

    def _kinds(self, form: Form) -> list[str]:
        """Its types that are possible; where it allows any, those that it says something of."""
        kinds = [kind for kind in sorted(form.types) if self._check.form_reason(form, kind) is None]
        if form.values is not None:
            return kinds[:1]
        spoken = [kind for kind in kinds if any(rule.keys() & _OF_KIND.get(kind, frozenset()) for rule in form.rules)]
        return spoken if form.types == TYPES and spoken else kinds

    def _kind(self, form: Form, kind: str, relaxed: bool) -> dict[str, Any]:
        if form.values is not None:
            return {"enum": list(form.values)}
        match kind:
            case "integer" | "fraction":
                return _number(form)
            case "string":
                return _string(form)
            case "array":
                return self._array(form, relaxed)
            case "object":
                return self._object(form, relaxed)
            case _:
                return {"type": kind}

    def _array(self, form: Form, relaxed: bool) -> dict[str, Any]:
        items = [form.item(index) for index in range(form.prefix + 1)]
        possible = [not self._check.reason(item) for item in items]
        able = items if all(possible) else items[: possible.index(False)]
        if not able:
            return {"enum": [[]]}
        written: dict[str, Any] = {"type": "array"}
        if form.prefix:
            written["prefixItems"] = [self._named(item, False, False) for item in able[: form.prefix]]
        closed = len(able) <= form.prefix
        written["items"] = False if closed else self._named(able[-1], False, False)
        bounds = {name: form.bounds[name] for name in ("minItems", "maxItems") if name in form.bounds}
        if relaxed and not form.prefix:
            bounds.pop("minItems", None)
        if closed:
            bounds["maxItems"] = min(bounds.get("maxItems", len(able)), len(able))
        return written | bounds

    def _object(self, form: Form, relaxed: bool) -> dict[str, Any]:
        names = [name for name in form.names if self._may_have(form, name)]
        asked = [] if relaxed else [*form.required]
        if relaxed and "maxProperties" not in form.bounds:
            asked = names
        properties = {}
        for name in names:
            member = form.member(name)
            nullable = relaxed and (name not in form.required or self._atomic(member))
            properties[name] = self._named(member, relaxed, nullable)
        written = {"type": "object", "properties": properties, "required": asked, **self._others(form, names)}
        kept = ("maxProperties",) if relaxed else ("minProperties", "maxProperties")
        return written | {name: form.bounds[name] for name in kept if name in form.bounds}

    def _others(self, form: Form, names: list[str]) -> dict[str, Any]:
        """Properties that have no name in the schema: where it says what they are, or nothing is there without."""
        patterns = [pattern for given in form.said("patternProperties") for pattern in given]
        usable = [pattern for pattern in patterns if _usable(pattern)]
        if usable and not names:
            kept = {_whole(one): self._named(_by_pattern(form, one), False, False) for one in usable}
            return {"patternProperties": kept, "additionalProperties": False}
        rest = form.unnamed
        wanted = isinstance(rest, dict) or not names or form.bounds.get("minProperties", 0) > len(names)
        listed = any(listed_values(given) for given in form.said("propertyNames"))
        if listed or not wanted or self._check.reason(rest):
            return {"additionalProperties": False}
        return {"additionalProperties": self._named(rest, False, False)}

    def _may_have(self, form: Form, name: str) -> bool:
        allowed = all(self._forms.valid(name, rule) for rule in form.said("propertyNames"))
        return allowed and self._check.reason(form.member(name)) is None

    def _atomic(self, schema: Schema) -> bool:
        """Whether a value is one thing, that is there or not."""
        return self._forms.object_form(schema) is None and self._forms.list_form(schema) is None


def _says_nothing(form: Form) -> bool:
    keywords = frozenset().union(*_OF_KIND.values())
    return form.types == TYPES and form.values is None and not any(rule.keys() & keywords for rule in form.rules)


def _number(form: Form) -> dict[str, Any]:
    bounds = {name: bound for name, bound in form.bounds.items() if name.endswith("imum")}
    if "fraction" in form.types:
        kept = {name: bound for name, bound in bounds.items() if abs(bound) <= _LARGEST_NUMBER}
        return {"type": "number", **kept}
    low, high = _integers(bounds)
    steps = form.said("multipleOf")
    if steps and low is not None and high is not None:
        step = math.lcm(*(int(one) if one == int(one) else 1 for one in steps))
        multiples = range(math.ceil(low / step) * step, high + 1, step)
        if len(multiples) <= _MOST_MULTIPLES:
            return {"enum": list(multiples)}
    low = -_LARGEST_INTEGER if low is None else low
    high = _LARGEST_INTEGER if high is None else high
    near = max(abs(low), abs(high)) <= _LARGEST_INTEGER
    return {"type": "integer", **({"minimum": low, "maximum": high} if near else {})}


def _integers(bounds: dict[str, Any]) -> tuple[int | None, int | None]:
    """The first and the last integer within bounds."""
    lows = [math.ceil(bounds["minimum"])] if "minimum" in bounds else []
    lows += [math.floor(bounds["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in bounds else []
    highs = [math.floor(bounds["maximum"])] if "maximum" in bounds else []
    highs += [math.ceil(bounds["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in bounds else []
    return max(lows, default=None), min(highs, default=None)


def _string(form: Form) -> dict[str, Any]:
    """With one of pattern, length and format: SGLang refuses two at once, and validation forgives formats alone."""
    written: dict[str, Any] = {"type": "string"}
    patterns = [pattern for pattern in form.said("pattern") if _usable(pattern)]
    lengths = {name: form.bounds[name] for name in ("minLength", "maxLength") if name in form.bounds}
    formats = [name for name in form.said("format") if name in _FORMATS]
    if patterns:
        return written | {"pattern": _whole(patterns[0])}
    if formats and not lengths:
        written["format"] = formats[0]
    return written | lengths


def _usable(pattern: str) -> bool:
    return _UNUSABLE.search(pattern) is None


def _whole(pattern: str) -> str:
    """A pattern for a whole string: in a schema it need only be somewhere in it, for a grammar it is all of it."""
    begins, ends = pattern.startswith("^"), re.search(r"(?<!\\)(\\\\)*\$$", pattern) is not None
    inner = pattern.removeprefix("^")
    inner = inner[:-1] if ends else inner
    return f"^{'' if begins else '.*'}({inner}){'' if ends else '.*'}$"


def _by_pattern(form: Form, pattern: str) -> Schema:
    found: Iterator[Schema] = (given[pattern] for given in form.said("patternProperties") if pattern in given)
    return next(found)
