"""A program: an async function, and what can be said of it without running it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from programs.errors import ProgramLoadError, ProgramParametersError

_VERSION_BYTES = 8
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Program:
    """`function` is called with a context and its parameters by name, and returns what JSON can hold.

    `check` refuses, by raising ProgramParametersError, what the parameters' types cannot: it is given the arguments
    when a run is asked for.
    """

    name: str
    version: str
    description: str
    parameters: type[BaseModel]
    function: Callable[..., Awaitable[Any]]
    check: Callable[[Mapping[str, Any]], None] | None = None

    @classmethod
    def of(
        cls,
        function: Callable[..., Awaitable[Any]],
        *,
        name: str | None = None,
        check: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Program:
        """From an async function: its first argument is the context, the others are the parameters.

        The version is a digest of its module's source. Raises ProgramLoadError when it is no such function.
        """
        label = f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', function)}"
        if not inspect.iscoroutinefunction(function):
            raise ProgramLoadError(f"{label} is no async function")
        return cls(
            name=name or function.__name__,
            version=_version(function),
            description=(inspect.getdoc(function) or "").partition("\n")[0].strip(),
            parameters=_parameters(function, label),
            function=function,
            check=check,
        )

    def arguments(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """What the function is called with. Raises ProgramParametersError, naming what is wrong."""
        try:
            validated = self.parameters.model_validate(dict(parameters))
        except ValidationError as error:
            raise ProgramParametersError(f"program {self.name}: {_complaints(error)}") from error
        fields = self.parameters.model_fields.items()
        arguments = {field.alias or name: getattr(validated, name) for name, field in fields}
        if self.check is not None:
            self.check(arguments)
        return arguments

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the parameters."""
        return self.parameters.model_json_schema()


def _parameters(function: Callable[..., Any], label: str) -> type[BaseModel]:
    taken = list(inspect.signature(function).parameters.values())
    if not taken or taken[0].kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY):
        raise ProgramLoadError(f"{label} does not take a context as its first argument")
    # the context's own type is nobody's concern: it may be known to type checkers alone
    said = {one.name: function.__annotations__[one.name] for one in taken[1:] if one.name in function.__annotations__}
    try:
        hints = get_type_hints(
            SimpleNamespace(__annotations__=said), vars(inspect.getmodule(function)), include_extras=True
        )
    except (NameError, TypeError) as error:
        raise ProgramLoadError(f"{label}: the type of a parameter is unknown: {error}") from error
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(taken[1:]):
        if parameter.kind not in _NAMED:
            raise ProgramLoadError(f"{label}: parameter {parameter} has no name to give it by")
        if parameter.name not in hints:
            raise ProgramLoadError(f"{label}: parameter {parameter.name} has no type")
        # under a name of their own, since a parameter may be called what a model's method is
        fields[f"parameter_{number}"] = _field(hints[parameter.name], parameter)
    try:
        return create_model(function.__name__, __config__=ConfigDict(extra="forbid", frozen=True), **fields)
    except Exception as error:  # whatever a type that cannot be validated makes pydantic raise
        raise ProgramLoadError(f"{label}: {error}") from error


def _field(kind: Any, parameter: inspect.Parameter) -> Any:
    named, default = Field(alias=parameter.name), parameter.default
    if isinstance(default, FieldInfo):
        return Annotated[kind, default, named]
    return Annotated[kind, named], ... if default is parameter.empty else default


def _version(function: Callable[..., Any]) -> str:
    source = inspect.getsourcefile(function)
    said = Path(source).read_bytes() if source and Path(source).is_file() else function.__code__.co_code
    return blake2b(said, digest_size=_VERSION_BYTES).hexdigest()


def _complaints(error: ValidationError) -> str:
    found = []
    for complaint in error.errors(include_url=False):
        where = ".".join(str(part) for part in complaint["loc"])
        said = "there is no such parameter" if complaint["type"] == "extra_forbidden" else complaint["msg"]
        found.append(f"{where}: {said}" if where else said)
    return "; ".join(found)
