"""A model of random weights makes no sense, but what is extracted by it validates against its schema."""

from __future__ import annotations

import json
import secrets
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from jsonschema import Draft202012Validator

from programs.documents.document import Document
from programs.documents.store import DocumentStore
from programs.library.extract import EXTRACT
from programs.library.guide import guide
from programs.library.schema_check import check_schema
from programs.model import ChatModel
from programs.runtime.run import run_program
from programs.runtime.steps import MemoryStepStore
from programs.store import connect
from router.engine.client import EngineClient
from router.request import GenerateRequest, Sampling
from tests.programs.library.test_schema_check import POSSIBLE
from tests.real.engines import BackgroundEngine

pytestmark = pytest.mark.engine

NAME = {"type": "string", "minLength": 1, "maxLength": 8}


def obj(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


AGE = {"type": "integer", "minimum": 0, "maximum": 120}
TAGS = {"type": "array", "items": {"enum": ["red", "blue", "green"]}, "uniqueItems": True, "maxItems": 3}
SCHEMAS: list[Any] = [
    obj("name", "age", "tags", name=NAME, age=AGE, tags=TAGS),
    {"type": "array", "minItems": 2, "maxItems": 4, "items": obj("id", "on", id=NAME, on={"type": "boolean"})},
    obj("when", when={"type": "string", "pattern": "^20[0-9]{2}-[01]$"}),
    {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "$defs": {
            "cat": obj("kind", "lives", kind={"const": "cat"}, lives={"enum": [7, 9]}),
            "dog": obj("kind", "name", kind={"const": "dog"}, name=NAME),
        },
    },
    {
        "allOf": [
            obj("n", n={"type": "integer", "multipleOf": 5, "minimum": 1}),
            obj("m", n={"maximum": 30}, m={"type": ["null", "boolean"]}),
        ]
    },
]
TEXT = "Ann is 31 years old and likes the colour red. Bob, who is 44, prefers blue. " * 3


@pytest.fixture
async def client(qwen3_engine: BackgroundEngine) -> AsyncIterator[EngineClient]:
    async with aiohttp.ClientSession() as session:
        yield EngineClient("qwen3", qwen3_engine.url, session)


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_what_is_extracted_validates(
    client: EngineClient, store: str, qwen3_random_dir: Path, schema: Any
) -> None:
    async with connect(store) as redis:
        documents = DocumentStore(redis, 3_600)
        await documents.put(Document("doc_1", "a.txt", "text/plain", len(TEXT), TEXT, (), time.time()))
        result = await run_program(
            EXTRACT,
            {"documents": ["doc_1"], "schema": schema, "max_tokens": 100, "chunk_tokens": 60},
            model=ChatModel.load(qwen3_random_dir),
            engine=client,
            documents=documents,
            steps=MemoryStepStore(),
        )
    assert result.output["chunks"] > 1
    assert list(Draft202012Validator(schema).iter_errors(result.output["value"])) == []


async def refusal(client: EngineClient, schema: Any) -> str | None:
    """Why the engine makes no grammar of `schema`; None: it makes one."""
    sampling = Sampling(max_new_tokens=1, temperature=0.0, json_schema=json.dumps(schema))
    async with aclosing(client.generate(GenerateRequest(secrets.token_hex(16), array("I", [100]), sampling))) as deltas:
        *_, last = [delta async for delta in deltas]
    assert last.finish is not None
    return last.finish.message if last.finish.type == "abort" else None


async def test_a_grammar_is_made_of_every_guide(client: EngineClient) -> None:
    guides = [
        guide(check_schema(schema), relaxed=relaxed) for schema in (*POSSIBLE, *SCHEMAS) for relaxed in (False, True)
    ]
    assert {json.dumps(one): why for one in guides if (why := await refusal(client, one))} == {}


@pytest.mark.parametrize(
    "keywords", [{"uniqueItems": True}, {"not": {}}, {"contains": {}}, {"multipleOf": 2}, {"if": {}}]
)
async def test_what_guides_leave_out_the_engine_refuses(client: EngineClient, keywords: Any) -> None:
    assert "would be ignored" in str(await refusal(client, keywords))
