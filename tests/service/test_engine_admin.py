"""Other weights for engines that run: what is refused, what sessions keep, and what the command says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from service.cli import app
from service.settings import Settings
from tests.conftest import Front, engine_options, running_front
from tests.fake_engine import FakeEngine, running_fake_engine
from tests.model_files import tiny_model_dir, with_weights
from tests.service.talk import client_of, get, output_of, post, prompt_of, respond, seen_by

REPLICA = "replica-0"
WEIGHTS = f"/admin/replicas/{REPLICA}/weights"


@pytest.fixture
def serving(tmp_path: Path) -> Path:
    return with_weights(tiny_model_dir(tmp_path / "tiny"))


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    return with_weights(tiny_model_dir(tmp_path / "tuned"))


@pytest.fixture
async def engine(serving: Path) -> AsyncIterator[FakeEngine]:
    options = engine_options(serving, model_path=str(serving), decode_tokens_per_s=200.0)
    async with running_fake_engine(options) as engine:
        yield engine


@pytest.fixture
async def front(engine: FakeEngine, store: str, serving: Path) -> AsyncIterator[Front]:
    async with running_front(
        Settings(engines=(f"replica-0={engine.url}",), model_dir=serving, store_url=store)
    ) as front:
        yield front


async def listed(front: Front) -> Any:
    return (await get(front, "/admin/weights")).json()["data"]


async def test_a_session_goes_on_with_other_weights(front: Front, serving: Path, tuned: Path) -> None:
    async with client_of(front) as client:
        before = await respond(client, "hello")
        answer = await post(front, WEIGHTS, {"model": str(tuned), "version": "2"})
        assert answer.status_code == 200
        assert {key: answer.json()[key] for key in ("replica", "model", "version")} == {
            "replica": REPLICA,
            "model": str(tuned),
            "version": "2",
        }
        after = await respond(client, "and on", previous_response_id=before.id)
        other = await respond(client, "hello")
    assert prompt_of(after)[: len(seen_by(before))] == seen_by(before)
    assert after.usage.input_tokens_details.cached_tokens == 0, "what the old weights computed is gone"
    assert prompt_of(other) == prompt_of(before)
    assert output_of(other) != output_of(before)
    assert await listed(front) == [{"replica": REPLICA, "model": str(tuned), "version": "2"}]


async def test_the_first_weights_come_back_as_they_were(front: Front, serving: Path, tuned: Path) -> None:
    async with client_of(front) as client:
        first = await respond(client, "hello")
        for model in (tuned, serving):
            assert (await post(front, WEIGHTS, {"model": str(model)})).status_code == 200
        assert output_of(await respond(client, "hello")) == output_of(first)
    assert await listed(front) == [{"replica": REPLICA, "model": str(serving), "version": "tiny"}]


async def test_a_turn_that_runs_ends_with_the_weights_it_began_with(
    front: Front, engine: FakeEngine, tuned: Path
) -> None:
    async with client_of(front) as client:
        alone = await respond(client, "count", max_output_tokens=60)
        running = asyncio.create_task(respond(client, "count", max_output_tokens=60))
        async with asyncio.timeout(5):
            while not engine.state.running:
                await asyncio.sleep(0.005)
        assert (await post(front, WEIGHTS, {"model": str(tuned)})).status_code == 200
        assert output_of(await running) == output_of(alone)


async def test_weights_that_do_not_fit_are_refused_and_nothing_changes(
    front: Front, engine: FakeEngine, serving: Path, tuned: Path
) -> None:
    with_weights(tuned, (4, 4))
    answer = await post(front, WEIGHTS, {"model": str(tuned)})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "incompatible_weights", "model")
    assert error["message"].endswith("tensors of another shape or type: embed")
    assert engine.engine.weights.swaps == 0


@pytest.mark.parametrize(
    ("model", "complaint"),
    [("/no/such", "no model directory at /no/such"), ("here", "model: must be an absolute path")],
)
async def test_a_directory_that_is_none_is_refused(front: Front, model: str, complaint: str) -> None:
    answer = await post(front, WEIGHTS, {"model": model})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == complaint


async def test_a_replica_that_there_is_not(front: Front, tuned: Path) -> None:
    answer = await post(front, "/admin/replicas/other/weights", {"model": str(tuned)})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "there is no replica 'other'; there are replica-0"


async def swap(front: Front, *arguments: str | Path) -> Result:
    given = ["engine", "swap", *map(str, arguments), "--url", front.url]
    return await asyncio.to_thread(CliRunner(env={"ANTIPHON_API_KEY": None}).invoke, app, given)


async def test_the_command_swaps_every_replica_and_says_what_it_did(front: Front, tuned: Path) -> None:
    done = await swap(front, tuned, "--version", "2")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{REPLICA}: serves {tuned} as 2 after ")
    assert await listed(front) == [{"replica": REPLICA, "model": str(tuned), "version": "2"}]


async def test_the_command_says_in_one_line_why_it_could_not(front: Front, tuned: Path) -> None:
    with_weights(tuned, (4, 4))
    failed = await swap(front, tuned)
    assert failed.exit_code == 1
    assert failed.stderr.count("\n") == 1
    assert failed.stderr.startswith(f"antiphon: model {tuned} cannot take the place of ")
    unknown = await swap(front, tuned, "--replica", "other")
    assert unknown.stderr == "antiphon: there is no replica 'other'; there are replica-0\n"
