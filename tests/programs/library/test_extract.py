"""What is extracted validates against its schema, or the run fails and says why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from programs.errors import ExtractionError, ProgramParametersError
from programs.library.extract import EXTRACT
from programs.library.guide import guide
from programs.library.schema_check import check_schema
from tests.programs.library.lab import Lab, document_id_of, running_lab

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "author": {"type": "string"},
        "facts": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["title", "facts"],
    "additionalProperties": False,
}
TEXT = "".join(f"Fact number {n} is what this sentence says. " for n in range(60))
FULL = "Now with everything that is required."


def said(prompt: str) -> dict[str, Any]:
    """What a model that reads facts and titles answers."""
    text = prompt.partition("Text:\n")[2]
    title, author = re.search(r"Title: (\w+)", text), re.search(r"Author: (\w+)", text)
    return {
        "title": title and title[1],
        "author": author and author[1],
        "facts": [int(n) for n in re.findall(r"Fact number (\d+) is what", text)],
    }


def replying(full: Callable[[str], Any] = said) -> Callable[[str], str]:
    """What it answers, and what it does when everything required is asked for."""
    return lambda prompt: json.dumps(full(prompt) if FULL in prompt else said(prompt))


async def extracted(lab: Lab, *texts: str, schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    """The output for documents named 1.txt, 2.txt, ..., which validates."""
    documents = [await lab.document(text, f"{number}.txt") for number, text in enumerate(texts, 1)]
    output: dict[str, Any] = (await lab.run(EXTRACT, documents=documents, schema=schema, **more)).output
    assert list(Draft202012Validator(schema).iter_errors(output["value"])) == []
    return output


async def test_what_all_parts_say_is_put_together(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(replying())
        output = await extracted(lab, f"Title: Facts. {TEXT} Author: Ann.", chunk_tokens=200, max_tokens=300)
        assert output["value"] == {"title": "Facts", "author": "Ann", "facts": list(range(60))}
        assert output["conflicts"] == output["missing"] == []
        assert output["chunks"] == len(lab.prompts) > 5
        assert [one.done for one in lab.progress] == list(range(1, len(lab.prompts) + 1))
        assert {one.total for one in lab.progress} == {len(lab.prompts)}


async def test_parts_are_asked_for_what_they_may_lack_by_a_grammar(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(replying())
        await extracted(lab, f"Title: Facts. {TEXT}", instructions="Names in full.")
        sent = lab.bodies[0]["sampling_params"]
        assert json.loads(sent["json_schema"]) == guide(check_schema(SCHEMA), relaxed=True)
        assert sent["temperature"] == 0
        assert "Names in full." in lab.prompts[0]
        assert json.dumps(SCHEMA) in lab.prompts[0]


async def test_what_documents_disagree_on_is_told_with_its_places(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(replying())
        output = await extracted(lab, "Title: A. Author: Ann.", "Title: B. Author: Ann.", "Title: B.")
        assert output["value"] == {"title": "B", "author": "Ann", "facts": []}
        assert output["conflicts"] == [
            {
                "path": "/title",
                "values": [
                    {"value": "A", "document": document_id_of("1.txt"), "chunk": 1},
                    {"value": "B", "document": document_id_of("2.txt"), "chunk": 1},
                    {"value": "B", "document": document_id_of("3.txt"), "chunk": 1},
                ],
            }
        ]


@pytest.mark.parametrize(("max_tokens", "fits"), [(300, True), (1024, False)])
async def test_what_is_required_and_not_found_is_asked_for_once_more(
    store: str, model_dir: Path, max_tokens: int, fits: bool
) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(replying(lambda prompt: {"title": "Invented", "facts": [99]}))
        output = await extracted(lab, "Nothing here.", f"{TEXT} Author: Ann.", max_tokens=max_tokens)
        assert output["value"] == {"title": "Invented", "author": "Ann", "facts": list(range(60))}
        assert output["missing"] == ["/title"]
        final = lab.bodies[-1]["sampling_params"]
        assert json.loads(final["json_schema"]) == guide(check_schema(SCHEMA))
        assert "Author: Ann" in lab.prompts[-1], "the document in which most was found"
        known = json.dumps({"author": "Ann", "facts": [*range(60)]})
        assert (f"Found so far:\n{known}" in lab.prompts[-1]) == fits
        assert FULL in lab.prompts[-1]
        assert len(lab.prompts) == 3
        assert lab.progress[-1].done == lab.progress[-1].total == 3


async def test_a_model_that_answers_invalidly_is_told_what_was_wrong(store: str, model_dir: Path) -> None:
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "facts": {"type": "array", "contains": {"const": 7}}}}

    def full(prompt: str) -> Any:
        return {"title": "T", "facts": [7] if "does not contain items" in prompt else [1]}

    async with running_lab(store, model_dir) as lab:
        lab.replies(replying(full))
        output = await extracted(lab, "Title: T.", schema=schema)
        assert output["value"] == {"title": "T", "facts": [7]}
        assert len(lab.prompts) == 3


async def test_a_model_whose_answers_stay_invalid_fails_the_run(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(replying(lambda prompt: {"title": 3, "facts": []}))
        with pytest.raises(ExtractionError, match="do not satisfy the schema, at /title: 3 is not of type 'string'"):
            await extracted(lab, "Nothing here.")


async def test_an_answer_that_was_cut_is_asked_for_again_with_more_room(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(replying())
        output = await extracted(lab, f"Title: Facts. {TEXT}", max_tokens=100)
        assert output["value"]["facts"] == list(range(60))
        assert [body["sampling_params"]["max_new_tokens"] for body in lab.bodies] == [100, 400]


async def test_an_answer_without_end_fails_the_run(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:  # the engine's own words never end
        message = "answer for part 1 of 1 of 1.txt does not end within 400 tokens: give the schema's strings maxLength"
        with pytest.raises(ExtractionError, match=message):
            await extracted(lab, TEXT, max_tokens=100)


async def test_what_json_cannot_hold_was_not_said(store: str, model_dir: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": ["integer", "null"]}, "x": {"type": ["number", "null"]}, "s": {}},
    }
    async with running_lab(store, model_dir) as lab:
        lab.replies(lambda prompt: f'{{"n": {"9" * 30}, "x": 1e999, "s": "a\\ud800"}}')
        output = await extracted(lab, TEXT, schema=schema)
        assert output["value"] == {"s": "a?"}


async def test_an_engine_without_grammars_is_told_of(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(lambda prompt: "Well, the title")
        with pytest.raises(ExtractionError, match=r"part 1 of 1 of 1\.txt is no JSON"):
            await extracted(lab, TEXT)


@pytest.mark.parametrize(
    ("schema", "answers", "value"),
    [
        ({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}, ([], ["a", "a"]), ["a"]),
        ({"type": "integer", "multipleOf": 7}, (None, 13, 14), 14),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, ({"x": 1}, {"y": 2}), {"x": 1, "y": 2}),
        ({"type": ["string", "null"]}, (None, None), None),
        ({"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
          "$defs": {"a": {"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]},
                    "b": {"type": "object", "properties": {"k": {"const": 2}}, "required": ["k"]}}},
         ({"k": 2}, {"k": 1}, {"k": 2}), {"k": 2}),
        ({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["v"]},
         ({"v": 1, "next": None}, {"v": 1, "next": {"v": 2, "next": None}}), {"v": 1, "next": {"v": 2}}),
    ],
)  # fmt: skip
async def test_schemas_of_all_kinds_are_extracted(
    store: str, model_dir: Path, schema: Any, answers: tuple[Any, ...], value: Any
) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(lambda prompt: json.dumps(answers[int(prompt.rpartition("Document number ")[2][0])]))
        output = await extracted(lab, *(f"Document number {n}" for n in range(len(answers))), schema=schema)
        assert output["value"] == value


async def test_an_impossible_schema_is_refused_before_anything_runs(store: str, model_dir: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 1}}, "required": ["a"]}
    async with running_lab(store, model_dir) as lab:
        with pytest.raises(ProgramParametersError, match="no value can satisfy this schema: a has minimum 3"):
            EXTRACT.arguments({"documents": ["doc_x"], "schema": schema})
        with pytest.raises(ProgramParametersError, match="documents"):
            EXTRACT.arguments({"documents": [], "schema": SCHEMA})
        assert lab.engine.state.received == 0


async def test_it_gives_the_same_however_long_the_answers_take(store: str, model_dir: Path) -> None:
    outputs = []
    for speed in (0.0, 4_000.0):
        async with running_lab(store, model_dir, decode_tokens_per_s=speed) as lab:
            lab.replies(replying())
            text = " ".join(f"Title: T{n % 3}. Fact number {n} is what this says." for n in range(40))
            output = await extracted(lab, text, text[::-1], chunk_tokens=200)
            outputs.append((output, sorted(lab.prompts)))
    assert outputs[0] == outputs[1]
    assert outputs[0][0]["conflicts"]
