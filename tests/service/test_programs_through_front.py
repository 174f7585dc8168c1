"""A program whose engine is a front: what it gets is what the engine itself would have said."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from programs.model import ChatModel
from programs.runtime.context import ProgramContext
from programs.runtime.prompt import Prompt
from programs.runtime.steps import StepRetry
from router.engine.client import EngineClient
from router.errors import EngineRefusedError
from tests.conftest import Front, front_on
from tests.fake_engine.running import FakeEngine
from tests.programs.runtime.given import Shelf, Stage, cancelled_amid_three

TEXT = "the quick brown fox jumps over a lazy dog " * 20


async def program(context: ProgramContext, document: str) -> list[str]:
    prompt = Prompt(((await context.document(document)).passage(), "\n"))
    await context.prefill(prompt)
    said = await context.fork(context.generate(prompt.then(text), max_tokens=5) for text in ("a", "b", "c"))
    chosen = await context.select(prompt.then("d"), ["fox", "dog", "over a"])
    return [*(one.text for one in said), chosen.choice, *map(str, chosen.scores)]


async def test_a_front_says_what_the_engine_says(front: Front, engine: FakeEngine, model_dir: Path) -> None:
    model = ChatModel.load(model_dir)
    async with aiohttp.ClientSession() as session:
        through = Stage(model, EngineClient("front", front.url, session), Shelf(TEXT))
        direct = Stage(model, EngineClient("engine", engine.url, session), Shelf(TEXT))
        result = await through.run(program, document=through.shelf.ids[0])
        expected = await direct.run(program, document=through.shelf.ids[0])
    assert result.output == expected.output
    cached, prompt = result.provenance.cached_tokens, result.provenance.prompt_tokens
    assert 0 < cached < prompt == expected.provenance.prompt_tokens


async def test_a_program_outlives_its_engine_behind_the_front(
    front: Front, engine: FakeEngine, model_dir: Path
) -> None:
    async def answer(context: ProgramContext) -> str:
        return (await context.generate(Prompt(("a",)), max_tokens=20)).text

    model = ChatModel.load(model_dir)
    async with aiohttp.ClientSession() as session:
        direct = Stage(model, EngineClient("engine", engine.url, session))
        undisturbed = (await direct.run(answer)).output
        engine.fail(die_after_tokens=10)
        client = EngineClient("front", front.url, session)
        run = asyncio.create_task(Stage(model, client, retry=StepRetry(60.0, 0.05, 0.2)).run(answer))
        while engine.alive:
            await asyncio.sleep(0.005)
        await engine.revive()
        assert (await run).output == undisturbed


async def test_what_a_front_refuses_is_not_tried_again(front: Front, model_dir: Path) -> None:
    async def answer(context: ProgramContext) -> str:
        return (await context.generate(Prompt(("a",)), max_tokens=20, temperature=-1.0)).text

    async with aiohttp.ClientSession() as session:
        client = EngineClient("front", front.url, session)
        with pytest.raises(EngineRefusedError, match="temperature"):
            await Stage(ChatModel.load(model_dir), client, retry=StepRetry(3600.0, 60.0, 60.0)).run(answer)


async def test_cancelling_a_run_aborts_behind_the_front(store: str, model_dir: Path) -> None:
    async with (
        front_on({"decode_tokens_per_s": 50}, store, model_dir) as (front, engine),
        aiohttp.ClientSession() as session,
    ):
        client = EngineClient("front", front.url, session)
        await cancelled_amid_three(Stage(ChatModel.load(model_dir), client), engine)
        await client.aclose()
        while not engine.state.idle:
            await asyncio.sleep(0.005)
        assert engine.state.aborted == 3
        assert front.in_flight == 0
