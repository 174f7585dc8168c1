"""What a JSON Schema allows, as alternatives without references and combinations: pure.

A schema that says `$ref`, `allOf`, `anyOf`, `oneOf` or `if` is brought to forms. Each form is a set of types and the
rules that all hold; a value that the schema allows fits one of them. The converse is not promised: `not`, `contains`
and the like stay rules, which only validating a value decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from programs.errors import ImpossibleSchemaError
from programs.library.patterns import matcher
from programs.library.schema_form import TYPES, Form, Schema, both, key_of, own_form, type_of
from programs.library.validation import SchemaValidator

_MOST_FORMS = 256
_DEEPEST = 64
_MOST_CHARS = 100_000


class SchemaForms:
    """The forms of a schema and of its parts. Raises ImpossibleSchemaError when it is no schema, or one not read here.

    `forms` raises it too, for a reference that leads nowhere or back to itself.
    """

    def __init__(self, root: Schema) -> None:
        self.root = root
        self._check(root)
        resource: Resource[Any] = DRAFT202012.create_resource(root)
        registry: Registry[Any] = Registry().with_resource("", resource)
        self._resolver = registry.resolver("")
        self._validator = SchemaValidator(root, registry=registry)
        self._forms: dict[str, tuple[Form, ...]] = {}
        self._known = {id(part) for part in _parts(root)}
        ending: set[str] = set()
        for part in _parts(root):
            self._require_end(part, (), ending)

    def valid(self, value: Any, schema: Schema) -> bool:
        return not any(True for _ in self.complaints(value, schema))

    def complaints(self, value: Any, schema: Schema) -> Iterator[str]:
        """What is wrong with a value under a part of this schema."""
        for error in self._validator.evolve(schema=schema).iter_errors(value):
            where = "".join(f"/{part}" for part in error.absolute_path)
            yield f"at {where or 'its root'}: {error.message[:300]}"

    def forms(self, schema: Schema) -> tuple[Form, ...]:
        """None: it allows nothing."""
        key = key_of(schema)
        if key not in self._forms:
            self._forms[key] = self._reduced(schema)
        return self._forms[key]

    def object_form(self, schema: Schema) -> Form | None:
        """The only form that is an object's, where there is just one: such objects can be put together by property."""
        return self._only(schema, "object")

    def list_form(self, schema: Schema) -> Form | None:
        """The only form that is an array's, if all its items are alike: such arrays can be united."""
        form = self._only(schema, "array")
        return None if form is None or form.prefix else form

    def _only(self, schema: Schema, kind: str) -> Form | None:
        found = [form for form in self.forms(schema) if kind in form.types]
        return found[0] if len(found) == 1 and found[0].values is None else None

    def _reduced(self, schema: Schema) -> tuple[Form, ...]:
        if schema is False:
            return ()
        if schema is True:
            return (Form(TYPES),)
        forms = [own_form(schema)]
        for choices in self._combined(schema):
            forms = [form & choice for form in forms for choice in choices]
            forms = [form for form in forms if form.types]
            if len(forms) > _MOST_FORMS:
                raise ImpossibleSchemaError(f"the schema combines more than {_MOST_FORMS} alternatives at one place")
        sifted = (self._sifted(form) for form in forms)
        return tuple(form for form in sifted if form.types and form.values != ())

    def _combined(self, schema: Mapping[str, Any]) -> Iterator[tuple[Form, ...]]:
        if "$ref" in schema:
            yield self._reduced(self._resolved(schema["$ref"]))
        for part in schema.get("allOf", ()):
            yield self._reduced(part)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                yield tuple(form for part in schema[keyword] for form in self._reduced(part))
        if "if" in schema and ("then" in schema or "else" in schema):
            held = both((schema["if"], schema.get("then", True)))
            missed = both(({"not": schema["if"]}, schema.get("else", True)))
            yield (*self._reduced(held), *self._reduced(missed))

    def _require_end(self, schema: Schema, seen: tuple[str, ...], ending: set[str]) -> None:
        """A schema that refers to itself for the same value says nothing, and no validation of it would end."""
        if isinstance(schema, bool):
            return
        if (reference := schema.get("$ref")) is not None and reference not in ending:
            if reference in seen:
                raise ImpossibleSchemaError(f"the schema's {reference} refers to nothing but itself")
            self._require_end(self._resolved(reference), (*seen, reference), ending)
            ending.add(reference)
        several = (part for keyword in ("allOf", "anyOf", "oneOf") for part in schema.get(keyword, ()))
        single = (schema[keyword] for keyword in ("if", "then", "else", "not") if keyword in schema)
        for part in (*several, *single):
            self._require_end(part, seen, ending)

    def _sifted(self, form: Form) -> Form:
        """With only those of its values that its types and rules allow."""
        if form.values is None:
            return form
        kept = [value for value in form.values if type_of(value) in form.types]
        kept = [value for value in kept if all(self.valid(value, rule) for rule in form.rules)]
        return Form(frozenset(map(type_of, kept)), form.rules, tuple(kept))

    def _resolved(self, reference: str) -> Schema:
        try:
            found: Schema = self._resolver.lookup(reference).contents
        except Unresolvable as error:
            raise ImpossibleSchemaError(
                f"the schema refers to {reference}, which is not in it; only what it holds itself can be referred to"
            ) from error
        if not isinstance(found, bool) and id(found) not in self._known:
            raise ImpossibleSchemaError(f"the schema refers to {reference}, which is no schema")
        return found

    def _check(self, root: Schema) -> None:
        if _depth(root) > _DEEPEST:
            raise ImpossibleSchemaError(f"the schema is nested more than {_DEEPEST} deep")
        if len(key_of(root)) > _MOST_CHARS:
            raise ImpossibleSchemaError(f"the schema is longer than {_MOST_CHARS} characters")
        try:
            Draft202012Validator.check_schema(root)
        except SchemaError as error:
            where = "".join(f"/{part}" for part in error.absolute_path)
            raise ImpossibleSchemaError(
                f"not a JSON Schema, at {where or 'its root'}: {error.message[:300]}"
            ) from error
        for part in _parts(root):
            if "$dynamicRef" in part or ("$id" in part and part is not root):
                raise ImpossibleSchemaError("the schema says $dynamicRef or a $id within it; say $ref and $defs")
            for pattern in (part.get("pattern", ""), *part.get("patternProperties", ())):
                matcher(pattern)
            if "unevaluatedProperties" in part and any("patternProperties" in one for one in _parts(root)):
                raise ImpossibleSchemaError("unevaluatedProperties is not read beside patternProperties")


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schemas in a schema, itself first."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for keyword, value in schema.items():
        if keyword in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            inner: Iterable[Any] = value.values()
        elif keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
            inner = value
        elif keyword in ("enum", "const", "default", "examples"):
            continue
        else:
            inner = (value,)
        for part in inner:
            yield from _parts(part)


def _depth(value: Any) -> int:
    """Levels of nesting, without recursion."""
    depth, level = 0, [value]
    while level and depth <= _DEEPEST:
        inner = [child for one in level for child in _children(one)]
        depth, level = depth + 1, inner
    return depth


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()
