"""A model's own chat template, rendered as Hugging Face renders it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from programs.errors import TemplateError, TemplateRefusedError

_CLOCK = "strftime_now"
_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template's own mistakes raise when it is rendered."""
_OF_EVERY_DICT = frozenset(dir(dict))


class ChatTemplate:
    """A compiled chat template.

    The environment is the one of `transformers.utils.chat_template_utils` (a sandbox with trimmed blocks, loop
    controls, `generation` blocks, `tojson`, `raise_exception` and `strftime_now`), but for the clock: the date is an
    argument, so that a session keeps the one it started with.

    Raises TemplateError, naming the line, when the source does not compile or uses a function, filter or test that
    does not exist, wherever that stands.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        environment = _environment()
        try:
            tree = environment.parse(source)
            for line, unknown in _unknown(tree, environment):
                raise TemplateError(f"chat template, line {line}: unknown {unknown}")
            self._knows_developer = any(const.value == "developer" for const in tree.find_all(nodes.Const))
            self.variables = frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load")
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from error
        except RecursionError as error:
            raise TemplateError("chat template: nested too deeply") from error

    @property
    def knows_developer(self) -> bool:
        """Whether the template has a rule of its own for the developer role."""
        return self._knows_developer

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        now: datetime,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text.

        Raises TemplateRefusedError with the template's own message when it refuses the messages, and TemplateError
        when it fails in any other way.
        """
        variables = {**self._special_tokens, "tools": None, "documents": None, **(arguments or {})}
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                **{**variables, _CLOCK: now.strftime},
            )
        except TemplateRefusedError:
            raise
        except _FAILURES as error:
            raise TemplateError(f"the model's chat template failed on these messages: {error}") from error


class _Generation(Extension):
    """`{% generation %}`: marks what the model writes, for training; here its body alone counts."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are jinja2's

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way to a dict's items and a namespace's variables: most of what templates look up."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _OF_EVERY_DICT:
            return obj[attribute]
        if type(obj) is Namespace and not attribute.startswith("_") and hasattr(obj, attribute):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    return environment


def _unknown(tree: nodes.Template, environment: jinja2.Environment) -> Iterator[tuple[int, str]]:
    """What the template uses and nobody defines, by line; jinja2 would tell only when it gets there.

    A name that the template itself looks for (`is defined`, `is filter`) is its own affair.
    """
    looked_for = set(_looked_for(tree))
    own = {"caller", "loop", "super", _CLOCK, *environment.globals, *looked_for}
    own |= {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    own |= {macro.name for macro in tree.find_all(nodes.Macro)}
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name not in own:
            yield call.lineno, f"function {call.node.name!r}"
    for used in tree.find_all(nodes.Filter):
        if used.name not in environment.filters and used.name not in looked_for:
            yield used.lineno, f"filter {used.name!r}"
    for test in tree.find_all(nodes.Test):
        if test.name not in environment.tests and test.name not in looked_for:
            yield test.lineno, f"test {test.name!r}"


def _looked_for(tree: nodes.Template) -> Iterator[str]:
    for test in tree.find_all(nodes.Test):
        match test.node:
            case nodes.Name(name=name) if test.name in {"defined", "undefined"}:
                yield name
            case nodes.Const(value=str(name)) if test.name in {"filter", "test"}:
                yield name


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateRefusedError(message)
