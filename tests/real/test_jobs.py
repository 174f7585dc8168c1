"""Jobs on a real engine: killed workers change no result, and a cancelled job's generation ends on the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.job_stage import Stage, output_of, same_result, staged
from tests.programs.jobs.programs import serving_profile

pytestmark = pytest.mark.engine

STEPS = 8
KILLS = 3
RELAY = {"steps": STEPS, "text": "tell me of the sea", "max_tokens": 24, "heedful": False}
"""No step's prompt holds another's answer: once all prompts are cached, each run computes alike to the last bit."""


@pytest.fixture
async def stage(qwen3_engine: Any, qwen3_random_dir: Path, store: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(qwen3_engine.url, store, qwen3_random_dir, serving_profile(tmp_path)) as stage:
        yield stage


async def test_a_killed_worker_changes_no_result(stage: Stage) -> None:
    await stage.ended(await stage.submit("relay", **RELAY))
    undisturbed = await stage.ended(await stage.submit("relay", **RELAY))
    job = await stage.submit("relay", **RELAY)
    kills = stored = 0
    async with asyncio.timeout(60):
        while kills < KILLS:
            steps = len(await stage.steps(job))
            if steps > stored and await stage.kill_holder(job):
                kills, stored = kills + 1, steps
            await asyncio.sleep(0.01)
    assert stored < STEPS
    killed = await stage.ended(job)
    assert len(set(output_of(killed)["said"])) > 1
    assert same_result(killed, undisturbed)


async def test_a_cancelled_job_leaves_nothing_running_on_the_engine(stage: Stage, qwen3_engine: Any) -> None:
    job = await stage.submit("relay", steps=1, text="tell me of the sea", max_tokens=6000)
    async with asyncio.timeout(60):
        while await requests_on(qwen3_engine.url) == 0:
            await asyncio.sleep(0.05)
    await stage.jobs.cancel(job)
    async with asyncio.timeout(2):
        while await requests_on(qwen3_engine.url) > 0:
            await asyncio.sleep(0.05)
    assert (await stage.jobs.get(job)).state == "cancelled"


async def requests_on(url: str) -> int:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/loads") as answer:
        (load,) = (await answer.json())["loads"]
    return int(load["num_running_reqs"]) + int(load["num_waiting_reqs"])
