"""Steps: stored once, not repeated, and tried again while what is in the way may pass."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.errors import StoreUnavailableError
from programs.model import ChatModel
from programs.runtime.context import ProgramContext
from programs.runtime.prompt import Prompt
from programs.runtime.steps import MemoryStepStore, StepInputs, StepOutput, StepRetry
from router.engine.client import EngineClient
from router.errors import EngineRefusedError, EngineUnavailableError
from tests.conftest import engine_options
from tests.fake_engine import running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.programs.runtime.given import Stage

STEPS = 6


async def program(context: ProgramContext, document: str) -> list[str]:
    """A prefill, three branches, a choice and a last answer: STEPS steps."""
    prompt = Prompt(((await context.document(document)).passage(), "\n"))
    await context.prefill(prompt)
    said = await context.fork(context.generate(prompt.then(text), max_tokens=5) for text in ("a", "b", "c"))
    chosen = await context.select(prompt.then("d"), ["fox", "dog"])
    last = await context.generate(prompt.then(chosen.choice, *(one.text for one in said)), max_tokens=5)
    return [*(one.text for one in said), chosen.choice, last.text]


class Killed(BaseException):
    """What a kill does to a program: nothing of it goes on."""


class MortalSteps(MemoryStepStore):
    """Dies when it has stored so many outputs more."""

    def __init__(self, outputs: dict[str, bytes], left: int) -> None:
        super().__init__()
        self.outputs = outputs
        self._left = left

    async def put(self, digest: str, output: bytes) -> bytes:
        if not self._left:
            raise Killed
        self._left -= 1
        return await super().put(digest, output)


async def test_a_run_that_was_killed_anywhere_goes_on_with_what_was_stored(stage: Stage, engine: FakeEngine) -> None:
    document = stage.shelf.ids[0]
    undisturbed = await stage.run(program, document=document)
    assert undisturbed.provenance.steps == STEPS
    for stored in range(STEPS):
        outputs: dict[str, bytes] = {}
        with pytest.raises(Killed):
            await replace(stage, steps=MortalSteps(outputs, stored)).run(program, document=document)
        assert len(outputs) == stored
        kept = dict(outputs)
        result = await replace(stage, steps=MortalSteps(outputs, STEPS - stored)).run(program, document=document)
        assert result.output == undisturbed.output
        assert result.provenance.steps == STEPS
        assert result.provenance.output_tokens == undisturbed.provenance.output_tokens
        assert kept.items() <= outputs.items()


async def test_a_run_with_all_its_steps_stored_asks_the_engine_nothing(stage: Stage, engine: FakeEngine) -> None:
    first = await stage.run(program, document=stage.shelf.ids[0])
    received = engine.state.received
    again = await stage.run(program, document=stage.shelf.ids[0])
    assert engine.state.received == received > 0
    assert again.output == first.output
    assert replace(again.provenance, seconds=0) == replace(first.provenance, seconds=0)


async def test_the_same_question_asked_again_is_another_step(model_dir: Path, session: aiohttp.ClientSession) -> None:
    async def dice(context: ProgramContext, times: int) -> list[str]:
        throws = [await context.generate(Prompt(("a",)), max_tokens=8, temperature=1.0) for _ in range(times)]
        return [throw.text for throw in throws]

    async with running_fake_engine(engine_options(model_dir, deterministic=False)) as engine:
        stage = Stage(ChatModel.load(model_dir), EngineClient("a", engine.url, session))
        thrown = (await stage.run(dice, times=3)).output
        again = (await stage.run(dice, times=4)).output
        assert engine.state.received == 4
    assert len(set(thrown)) == 3
    assert again[:3] == thrown


async def test_what_another_wrote_first_is_gone_on_with(stage: Stage) -> None:
    class Contested(MemoryStepStore):
        async def put(self, digest: str, output: bytes) -> bytes:
            theirs = msgspec.structs.replace(
                msgspec.json.decode(output, type=StepOutput), text="theirs", output_tokens=7
            )
            return await super().put(digest, msgspec.json.encode(theirs))

    async def answer(context: ProgramContext) -> str:
        return (await context.generate(Prompt(("a",)), max_tokens=5)).text

    result = await replace(stage, steps=Contested()).run(answer)
    assert (result.output, result.provenance.output_tokens) == ("theirs", 7)


@pytest.mark.parametrize(
    "faults",
    [
        {"fail_next": 3, "fail_status": 500},
        {"fail_next": 2, "fail_status": 503},
        {"fail_next": 2, "fail_status": 429},
        {"cut_next": 2, "cut_after_tokens": 2},
    ],
    ids=str,
)
async def test_a_step_outlives_what_passes(stage: Stage, engine: FakeEngine, faults: dict[str, int]) -> None:
    undisturbed = (await stage.run(program, document=stage.shelf.ids[0])).output
    engine.fail(**faults)
    again = await replace(stage, steps=MemoryStepStore()).run(program, document=stage.shelf.ids[0])
    assert again.output == undisturbed
    assert again.provenance.steps == STEPS
    assert engine.faults.fail_next == engine.faults.cut_next == 0


async def test_a_step_outlives_an_engine_that_dies_and_comes_back(stage: Stage, engine: FakeEngine) -> None:
    async def answer(context: ProgramContext) -> str:
        return (await context.generate(Prompt(("a",)), max_tokens=20)).text

    undisturbed = (await stage.run(answer)).output
    engine.fail(die_after_tokens=10)
    run = asyncio.create_task(replace(stage, steps=MemoryStepStore()).run(answer))
    while engine.alive:
        await asyncio.sleep(0.005)
    await engine.revive()
    assert (await run).output == undisturbed


async def test_a_step_outlives_a_store_that_is_away(stage: Stage, engine: FakeEngine) -> None:
    class Away(MemoryStepStore):
        """Every other time."""

        asked = 0

        def _ask(self) -> None:
            self.asked += 1
            if self.asked % 2:
                raise StoreUnavailableError("the store cannot be reached")

        async def get(self, digest: str) -> bytes | None:
            self._ask()
            return await super().get(digest)

        async def put(self, digest: str, output: bytes) -> bytes:
            self._ask()
            return await super().put(digest, output)

    async def one_after_the_other(context: ProgramContext) -> list[str]:
        return [(await context.generate(Prompt((text,)), max_tokens=5)).text for text in ("a", "b")]

    undisturbed = (await stage.run(one_after_the_other)).output
    received = engine.state.received
    again = await replace(stage, steps=Away()).run(one_after_the_other)
    assert again.output == undisturbed
    assert engine.state.received == 2 * received, "what was computed is kept until it can be stored"


async def test_a_step_is_given_up_when_its_time_has_passed(stage: Stage, engine: FakeEngine) -> None:
    engine.fail(fail_next=1_000_000)
    with pytest.raises(EngineUnavailableError, match="answered 500"):
        await replace(stage, retry=StepRetry(0.2, 0.01, 0.05)).run(program, document=stage.shelf.ids[0])
    tried = 1_000_000 - engine.faults.fail_next
    assert 3 < tried < 40


async def test_what_the_engine_refuses_is_not_tried_again(stage: Stage, engine: FakeEngine) -> None:
    engine.fail(fail_next=1, fail_status=400)
    with pytest.raises(EngineRefusedError):
        await stage.run(program, document=stage.shelf.ids[0])
    assert engine.state.received == 0


IDS = st.lists(st.integers(0, 2**32 - 1), max_size=4).map(lambda ids: array("I", ids))
INPUTS = st.builds(
    StepInputs,
    kind=st.sampled_from(["prefill", "generate"]),
    model=st.text("ab:1", max_size=3),
    prompt_ids=IDS,
    how=st.binary(max_size=3),
)


@given(INPUTS, INPUTS, st.integers(0, 2), st.integers(0, 2))
def test_only_the_same_step_has_the_same_digest(one: StepInputs, other: StepInputs, first: int, second: int) -> None:
    assert (one.digest(first) == other.digest(second)) == ((one, first) == (other, second))
