"""Other weights in a running engine: what SGLang does, which the fake engine and the front count on."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from router.engine.client import EngineClient
from router.engine.control import EngineControl
from router.engine.preflight import pick_port
from router.engine.server import EngineLaunch, EngineServer
from router.errors import EngineRefusedError, EngineUnavailableError
from router.model.compatibility import check_swap
from router.model.directory import ModelDirectory
from router.request import Delta, GenerateRequest, Sampling
from tests.real.engines import BackgroundEngine, profile_for_tests

PROMPT = array("I", range(1000, 1064))
NO_END = ((151645, -100.0), (151643, -100.0))


@pytest.fixture(scope="session")
def other_weights(qwen3_random_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, but that each token means what another did."""
    directory = tmp_path_factory.mktemp("swap") / "other"
    shutil.copytree(qwen3_random_dir, directory)
    weights = load_file(directory / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = embedding[np.random.default_rng(1).permutation(len(embedding))]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture
async def client(qwen3_engine: BackgroundEngine) -> AsyncIterator[EngineClient]:
    async with aiohttp.ClientSession() as session:
        yield EngineClient("real", qwen3_engine.url, session)


async def generate(client: EngineClient, tokens: int = 8) -> tuple[list[int], Delta]:
    # Never a rid twice: SGLang aborts each again two seconds after its stream has ended.
    request = GenerateRequest(secrets.token_hex(16), PROMPT, Sampling(tokens, temperature=0.0, logit_bias=NO_END))
    async with aclosing(client.generate(request)) as stream:
        deltas = [delta async for delta in stream]
    return [token for delta in deltas for token in delta.token_ids], deltas[-1]


async def test_weights_are_swapped_and_back_and_nothing_of_the_old_ones_is_reused(
    client: EngineClient, qwen3_random_dir: Path, other_weights: Path
) -> None:
    check_swap(ModelDirectory.read(qwen3_random_dir), ModelDirectory.read(other_weights))
    before, _ = await generate(client)
    again, warm = await generate(client)
    assert again == before
    assert warm.cached_tokens > 0
    try:
        await client.control.swap_weights(other_weights, "two")
        assert (await client.control.weights()).version == "two"
        swapped, cold = await generate(client)
        assert swapped != before
        assert cold.cached_tokens == 0
    finally:
        await client.control.swap_weights(qwen3_random_dir, "one")
    back, cold = await generate(client)
    assert back == before
    assert cold.cached_tokens == 0
    assert (await client.control.weights()).model_path == str(qwen3_random_dir)


async def test_what_runs_ends_with_the_old_weights_and_what_comes_waits_for_the_new(
    client: EngineClient, qwen3_random_dir: Path, other_weights: Path
) -> None:
    old, _ = await generate(client, 60)
    running = asyncio.create_task(generate(client, 60))
    await asyncio.sleep(0.3)
    try:
        swap = asyncio.create_task(client.control.swap_weights(other_weights, "two"))
        await asyncio.sleep(0.1)
        coming = asyncio.create_task(generate(client, 8))
        assert (await running)[0] == old
        await swap
        new, _ = await coming
        assert new == (await generate(client, 8))[0]
        assert new != old[:8]
    finally:
        await client.control.swap_weights(qwen3_random_dir, "one")


async def test_a_directory_that_is_none_changes_nothing(client: EngineClient, qwen3_random_dir: Path) -> None:
    before, _ = await generate(client)
    with pytest.raises(EngineRefusedError, match="does not take the weights of /no/such: Failed to get weights"):
        await client.control.swap_weights(Path("/no/such"), "none")
    assert (await generate(client))[0] == before


@pytest.mark.slow
async def test_on_the_cpu_an_engine_cannot_sleep_and_dies_of_being_told_to(
    qwen3_random_dir: Path, engine_python: Path, tmp_path: Path
) -> None:
    profile = profile_for_tests(qwen3_random_dir, "qwen3")
    launch = EngineLaunch(
        profile, qwen3_random_dir, engine_python, pick_port("127.0.0.1"), tmp_path / "log", os.environ
    )
    server = await EngineServer.start(launch)
    try:
        async with aiohttp.ClientSession() as session:
            await server.wait_ready()
            control = EngineControl("real", server.url, session)
            assert not await control.can_sleep()
            assert await control.idle()
            with pytest.raises(EngineUnavailableError):
                await control.sleep()
        async with asyncio.timeout(30):
            await server.child.wait()
    finally:
        await server.stop()
