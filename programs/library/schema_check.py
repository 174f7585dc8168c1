"""Whether any value satisfies a JSON Schema: pure.

What is found impossible is; what is not may still be, by keywords that only a value can be judged by (`not`, `contains`
with `uniqueItems`, a pattern that no string of the length has). Such a schema is refused by the answers' validation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from programs.errors import ImpossibleSchemaError
from programs.library.schema_form import Form, Schema, key_of
from programs.library.schema_forms import SchemaForms

_MOST_STEPS = 20_000


def check_schema(schema: Schema) -> SchemaForms:
    """The forms of `schema`. Raises ImpossibleSchemaError, which says where nothing could be valid, and why."""
    forms = SchemaForms(schema)
    if (reason := Satisfiable(forms).reason(schema)) is not None:
        raise ImpossibleSchemaError(f"no value can satisfy this schema: {reason}")
    return forms


class Satisfiable:
    """What is possible by the forms of one schema. Raises ImpossibleSchemaError when that takes too long to see."""

    def __init__(self, forms: SchemaForms) -> None:
        self._forms = forms
        self._possible: set[str] = set()
        self._open: set[str] = set()
        self._steps = 0

    def reason(self, schema: Schema, where: str = "") -> str | None:
        """Why nothing satisfies the schema of what is `where` in a value; None: something may.

        A schema that needs itself has to end somewhere, so it is taken as impossible while it is looked into.
        """
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise ImpossibleSchemaError("the schema is too intricate to be checked")
        key = key_of(schema)
        if key in self._possible:
            return None
        if key in self._open:
            return f"{_place(where)} needs another of its own kind in itself, without end"
        self._open.add(key)
        try:
            reason = self._any(schema, where)
        finally:
            self._open.remove(key)
        if reason is None:
            self._possible.add(key)
        return reason

    def _any(self, schema: Schema, where: str) -> str | None:
        first: str | None = None
        for form in self._forms.forms(schema):
            for kind in sorted(form.types):
                if (reason := self.form_reason(form, kind, where)) is None:
                    return None
                first = first or reason
        return first or f"{_place(where)} {_nothing(schema)}"

    def form_reason(self, form: Form, kind: str, where: str = "") -> str | None:
        """The same for one of a form's types."""
        if form.values is not None:  # each of them has been validated
            return None
        match kind:
            case "integer" | "fraction":
                wrong = _numbers(form, kind)
            case "string":
                wrong = _crossed(form, "minLength", "maxLength")
            case "array":
                return self._array(form, where)
            case "object":
                return self._object(form, where)
            case _:
                return None
        return wrong and f"{_place(where)} {wrong}"

    def _array(self, form: Form, where: str) -> str | None:
        if wrong := _crossed(form, "minItems", "maxItems") or self._too_few_distinct(form):
            return f"{_place(where)} {wrong}"
        least = max([form.bounds.get("minItems", 0), *(rule.get("minContains", 1) for rule in _containing(form))])
        if least > form.bounds.get("maxItems", math.inf):
            return f"{_place(where)} has to contain {least} items, and may have {form.bounds['maxItems']}"
        for index in range(min(least, form.prefix + 1)):
            if reason := self.reason(form.item(index), f"{where}[]"):
                return reason
        for rule in _containing(form):
            if rule.get("minContains", 1) and (reason := self.reason(rule["contains"], f"{where}[]")):
                return reason
        return None

    def _too_few_distinct(self, form: Form) -> str | None:
        """Distinct items are asked for, more than there are."""
        least = form.bounds.get("minItems", 0)
        if least < 2 or form.prefix or True not in form.said("uniqueItems"):
            return None
        choices = self._forms.forms(form.item(0))
        if any(choice.values is None for choice in choices):
            return None
        count = len({key_of(value) for choice in choices for value in choice.values or ()})
        return f"has to have {least} distinct items, and there are {count} to choose from" if count < least else None

    def _object(self, form: Form, where: str) -> str | None:
        if wrong := _crossed(form, "minProperties", "maxProperties"):
            return f"{_place(where)} {wrong}"
        most = form.bounds.get("maxProperties", math.inf)
        if len(form.required) > most:
            return f"{_place(where)} requires {len(form.required)} properties, and may have {most}"
        for name in form.required:
            if not all(self._forms.valid(name, rule) for rule in form.said("propertyNames")):
                return f"{_place(where)} requires {name!r}, which its propertyNames forbid"
            if reason := self.reason(form.member(name), f"{where}.{name}"):
                return reason
        fewest: int = form.bounds.get("minProperties", 0)
        if fewest > len(form.required) and not form.said("patternProperties") and self.reason(form.unnamed, where):
            able = [name for name in form.names if self.reason(form.member(name), f"{where}.{name}") is None]
            if fewest > len(able):
                return f"{_place(where)} has to have {fewest} properties, and may have {len(able)}"
        return None


def _containing(form: Form) -> Iterator[Any]:
    return (rule for rule in form.rules if "contains" in rule)


def _crossed(form: Form, low: str, high: str) -> str | None:
    least, most = form.bounds.get(low), form.bounds.get(high)
    if least is not None and most is not None and least > most:
        return f"has {low} {least} above {high} {most}"
    return None


def _numbers(form: Form, kind: str) -> str | None:
    bounds = form.bounds
    low, high = _limit(bounds, "minimum", "exclusiveMinimum", max), _limit(bounds, "maximum", "exclusiveMaximum", min)
    said = " and ".join(f"{name} {bounds[name]}" for name in bounds if name.endswith("imum"))
    if low is not None and high is not None:
        open_ended = low in _exactly(bounds, "exclusiveMinimum") or high in _exactly(bounds, "exclusiveMaximum")
        if low > high or (low == high and open_ended):
            return f"has {said}"
    steps = [Fraction(str(step)) for step in form.said("multipleOf")] + ([Fraction(1)] if kind == "integer" else [])
    if low is None or high is None or not steps:
        return None
    step = _common(steps)
    first = math.ceil(low / step) * step
    if first in _exactly(bounds, "exclusiveMinimum"):
        first += step
    if first > high or first in _exactly(bounds, "exclusiveMaximum"):
        return f"has {said}, and between them is no multiple of {step}"
    return None


def _limit(bounds: dict[str, Any], inclusive: str, exclusive: str, strictest: Any) -> Fraction | None:
    given = [Fraction(str(bounds[name])) for name in (inclusive, exclusive) if name in bounds]
    return strictest(given) if given else None


def _exactly(bounds: dict[str, Any], name: str) -> tuple[Fraction, ...]:
    return (Fraction(str(bounds[name])),) if name in bounds else ()


def _common(steps: list[Fraction]) -> Fraction:
    """The least number that is a multiple of all."""
    numerator = math.lcm(*(step.numerator for step in steps))
    return Fraction(numerator, math.gcd(*(step.denominator for step in steps)))


def _place(where: str) -> str:
    return where.removeprefix(".") or "the value"


def _nothing(schema: Schema) -> str:
    if schema is False:
        return "is forbidden (its schema is false)"
    if isinstance(schema, dict) and ("enum" in schema or "const" in schema):
        return "has an enum or const of which nothing is left by its other keywords"
    return "has alternatives or conditions that contradict each other"
