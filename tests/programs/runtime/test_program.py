"""A program is its function: parameters from the signature, a version from the source."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from programs.errors import ProgramLoadError, ProgramOutputError, ProgramParametersError, UnknownProgramError
from programs.runtime.context import ProgramContext
from programs.runtime.program import Program
from programs.runtime.registry import ProgramRegistry, load_program
from programs.runtime.run import Prices
from programs.runtime.steps import Usage
from tests.programs.runtime.given import Stage


class Aspect(BaseModel):
    name: str
    weight: float = 1.0


async def compare(
    context: ProgramContext,
    documents: Annotated[list[str], Field(min_length=2, description="Ids.")],
    aspects: list[Aspect] | None = None,
    method: Literal["short", "long"] = "short",
    schema: dict[str, Any] = Field(default_factory=dict),  # noqa: B008 - how pydantic has it
    *,
    max_tokens: int = 300,
) -> dict[str, Any]:
    """Compare documents.

    More about it.
    """
    return {"documents": documents, "first": aspects and aspects[0], "rest": [method, schema, max_tokens]}


def test_a_program_is_described_by_its_function() -> None:
    program = Program.of(compare)
    schema = program.schema
    assert (program.name, program.description) == ("compare", "Compare documents.")
    assert schema["required"] == ["documents"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["documents"] == {
        "description": "Ids.",
        "items": {"type": "string"},
        "minItems": 2,
        "title": "Documents",
        "type": "array",
    }
    assert schema["properties"]["max_tokens"]["default"] == 300
    assert schema["properties"]["method"]["enum"] == ["short", "long"]
    assert list(schema["properties"]) == ["documents", "aspects", "method", "schema", "max_tokens"]


def test_arguments_are_what_the_signature_says() -> None:
    arguments = Program.of(compare).arguments(
        {"documents": ["a", "b"], "aspects": [{"name": "price"}], "schema": {"x": 1}}
    )
    assert arguments == {
        "documents": ["a", "b"],
        "aspects": [Aspect(name="price")],
        "method": "short",
        "schema": {"x": 1},
        "max_tokens": 300,
    }


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, "documents: Field required"),
        ({"documents": ["a"]}, "documents: List should have at least 2 items"),
        ({"documents": ["a", "b"], "aspects": [{}]}, r"aspects\.0\.name: Field required"),
        ({"documents": ["a", "b"], "method": "none"}, "method: Input should be 'short' or 'long'"),
        ({"documents": ["a", "b"], "max_token": 3}, "max_token: there is no such parameter"),
        ({"documents": ["a", "b"], "parameter_0": 3}, "parameter_0: there is no such parameter"),
        ({"documents": 3, "max_tokens": "x"}, "documents: .*; max_tokens: "),
    ],
)
def test_what_the_signature_does_not_say_is_refused_by_name(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(ProgramParametersError, match=f"^program compare: {said}"):
        Program.of(compare).arguments(parameters)


def test_a_programs_own_check_may_refuse_more() -> None:
    def check(arguments: Mapping[str, Any]) -> None:
        if arguments["max_tokens"] > 1000:
            raise ProgramParametersError("that is a novel")

    program = Program.of(compare, name="other", check=check)
    assert program.name == "other"
    assert program.arguments({"documents": ["a", "b"]})["max_tokens"] == 300
    with pytest.raises(ProgramParametersError, match="that is a novel"):
        program.arguments({"documents": ["a", "b"], "max_tokens": 1001})


async def test_a_run_passes_values_of_the_types_that_were_asked_for(stage: Stage) -> None:
    result = await stage.run(compare, documents=["a", "b"], aspects=[{"name": "price"}])
    assert result.output == {
        "documents": ["a", "b"],
        "first": {"name": "price", "weight": 1.0},
        "rest": ["short", {}, 300],
    }


async def test_an_output_that_is_no_json_is_refused(stage: Stage) -> None:
    async def program(context: ProgramContext) -> object:
        return object()

    with pytest.raises(ProgramOutputError, match="program program returned what JSON cannot hold"):
        await stage.run(program)


class Odd:
    """Of a kind that JSON cannot be read into."""


def not_async(context: ProgramContext) -> None: ...
async def without_context() -> None: ...
async def untyped(context: ProgramContext, document) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
async def unnamed(context: ProgramContext, *documents: str) -> None: ...
async def unknown(context: ProgramContext, document: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


async def unreadable(context: ProgramContext, odd: Odd) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (not_async, "test_program:not_async is no async function"),
        (without_context, "does not take a context as its first argument"),
        (untyped, "parameter document has no type"),
        (unnamed, r"parameter \*documents: .* has no name"),
        (unreadable, "Unable to generate pydantic-core schema"),
        (unknown, "the type of a parameter is unknown: name 'Nowhere' is not defined"),
    ],
)
def test_a_function_that_is_no_program_is_told_why(function: Any, said: str) -> None:
    with pytest.raises(ProgramLoadError, match=said):
        Program.of(function)


def written(directory: Path, name: str, body: str) -> None:
    (directory / f"{name}.py").write_text(f"async def program(context, text: str) -> str:\n    {body}\n")


def test_a_version_changes_with_the_source(tmp_path: Path) -> None:
    written(tmp_path, "versioned_program", "return text")
    first = load_program("versioned_program:program", tmp_path)
    again = load_program("versioned_program:program", tmp_path)
    written(tmp_path, "versioned_program", "return text.upper()  # as of now")
    importlib.reload(sys.modules["versioned_program"])
    changed = load_program("versioned_program:program", tmp_path)
    assert first.version == again.version != changed.version
    assert len(first.version) == 16


def test_a_context_may_be_named_for_type_checkers_alone(tmp_path: Path) -> None:
    (tmp_path / "annotated_program.py").write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from programs.runtime.context import ProgramContext\n"
        "async def program(context: ProgramContext, count: int = 3) -> Nowhere: ...\n"
    )
    assert load_program("annotated_program:program", tmp_path).arguments({"count": "4"}) == {"count": 4}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_module:program", "cannot import no_such_module: ModuleNotFoundError"),
        ("json:no_such_program", "module 'json' has no attribute 'no_such_program'"),
        ("json:dumps", "json:dumps is no async function"),
        ("json", "is not written module:function"),
        (":program", "is not written module:function"),
        ("json:a b", "is not written module:function"),
        ("broken_program:program", "cannot import broken_program: ZeroDivisionError"),
    ],
)
def test_a_path_that_leads_nowhere_is_named(tmp_path: Path, path: str, said: str) -> None:
    (tmp_path / "broken_program.py").write_text("1 / 0\n")
    with pytest.raises(ProgramLoadError, match=f"^program '{path}'.*{said}"):
        load_program(path, tmp_path)


def test_a_registry_has_each_name_once() -> None:
    program = Program.of(compare)
    registry = ProgramRegistry([program, Program.of(compare, name="other")])
    assert registry.get("compare") is program
    assert [one.name for one in registry.all()] == ["compare", "other"]
    with pytest.raises(UnknownProgramError, match="no program 'none'; there are compare, other"):
        registry.get("none")
    with pytest.raises(ProgramLoadError, match="two programs called compare"):
        ProgramRegistry([program, program])


def test_a_cost_is_that_of_what_was_computed_and_what_was_cached() -> None:
    usage = Usage(steps=2, prompt_tokens=3_000_000, cached_tokens=1_000_000, output_tokens=500_000)
    assert Prices(prompt=1.0, cached=0.1, output=4.0).cost(usage) == pytest.approx(2.0 + 0.1 + 2.0)
