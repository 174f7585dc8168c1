"""Programs over HTTP: what there is to run, and what is refused before it is queued."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings
from tests.conftest import Front, running_front
from tests.fake_engine.running import FakeEngine
from tests.programs.jobs.programs import serving_profile
from tests.service.talk import get, post


@pytest.fixture
async def front(engine: FakeEngine, store: str, model_dir: Path, tmp_path: Path) -> AsyncIterator[Front]:
    settings = Settings(
        engines=(engine.url,), model_dir=model_dir, store_url=store, serving_profile=serving_profile(tmp_path)
    )
    async with running_front(settings) as front:
        yield front


def error_of(answer: Any) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def test_programs_say_what_they_take(front: Front) -> None:
    listed = {one["id"]: one for one in (await get(front, "/v1/programs")).json()["data"]}
    assert set(listed) >= {"relay", "patient", "broken"}
    relay = listed["relay"]
    assert relay["description"] == "Steps, one after the other; `heedful` ones are each about the answer before."
    assert relay["parameters"]["properties"]["steps"] == {
        "default": 40,
        "minimum": 1,
        "title": "Steps",
        "type": "integer",
    }
    assert (await get(front, "/v1/programs/relay")).json() == relay


async def test_a_run_is_a_queued_job(front: Front) -> None:
    answer = await post(front, "/v1/programs/relay/runs", {"parameters": {"steps": 3}, "deadline_s": 60})
    assert answer.status_code == 202
    job = answer.json()
    assert (job["object"], job["program"], job["status"], job["parameters"]) == ("job", "relay", "queued", {"steps": 3})
    assert (job["deadline_s"], job["output"], job["error"], job["started_at"]) == (60, None, None, None)
    assert (await get(front, f"/v1/jobs/{job['id']}")).json() == job


async def test_a_run_without_a_deadline_gets_the_usual_one(front: Front) -> None:
    assert (await post(front, "/v1/programs/relay/runs", {})).json()["deadline_s"] == 24 * 3600


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"parameters": {"steps": "many"}}, "parameters.steps"),
        ({"parameters": {"steps": 0}}, "parameters.steps"),
        ({"parameters": {"stops": 3}}, "parameters.stops"),
        ({"parameters": [3]}, "parameters"),
        ({"deadline_s": 0}, "deadline_s"),
    ],
)
async def test_a_parameter_that_is_wrong_is_named_and_nothing_is_queued(front: Front, body: Any, param: str) -> None:
    answer = await post(front, "/v1/programs/relay/runs", body)
    assert error_of(answer) == (400, "invalid_value", param)
    assert (await get(front, "/v1/jobs")).json()["data"] == []


async def test_a_program_that_is_not_there_is_not_found(front: Front) -> None:
    assert error_of(await get(front, "/v1/programs/none")) == (404, "program_not_found", "name")
    assert error_of(await post(front, "/v1/programs/none/runs", {})) == (404, "program_not_found", "name")


@pytest.mark.parametrize(
    ("program", "parameters", "param"),
    [
        ("summarize", {"document": "doc_none"}, "parameters.document"),
        ("extract", {"documents": ["doc_none"], "schema": {"type": "object"}}, "parameters.documents"),
    ],
)
async def test_a_document_that_is_not_there_is_refused_before_anything_is_queued(
    front: Front, program: str, parameters: Any, param: str
) -> None:
    answer = await post(front, f"/v1/programs/{program}/runs", {"parameters": parameters})
    assert error_of(answer) == (404, "document_not_found", param)
    assert (await get(front, "/v1/jobs")).json()["data"] == []
