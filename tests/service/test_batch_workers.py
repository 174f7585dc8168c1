"""Batches and the workers that run them, as processes of their own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from service.settings import Settings
from tests.conftest import engine_options, running_front
from tests.fake_engine import running_fake_engine
from tests.programs.jobs.programs import serving_profile
from tests.service.batching import begin, completed, ended, line, lines_of
from tests.service.talk import ask, client_of, post
from tests.worker_process import ForkedWorker

REQUESTS = 60
AT_ONCE = 4
KILLS = range(0, REQUESTS, 6)
"""After so many answers at least."""
KEY = "none"
"""What the tests' clients say."""


@contextmanager
def killed_after(settings: dict[str, Any]) -> Iterator[None]:
    """A worker that is killed, whatever it is doing, when the context closes."""
    worker = ForkedWorker(settings)
    try:
        yield
    finally:
        worker.kill()


@pytest.mark.slow
async def test_workers_that_are_killed_lose_no_answer_and_give_none_twice(store: str, model_dir: Path) -> None:
    said = {f"id-{number}": f"question {number}" for number in range(REQUESTS)}
    async with running_fake_engine(engine_options(model_dir, decode_tokens_per_s=40)) as engine:
        settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store, api_key=SecretStr(KEY))
        async with running_front(settings) as front, client_of(front) as client:
            before = engine.state.received
            batch = await begin(client, [line(name, text, max_tokens=8) for name, text in said.items()])
            worker = {"front": front.url, "store_url": store, "model_dir": model_dir, "api_key": SecretStr(KEY)}
            worker |= {"batch_requests": AT_ONCE, "lease_s": 0.4, "job_deliveries": 100}
            for answers in KILLS:
                with killed_after(worker):
                    async with asyncio.timeout(60):
                        while await completed(client, batch) <= answers:
                            await asyncio.sleep(0.02)
            with killed_after(worker):
                batch = await ended(client, batch)
            received = engine.state.received - before
            found = await lines_of(client, batch.output_file_id)
            alone = [await ask(client, text) for text in said.values()]
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert batch.request_counts.to_dict() == {"total": REQUESTS, "completed": REQUESTS, "failed": 0}
    assert Counter(one["custom_id"] for one in found) == dict.fromkeys(said, 1)
    expected = [one.choices[0].message.content for one in alone]
    assert [one["response"]["body"]["choices"][0]["message"]["content"] for one in found] == expected
    assert REQUESTS < received <= REQUESTS + AT_ONCE * len(KILLS)


@pytest.mark.slow
async def test_nothing_else_waits_behind_batches(store: str, model_dir: Path, tmp_path: Path) -> None:
    profile = serving_profile(tmp_path)
    async with running_fake_engine(engine_options(model_dir, decode_tokens_per_s=40)) as engine:
        settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store, serving_profile=profile)
        async with running_front(settings) as front, client_of(front) as client:
            batches = [await begin(client, [line("long", max_tokens=3000)]) for _ in range(3)]
            run = await post(front, "/v1/programs/relay/runs", {"parameters": {"steps": 2}})
            worker = {"front": front.url, "store_url": store, "model_dir": model_dir, "serving_profile": profile}
            with killed_after({**worker, "jobs": 1, "batches": 1}):
                async with asyncio.timeout(60):
                    while (await front.services.jobs.get(run.json()["id"])).outcome is None:
                        await asyncio.sleep(0.05)
                job = await front.services.jobs.get(run.json()["id"])
            stood = {(await client.batches.retrieve(batch.id)).status for batch in batches}
    assert job.state == "succeeded"
    assert stood <= {"validating", "in_progress"}
