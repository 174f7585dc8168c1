"""Functions under `@sgl.function` as jobs: SGLang's own interpreter runs them, over a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from programs.errors import ProgramLoadError
from service.settings import Settings
from service.sgl.interpreter import SglInterpreter
from service.sgl.programs import sgl_programs
from tests.conftest import Front, engine_options, running_front
from tests.fake_engine import running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.worker_process import running_worker

HERE = Path(__file__).parent

pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True)
class Stage:
    front: Front
    engine: FakeEngine
    http: httpx.AsyncClient

    async def submit(self, program: str, **parameters: Any) -> httpx.Response:
        return await self.http.post(f"/v1/programs/{program}/runs", json={"parameters": parameters})

    async def ended(self, submitted: httpx.Response) -> dict[str, Any]:
        assert submitted.status_code == 202, submitted.text
        async with asyncio.timeout(120):
            while True:
                job: dict[str, Any] = (await self.http.get(f"/v1/jobs/{submitted.json()['id']}")).json()
                if job["status"] in ("succeeded", "failed", "cancelled"):
                    return job
                await asyncio.sleep(0.05)


@asynccontextmanager
async def staged(store: str, model_dir: Path, engine_python: Path, directory: Path) -> AsyncIterator[Stage]:
    """A front with a key, and a worker, under a profile that lies beside its modules."""
    (directory / "sgl_functions.py").write_text((HERE / "sgl_functions.py").read_text())
    profile = directory / "mine.v1.yaml"
    names = "".join(f"  - sgl_functions:{name}\n" for name in ("tips", "endless", "broken"))
    profile.write_text(f"name: mine\nversion: 1\ndescription: for tests\nsgl_programs:\n{names}")
    async with running_fake_engine(engine_options(model_dir, decode_tokens_per_s=50.0)) as engine:
        settings = Settings(
            engines=(engine.url,),
            model_dir=model_dir,
            store_url=store,
            serving_profile=str(profile),
            engine_python=engine_python,
            api_key=SecretStr("secret"),
        )
        environment = {
            "ANTIPHON_SERVING_PROFILE": str(profile),
            "ANTIPHON_ENGINE_PYTHON": str(engine_python),
            "ANTIPHON_API_KEY": "secret",
        }
        bearer = {"Authorization": "Bearer secret"}
        async with running_front(settings) as front, httpx.AsyncClient(base_url=front.url, headers=bearer) as http:
            with running_worker(front.url, store, model_dir, **environment):
                yield Stage(front, engine, http)


async def test_a_function_of_sglangs_runs_as_a_job(
    store: str, model_dir: Path, engine_python: Path, tmp_path: Path
) -> None:
    async with staged(store, model_dir, engine_python, tmp_path) as stage:
        listed = {one["id"]: one for one in (await stage.http.get("/v1/programs")).json()["data"]}
        assert listed["tips"]["description"] == "Tips about a topic, each from a fork."
        refused = await stage.submit("tips", topic="letters", count="many")
        assert refused.status_code == 400
        assert "count" in refused.json()["error"]["message"]
        job = await stage.ended(await stage.submit("tips", topic="letters", count=3))
        assert job["status"] == "succeeded", job
        output, provenance = job["output"], job["provenance"]
        assert output["value"] == 3
        assert output["variables"].keys() == {"tip", "best"}
        assert len(output["variables"]["tip"]) == 3
        assert output["text"].startswith("Tips for letters, 3 of them.\n0.")
        assert output["text"].endswith("The best is number " + output["variables"]["best"])
        assert provenance["steps"] == 1
        assert provenance["output_tokens"] == 3 * 8
        assert provenance["prompt_tokens"] > provenance["cached_tokens"] > 0
        broken = await stage.ended(await stage.submit("broken", how="by design"))
        assert (broken["status"], broken["error"]["code"]) == ("failed", "sgl_program")
        assert "ValueError: broken by design" in broken["error"]["message"]
        await cancelled_cleanly(stage)


async def cancelled_cleanly(stage: Stage) -> None:
    """What a run had asked for ends with it, and it asks for nothing more."""
    job = (await stage.submit("endless")).json()["id"]
    before = stage.engine.state.generated_tokens
    async with asyncio.timeout(60):
        while stage.engine.state.generated_tokens < before + 20:
            await asyncio.sleep(0.05)
    assert (await stage.http.post(f"/v1/jobs/{job}/cancel")).status_code == 200
    async with asyncio.timeout(2):
        while stage.front.in_flight or not stage.engine.state.idle:
            await asyncio.sleep(0.02)
    received = stage.engine.state.received
    await asyncio.sleep(1)
    assert stage.engine.state.received <= received + 1, "but for a probe, no one asks for more"


def test_what_is_no_such_function_is_said_at_the_start(engine_python: Path) -> None:
    interpreter = SglInterpreter(engine_python, HERE, {})
    with pytest.raises(ProgramLoadError, match="not_one is no function under @sgl"):
        sgl_programs(interpreter, ("sgl_functions:not_one",))
    with pytest.raises(ProgramLoadError, match="cannot be loaded with /nowhere"):
        sgl_programs(SglInterpreter(Path("/nowhere"), HERE, {}), ("sgl_functions:tips",))
    assert sgl_programs(SglInterpreter(Path("/nowhere"), HERE, {}), ()) == {}
