"""A model's own chat template, rendered as Hugging Face renders it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from programs.errors import TemplateError, TemplateRefusedError


class ChatTemplate:
    """A compiled chat template.

    The environment is the one of `transformers.utils.chat_template_utils` (a sandbox with trimmed blocks, loop
    controls, `tojson`, `raise_exception` and `strftime_now`), but for the clock: the date is an argument, so that a
    session keeps the one it started with.

    Raises TemplateError, naming the line, when the source does not compile.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        environment = _environment()
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from error

    @property
    def knows_developer(self) -> bool:
        """Whether the template has a rule of its own for the developer role."""
        return "developer" in self.source

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
                strftime_now=now.strftime,
                **variables,
            )
        except TemplateRefusedError:
            raise
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise TemplateError(f"the model's chat template failed on these messages: {error}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    return environment


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
