"""`antiphon extract` against a front and a worker, and the schemas it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from service.commands.extract import read_schema
from tests.conftest import Front
from tests.fake_engine.running import FakeEngine
from tests.service.commands.test_ask import run, said
from tests.service.working import working

MODELS = """
from dataclasses import dataclass
from pydantic import BaseModel

class Lease(BaseModel):
    rent: int
    cats: bool

@dataclass
class Point:
    x: float

class Nothing: pass
"""
LEASE = {"rent": {"title": "Rent", "type": "integer"}, "cats": {"title": "Cats", "type": "boolean"}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a module of models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # taken out again afterwards, with whatever else was put in
    (tmp_path / "lease_models.py").write_text(MODELS, encoding="utf-8")
    return tmp_path


async def test_what_files_say_is_printed_and_what_they_disagree_on_told(
    front: Front, engine: FakeEngine, store: str, here: Path
) -> None:
    tokenizer = front.services.sessions.model.tokenizer

    def reply(ids: Any) -> list[int]:
        said = {"rent": 900 if "rises" in tokenizer.decode(ids) else 800, "cats": None}
        if "Now with everything" in tokenizer.decode(ids):
            said["cats"] = True
        return [*tokenizer.encode(json.dumps(said), after_control=True), 0]

    engine.script.reply = reply
    (here / "a.txt").write_text("The rent is 800.", encoding="utf-8")
    (here / "b.txt").write_text("The rent rises to 900.", encoding="utf-8")
    async with working(front, engine, store):
        result = await run(front, "extract", "a.txt", "b.txt", "--schema", "lease_models:Lease")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == {"rent": 800, "cats": True}
        assert result.stderr.splitlines() == [
            "antiphon: what was found at /rent differs:",
            "  800  (a.txt, part 1)",
            "  900  (b.txt, part 1)",
            "antiphon: /cats was not found in any part, but is required",
        ]
        job = json.loads(await said(front, "extract", "a.txt", "--schema", "lease_models:Lease", "--json"))
        assert job["output"]["value"] == {"rent": 800, "cats": True}


async def test_an_impossible_schema_is_refused_and_nothing_is_queued(front: Front, here: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}
    (here / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    (here / "a.txt").write_text("Text.", encoding="utf-8")
    result = await run(front, "extract", "a.txt", "--schema", "schema.json")
    assert result.exit_code == 1
    assert "no value can satisfy this schema: a has an enum or const of which nothing is left" in result.stderr
    assert await front.services.jobs.list(10) == ([], False)


def test_a_schema_is_a_file_or_of_a_model_or_a_dataclass(here: Path) -> None:
    (here / "schema.json").write_text('{"type": "string"}', encoding="utf-8")
    assert read_schema("schema.json") == {"type": "string"}
    assert read_schema("lease_models:Lease") == {
        "title": "Lease",
        "type": "object",
        "properties": LEASE,
        "required": ["rent", "cats"],
    }
    assert read_schema("lease_models:Point")["properties"]["x"]["type"] == "number"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("gone.json", "a model is written module:Model"),
        ("lease_models.py", "is no JSON"),
        ("list.json", "holds no JSON Schema"),
        ("lease_models:Gone", "AttributeError"),
        ("gone_models:Lease", "ModuleNotFoundError"),
        ("lease_models:Nothing", "has no JSON Schema"),
    ],
)
def test_what_is_no_schema_is_told(here: Path, source: str, complaint: str) -> None:
    (here / "list.json").write_text("[]", encoding="utf-8")
    with pytest.raises(typer.BadParameter, match=complaint):
        read_schema(source)
