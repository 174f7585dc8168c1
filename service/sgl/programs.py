"""Functions under `@sgl.function` as programs: what can be said of them without running them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, create_model

from programs.runtime.program import Program
from service.sgl.interpreter import SglInterpreter

_KINDS: dict[str, Any] = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}
_LISTS: dict[str, Any] = {
    "str": list[str],
    "int": list[int],
    "float": list[float],
    "bool": list[bool],
    "list": list[list[Any]],
    "dict": list[dict[str, Any]],
}


def sgl_programs(interpreter: SglInterpreter, paths: tuple[str, ...]) -> dict[str, Program]:
    """By path. They are run by `SglWork` alone. Raises ProgramLoadError."""
    described = interpreter.describe(paths) if paths else []
    return {str(one["path"]): _program(one) for one in described}


def _program(described: dict[str, Any]) -> Program:
    return Program(
        name=described["name"],
        version=described["version"],
        description=described["description"],
        parameters=_parameters(described["name"], described["parameters"]),
        function=_elsewhere,
    )


async def _elsewhere(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError("this program runs in another process")


def _parameters(name: str, parameters: Iterable[dict[str, Any]]) -> type[BaseModel]:
    """Of no type where the function says none."""
    fields: dict[str, Any] = {}
    for number, one in enumerate(parameters):
        kind = _KINDS.get(one["type"], Any)
        if "items" in one:
            kind = _LISTS[one["items"]]
        # under a name of its own, since a parameter may be called what a model's method is
        fields[f"parameter_{number}"] = (Annotated[kind, Field(alias=one["name"])], one.get("default", ...))
    return create_model(name, __config__=ConfigDict(extra="forbid", frozen=True), **fields)
