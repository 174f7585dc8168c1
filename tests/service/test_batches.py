"""`/v1/batches`, through the openai SDK: a worker in this process, a fake engine, a real store."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai import APIStatusError, AsyncOpenAI, ConflictError, NotFoundError
from redis import Redis

from programs.jobs.job import JobSpec, new_job_id
from service.batch.parameters import PROGRAM, VERSION, BatchParameters, batch_of
from service.settings import Settings
from tests.conftest import MODEL, Front, engine_options, front_on, running_front
from tests.fake_engine import running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.service.batching import begin, completed, ended, jsonl, line, lines_of, running_worker
from tests.service.talk import CHAT, RESPONSES, ask, client_of, get, respond


@pytest.fixture
async def client(front: Front) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(front) as client:
        yield client


@pytest.fixture
async def worker(front: Front, store: str) -> AsyncIterator[None]:
    async with running_worker(front, store):
        yield


async def test_each_request_is_answered_as_if_it_had_been_sent_alone(
    client: AsyncOpenAI, worker: None, engine: FakeEngine
) -> None:
    said = {f"id-{number}": f"question {number}" for number in range(40)}
    begun = await begin(client, [line(name, text) for name, text in said.items()], metadata={"topic": "test"})
    batch = await ended(client, begun)
    answers = await lines_of(client, batch.output_file_id)
    alone = [await ask(client, text, max_tokens=4, extra_body={"return_token_ids": False}) for text in said.values()]
    assert [answer["custom_id"] for answer in answers] == list(said)
    for answer, expected in zip(answers, alone, strict=True):
        assert (answer["error"], answer["response"]["status_code"]) == (None, 200)
        body = answer["response"]["body"]
        assert (body["object"], body["choices"]) == ("chat.completion", expected.to_dict()["choices"])
    ids = {one["id"] for one in answers} | {one["response"]["request_id"] for one in answers}
    assert len(ids) == 2 * len(said)
    assert (batch.status, batch.error_file_id, batch.errors, batch.model) == ("completed", None, None, MODEL)
    assert batch.request_counts.to_dict() == {"total": 40, "completed": 40, "failed": 0}
    assert batch.usage.output_tokens == sum(answer.usage.completion_tokens for answer in alone)
    assert batch.usage.input_tokens == sum(answer.usage.prompt_tokens for answer in alone)
    assert batch.metadata == {"topic": "test"}


@pytest.mark.slow
async def test_the_example_in_the_docs_works(front: Front, worker: None, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text().partition("## Batches")[2]
    program, request = page.partition("```python\n")[2], page.partition("```json\n")[2].partition("\n")[0]
    program = program.partition("```")[0].replace("http://127.0.0.1:8080", front.url).replace("sleep(5)", "sleep(0.1)")
    (tmp_path / "requests.jsonl").write_text(request.replace("smollm2-135m-instruct", MODEL))
    argv = (sys.executable, "-c", program)
    process = await asyncio.create_subprocess_exec(*argv, cwd=tmp_path, stdout=subprocess.PIPE)
    printed, _ = await process.communicate()
    (answer,) = [json.loads(one) for one in printed.splitlines() if one]
    assert (answer["custom_id"], answer["response"]["status_code"]) == ("1", 200)


async def test_a_batch_tells_where_it_stands(front: Front, store: str, client: AsyncOpenAI) -> None:
    expiry = {"anchor": "created_at", "seconds": 3600}
    begun = await begin(client, [line("a")], output_expires_after=expiry)
    assert (begun.id[:6], begun.object, begun.status) == ("batch_", "batch", "validating")
    assert (begun.endpoint, begun.completion_window) == (CHAT, "24h")
    assert begun.expires_at == begun.created_at + 24 * 3600
    assert (await client.batches.retrieve(begun.id)).to_dict() == begun.to_dict()
    async with running_worker(front, store):
        batch = await ended(client, begun)
    output = await client.files.retrieve(batch.output_file_id)
    times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert list(times) == sorted(times)
    assert (batch.failed_at, batch.expired_at, batch.cancelling_at, batch.cancelled_at) == (None,) * 4
    assert output.expires_at == output.created_at + 3600
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")


async def test_responses_come_in_batches_too(client: AsyncOpenAI, worker: None) -> None:
    body = {"model": MODEL, "input": "hello", "max_output_tokens": 4}
    begun = await begin(
        client, [{"custom_id": "a", "method": "POST", "url": RESPONSES, "body": body}], endpoint=RESPONSES
    )
    batch = await ended(client, begun)
    (answer,) = await lines_of(client, batch.output_file_id)
    alone = await respond(client, "hello", max_output_tokens=4)
    assert answer["response"]["body"]["output"][0]["content"] == alone.to_dict()["output"][0]["content"]
    assert batch.usage.output_tokens == alone.usage.output_tokens


async def test_no_session_is_kept_of_a_batch_unless_a_request_asks_for_it(
    client: AsyncOpenAI, worker: None, store: str
) -> None:
    await ended(client, await begin(client, [line("a", "one"), line("b", "two", one_off=False)]))
    with Redis.from_url(store) as redis:
        assert len(list(redis.scan_iter("antiphon:*:branch:*"))) == 1


async def test_a_request_that_is_refused_goes_to_the_error_file(client: AsyncOpenAI, worker: None) -> None:
    begun = await begin(client, [line("a"), line("long", "x" * 20_000), line("b")], endpoint=CHAT)
    batch = await ended(client, begun)
    (failed,) = await lines_of(client, batch.error_file_id)
    assert [answer["custom_id"] for answer in await lines_of(client, batch.output_file_id)] == ["a", "b"]
    assert (failed["custom_id"], failed["error"], failed["response"]["status_code"]) == ("long", None, 400)
    assert failed["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
    assert batch.status == "completed"


async def test_an_input_with_wrong_lines_fails_before_any_is_sent(
    client: AsyncOpenAI, worker: None, engine: FakeEngine
) -> None:
    before = engine.state.received
    data = jsonl([line("a")]) + b"\n{no json\n" + jsonl([line("a"), line("b", model="other")])
    batch = await ended(client, await begin(client, data))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.failed_at is not None
    assert [(error.line, error.code, error.param) for error in batch.errors.data] == [
        (3, "invalid_json_line", None),
        (4, "duplicate_custom_id", "custom_id"),
        (5, "model_not_found", "body.model"),
    ]
    assert engine.state.received == before


async def test_an_input_without_requests_fails(client: AsyncOpenAI, worker: None) -> None:
    batch = await ended(client, await begin(client, b"\n  \n"))
    assert (batch.status, [error.code for error in batch.errors.data]) == ("failed", ["empty_file"])


async def test_an_input_that_goes_away_fails_the_batch(front: Front, store: str, client: AsyncOpenAI) -> None:
    begun = await begin(client, [line("a")])
    await client.files.delete(begun.input_file_id)
    async with running_worker(front, store):
        batch = await ended(client, begun)
    assert (batch.status, [error.code for error in batch.errors.data]) == ("failed", ["unknown_file"])


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"input_file_id": "file-none"}, 404, "file_id"),
        ({"metadata": {"k" * 65: ""}}, 400, f"metadata.{'k' * 65}.[key]"),
        ({"metadata": {str(number): "" for number in range(17)}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after.seconds"),
    ],
)
async def test_a_batch_that_cannot_be_is_refused(
    client: AsyncOpenAI, change: dict[str, Any], status: int, param: str
) -> None:
    file = await client.files.create(file=b"x", purpose="batch")
    given: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **change}
    with pytest.raises(APIStatusError) as refused:
        await client.batches.create(**given)
    assert (refused.value.status_code, refused.value.param) == (status, param)


async def test_the_output_of_a_batch_is_no_input(client: AsyncOpenAI, worker: None) -> None:
    batch = await ended(client, await begin(client, [line("a")]))
    with pytest.raises(APIStatusError) as refused:
        await client.batches.create(
            input_file_id=batch.output_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    assert (refused.value.status_code, refused.value.param) == (400, "input_file_id")


async def test_batches_are_listed_page_by_page(client: AsyncOpenAI) -> None:
    made = [(await begin(client, [line("a")])).id for _ in range(5)]
    assert [batch.id async for batch in client.batches.list(limit=2)] == made[::-1]
    page = await client.batches.list(limit=2, after=made[2])
    assert ([batch.id for batch in page.data], page.has_more) == ([made[1], made[0]], False)


@pytest.mark.parametrize("batch_id", ["batch_none", "job_none", "x"])
async def test_a_batch_that_is_not_there_is_said_not_to_be(client: AsyncOpenAI, batch_id: str) -> None:
    for ask_for in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(NotFoundError) as refused:
            await ask_for(batch_id)
        assert refused.value.code == "batch_not_found"


async def test_a_batch_that_no_worker_has_begun_is_cancelled_at_once(
    front: Front, store: str, client: AsyncOpenAI, engine: FakeEngine
) -> None:
    before = engine.state.received
    begun = await begin(client, [line("a")])
    batch = await client.batches.cancel(begun.id)
    assert (batch.status, batch.output_file_id) == ("cancelled", None)
    assert batch.cancelling_at is not None
    assert batch.cancelled_at is not None
    async with running_worker(front, store):
        after = await ended(client, await begin(client, [line("b")]))
    assert (after.status, engine.state.received) == ("completed", before + 1)
    assert (await client.batches.retrieve(begun.id)).to_dict() == batch.to_dict()


async def test_a_cancelled_batch_keeps_what_was_answered(store: str, model_dir: Path) -> None:
    async with (
        front_on({"decode_tokens_per_s": 100}, store, model_dir) as (front, engine),
        client_of(front) as client,
        running_worker(front, store),
    ):
        quick = [line(f"quick-{number}", max_tokens=1) for number in range(20)]
        slow = [line(f"slow-{number}", max_tokens=2000) for number in range(20)]
        begun = await begin(client, quick + slow)
        async with asyncio.timeout(30):
            while await completed(client, begun) < 20:
                await asyncio.sleep(0.05)
        asked = await client.batches.cancel(begun.id)
        batch = await ended(client, begun)
        async with asyncio.timeout(5):
            while not engine.state.idle or front.in_flight:
                await asyncio.sleep(0.02)
        answers, failures = [await lines_of(client, one) for one in (batch.output_file_id, batch.error_file_id)]
        with pytest.raises(ConflictError):
            await client.batches.cancel((await ended(client, await begin(client, [line("z")]))).id)
    assert (asked.status, batch.status) == ("cancelling", "cancelled")
    assert {answer["custom_id"] for answer in answers} >= {request["custom_id"] for request in quick}
    assert len(answers) + len(failures) == 40
    assert {one["error"]["code"] for one in failures} == {"batch_cancelled"}
    assert {one["response"] for one in failures} == {None}
    assert batch.request_counts.to_dict() == {"total": 40, "completed": len(answers), "failed": 0}
    assert batch.cancelled_at >= batch.cancelling_at


@pytest.mark.slow
async def test_a_batch_whose_time_is_up_keeps_what_was_answered(store: str, model_dir: Path) -> None:
    async with (
        front_on({"decode_tokens_per_s": 100}, store, model_dir) as (front, _),
        client_of(front) as client,
    ):
        lines = jsonl([line("quick", max_tokens=1), line("slow", max_tokens=2000)])
        file = await client.files.create(file=lines, purpose="batch")
        parameters = BatchParameters(file.id, "/v1/chat/completions", "24h", window_s=3)
        spec = JobSpec(new_job_id(), PROGRAM, VERSION, msgspec.json.encode(parameters), time.time())
        await front.services.batches.submit(spec)
        async with running_worker(front, store):
            batch = await ended(client, await client.batches.retrieve(batch_of(spec.id)))
        answers, failures = [await lines_of(client, one) for one in (batch.output_file_id, batch.error_file_id)]
    assert (batch.status, batch.expired_at is not None) == ("expired", True)
    assert [one["custom_id"] for one in answers] == ["quick"]
    assert [(one["custom_id"], one["error"]["code"]) for one in failures] == [("slow", "batch_expired")]


@pytest.mark.slow
async def test_a_batch_waits_for_a_front_that_is_full(store: str, model_dir: Path) -> None:
    options = engine_options(model_dir, max_running_requests=1, decode_tokens_per_s=400)
    async with running_fake_engine(options) as engine:
        settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store, queue_requests=1)
        async with running_front(settings) as front, client_of(front) as client, running_worker(front, store):
            batch = await ended(client, await begin(client, [line(str(number)) for number in range(8)]))
            metrics = (await get(front, "/metrics")).text
            answers = await lines_of(client, batch.output_file_id)
    assert (batch.status, len(answers), batch.request_counts.failed) == ("completed", 8, 0)
    assert sum(float(one.split()[1]) for one in metrics.splitlines() if one.startswith("antiphon_shed_total")) > 0


async def test_someone_who_waits_comes_before_a_batch(store: str, model_dir: Path) -> None:
    pace = {"max_running_requests": 1, "decode_tokens_per_s": 200}
    async with (
        front_on(pace, store, model_dir) as (front, engine),
        client_of(front) as client,
        running_worker(front, store),
    ):
        begun = await begin(client, [line(str(number), max_tokens=10) for number in range(16)])
        async with asyncio.timeout(10):
            while engine.state.running == 0 or len(engine.state.finished) < 2:
                await asyncio.sleep(0.01)
        before = len(engine.state.finished)
        await ask(client, "how about me?", max_tokens=1)
        between = len(engine.state.finished) - before - 1
        by_then = await completed(client, begun)
        batch = await ended(client, begun)
    assert between <= 3
    assert by_then < 10
    assert batch.request_counts.completed == 16


@pytest.mark.slow
async def test_a_batch_waits_for_an_engine_that_is_gone(
    front: Front, store: str, client: AsyncOpenAI, engine: FakeEngine
) -> None:
    await engine.die()
    async with running_worker(front, store):
        begun = await begin(client, [line(str(number)) for number in range(4)])
        await asyncio.sleep(1)
        assert (await client.batches.retrieve(begun.id)).status in ("validating", "in_progress")
        await engine.revive()
        batch = await ended(client, begun)
    assert (batch.status, batch.request_counts.completed) == ("completed", 4)
