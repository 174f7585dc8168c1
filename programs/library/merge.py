"""What was found in several places put together as one value of a JSON Schema: pure.

Objects are merged property by property, arrays are united, and of anything else that differs the value that was found
most often is taken, the first of these if there are several. What decides is the order of the places, not of time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from programs.library.schema_form import Form, Schema, key_of
from programs.library.schema_forms import SchemaForms


class Absent:
    """Nothing was found: not even null."""


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class Found:
    """A value, and where it was found: in which of a document's chunks, counted from 1."""

    value: Any
    document: str
    chunk: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Values of one place that differ. `path` is a JSON pointer into the merged value."""

    path: str
    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """`value` is ABSENT where nothing was found that the schema allows."""

    value: Any
    conflicts: tuple[Conflict, ...]


def merged(forms: SchemaForms, found: Sequence[Found]) -> Merged:
    """One value of what was `found`, in which null stands for what was not.

    What the schema does not allow at its place is left out, and so are items of arrays that say no more than another
    one does. What is required and not found is put in where there is no choice.
    """
    merger = _Merger(forms)
    value = merger.value(forms.root, found, "")
    return Merged(merger.implied(forms.root) if value is ABSENT else value, tuple(merger.conflicts))


def missing(forms: SchemaForms, schema: Schema, value: Any, path: str = "") -> list[str]:
    """JSON pointers of what is required and not there."""
    if value is ABSENT:
        return [path]
    form = forms.object_form(schema)
    if form is None or not isinstance(value, dict):
        return []
    names = dict.fromkeys((*value, *form.required))
    inner = (missing(forms, form.member(name), value.get(name, ABSENT), _at(path, name)) for name in names)
    return [pointer for one in inner for pointer in one]


def filled(partial: Any, whole: Any) -> Any:
    """`partial`, with what it lacks taken from `whole`."""
    if partial is ABSENT or partial == []:
        return whole
    if isinstance(partial, dict) and isinstance(whole, dict):
        return {name: filled(partial.get(name, ABSENT), whole.get(name)) for name in dict.fromkeys((*partial, *whole))}
    return partial


class _Merger:
    def __init__(self, forms: SchemaForms) -> None:
        self._forms = forms
        self.conflicts: list[Conflict] = []

    def value(self, schema: Schema, found: Sequence[Found], path: str) -> Any:
        found = [one for one in found if one.value is not None]
        if not found:
            return ABSENT
        form = self._forms.object_form(schema)
        if form is not None and all(isinstance(one.value, dict) for one in found):
            return self._object(form, found, path)
        form = self._forms.list_form(schema)
        if form is not None and all(isinstance(one.value, list) for one in found):
            return self._list(form, found, path)
        return self._atom(schema, found, path)

    def implied(self, schema: Schema) -> Any:
        """The value that is there when nothing was found; ABSENT: any might be."""
        if self._forms.valid(None, schema):
            return None
        forms = self._forms.forms(schema)
        if self._forms.list_form(schema) is not None and self._forms.valid([], schema):
            return []
        if len(forms) != 1:
            return ABSENT
        if forms[0].values is not None:
            return forms[0].values[0] if len(forms[0].values) == 1 else ABSENT
        if forms[0].types != {"object"}:
            return ABSENT
        value = {name: self.implied(forms[0].member(name)) for name in forms[0].required}
        return ABSENT if ABSENT in value.values() else value

    def _object(self, form: Form, found: Sequence[Found], path: str) -> Any:
        spoken = (name for one in found for name in one.value)
        value: dict[str, Any] = {}
        for name in dict.fromkeys((*form.names, *spoken)):
            inner = [Found(one.value[name], one.document, one.chunk) for one in found if name in one.value]
            if all(self._forms.valid(name, rule) for rule in form.said("propertyNames")):
                value[name] = self.value(form.member(name), inner, _at(path, name))
        if all(one is ABSENT for one in value.values()):
            return ABSENT
        for name in form.required:
            if value.get(name, ABSENT) is ABSENT:
                value[name] = self.implied(form.member(name))
        return {name: one for name, one in value.items() if one is not ABSENT}

    def _list(self, form: Form, found: Sequence[Found], path: str) -> list[Any]:
        schema = form.item(0)
        items = [item for one in found for item in one.value if self._forms.valid(item, schema)]
        kept = _distinct(items)
        most = form.bounds.get("maxItems", len(kept))
        if len(kept) > most:
            self.conflicts.append(Conflict(path, tuple(one for one in found if one.value)))
        return kept[:most]

    def _atom(self, schema: Schema, found: Sequence[Found], path: str) -> Any:
        able = [one for one in found if self._forms.valid(one.value, schema)]
        if not able:
            return ABSENT
        counts = Counter(key_of(one.value) for one in able)
        if len(counts) > 1:
            self.conflicts.append(Conflict(path, tuple(able)))
        return max(able, key=lambda one: counts[key_of(one.value)]).value


def _distinct(items: Sequence[Any]) -> list[Any]:
    """Each once, and of objects none that says no more than another does; null says nothing."""
    once: dict[str, Any] = {}
    for item in items:
        once.setdefault(key_of(item), item)
    said = {key: _said(item) for key, item in once.items() if isinstance(item, dict)}
    saying: dict[tuple[str, str], set[str]] = defaultdict(set)
    for key, pairs in said.items():
        for pair in pairs:
            saying[pair].add(key)

    def outdone(key: str) -> bool:
        as_much = set.intersection(*(saying[pair] for pair in said[key])) if said[key] else said
        return any(len(said[other]) > len(said[key]) for other in as_much)

    return [item for key, item in once.items() if key not in said or not outdone(key)]


def _said(value: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    return frozenset((name, key_of(one)) for name, one in value.items() if one is not None)


def _at(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
