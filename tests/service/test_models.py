"""`/v1/models` and what it says of a model's chat template."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
from typer.testing import CliRunner

from service.cli import app
from service.settings import Settings
from tests.conftest import MODEL, Front, running_front
from tests.fake_engine import FakeEngine
from tests.service.talk import get


async def test_the_model_is_listed_with_its_window(front: Front) -> None:
    listed = (await get(front, "/v1/models")).json()["data"]
    assert [(one["id"], one["max_model_len"]) for one in listed] == [(MODEL, 4096)]
    assert (await get(front, f"/v1/models/{MODEL}")).json() == listed[0]


async def test_what_figures_are_of_is_told_to_whoever_measures(
    engine: FakeEngine, store: str, model_dir: Path, tmp_path: Path
) -> None:
    settings = Settings(
        engines=(engine.url,),
        model_dir=model_dir,
        store_url=store,
        engine_profile="cpu-smollm2.v1",
        engine_profile_hash="0123456789abcdef",
    )
    behind = {"profile": "cpu-smollm2.v1", "hash": "0123456789abcdef", "sglang": "0.5.23"}
    async with running_front(settings) as front:
        assert (await get(front, f"/v1/models/{MODEL}")).json()["engine"] == behind
        measured = tmp_path / "figures.json"
        given = ["bench", "prefix", "--url", front.url, "--chats", "1", "--questions", "1", "--loop", "1"]
        given += ["--pause", "0", "--max-tokens", "4", "--json", str(measured)]
        ran = await asyncio.to_thread(CliRunner().invoke, app, given)
        assert ran.exit_code == 0, ran.output
        assert json.loads(measured.read_text())["behind"] == behind

        async with httpx.AsyncClient() as http:
            (replica,) = (await http.get(front.url + "/admin/replicas")).json()["data"]
            await http.post(f"{front.url}/admin/replicas/{replica['name']}/drain")
            async with asyncio.timeout(10):
                while (await get(front, f"/v1/models/{MODEL}")).json()["engine"] == behind:
                    await asyncio.sleep(0.01)
        replaced = (await get(front, f"/v1/models/{MODEL}")).json()["engine"]
        assert (replaced["profile"], replaced["hash"]) == (None, None)


async def test_what_the_template_does_to_prefixes_is_told(front: Front) -> None:
    probed = (await get(front, f"/v1/models/{MODEL}/template")).json()
    assert (probed["usable"], probed["keep_reasoning"]) == (True, {})
    verdicts = {case["case"]: case["verdict"] for case in probed["cases"]}
    assert verdicts["plain turns"] == "preserving"


async def test_a_model_that_is_not_served_is_named(front: Front) -> None:
    for path in ("/v1/models/other", "/v1/models/other/template"):
        answer = await get(front, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
