"""What a program is given: prompts computed once, answers, choices, branches."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import orjson
import pytest

from programs.errors import ContextLengthError, UnknownDocumentError
from programs.model import ChatModel
from programs.runtime.context import Generated, ProgramContext, Progress, Selected
from programs.runtime.prompt import Prompt
from router.engine.client import EngineClient
from tests.conftest import CONTEXT, PAGE, engine_options
from tests.fake_engine import running_fake_engine
from tests.fake_engine.running import FakeEngine
from tests.model_files import agent_model_dir
from tests.programs.runtime.given import Stage, cancelled_amid_three


async def ask(context: ProgramContext, document: str, questions: list[str]) -> list[Generated]:
    opened = await context.document(document)
    prompt = Prompt((opened.passage(), "\n\n"), "Be brief.")
    await context.prefill(prompt)
    return await context.fork(context.generate(prompt.then(question), max_tokens=6) for question in questions)


async def test_a_document_is_prefilled_once_for_all_questions(stage: Stage, engine: FakeEngine) -> None:
    questions = [f"{number} lazy dogs?" for number in range(8)]
    result = await stage.run(ask, document=stage.shelf.ids[0], questions=questions)
    document, *answers = sorted(engine.state.finished, key=lambda one: len(one.output_ids))
    prefilled = len(document.prompt) // 4
    assert len(result.output) == 8
    assert {one.cached_tokens // PAGE for one in answers} == {prefilled // PAGE}
    computed = engine.state.prompt_tokens - engine.state.cached_tokens
    assert computed < prefilled + 8 * (len(answers[0].prompt) // 4 - prefilled + PAGE)
    provenance = result.provenance
    assert provenance.documents == tuple(stage.shelf.ids)
    assert (provenance.steps, provenance.output_tokens) == (9, 48)
    assert provenance.prompt_tokens == engine.state.prompt_tokens
    assert provenance.cached_tokens == engine.state.cached_tokens


async def test_an_unknown_document_is_named(stage: Stage) -> None:
    with pytest.raises(UnknownDocumentError, match="doc_none"):
        await stage.run(ask, document="doc_none", questions=[])


async def test_an_answer_says_how_it_ended_and_what_it_took(stage: Stage, engine: FakeEngine) -> None:
    async def program(context: ProgramContext) -> list[Generated]:
        prompt = Prompt(("a lazy dog",))
        engine.script.write([*stage.model.tokenizer.encode("fox jumps over", after_control=True), 0])
        whole = await context.generate(prompt, max_tokens=50)
        cut = await context.generate(prompt.then("?"), max_tokens=3)
        assert context.length(prompt) == whole.prompt_tokens
        return [whole, cut]

    whole, cut = (await stage.run(program)).output
    assert (whole["text"], whole["finish"]) == ("fox jumps over", "stop")
    assert (cut["finish"], cut["output_tokens"]) == ("length", 3)


async def test_a_stop_string_ends_an_answer_and_is_not_in_it(stage: Stage, engine: FakeEngine) -> None:
    async def program(context: ProgramContext) -> Generated:
        engine.script.write(stage.model.tokenizer.encode("fox jumps over a dog", after_control=True))
        return await context.generate(Prompt(("a",)), max_tokens=50, stop=" over")

    output = (await stage.run(program)).output
    assert (output["text"], output["finish"]) == ("fox jumps", "stop")


async def test_sampling_is_greedy_unless_asked_otherwise(stage: Stage, engine: FakeEngine) -> None:
    async def program(context: ProgramContext) -> None:
        await context.generate(Prompt(("a",)), max_tokens=2)
        await context.generate(Prompt(("a",)), max_tokens=2, temperature=0.7, json_schema={"type": "object"})

    await stage.run(program)
    greedy, asked = (one.body["sampling_params"] for one in engine.state.finished)
    assert (greedy["temperature"], "json_schema" in greedy) == (0.0, False)
    assert (asked["temperature"], orjson.loads(asked["json_schema"])) == (0.7, {"type": "object"})


async def test_reasoning_is_left_out_of_an_answer(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}{# <think></think> #}"
    directory = agent_model_dir(tmp_path)
    (directory / "chat_template.jinja").write_text(template)
    model = ChatModel.load(directory)
    controls = model.tokenizer.controls

    async def program(context: ProgramContext) -> Generated:
        return await context.generate(Prompt(("a lazy dog",)), max_tokens=50)

    async with running_fake_engine(engine_options(directory)) as engine:
        thought, said = (model.tokenizer.encode(text, after_control=True) for text in ("while having", "fox"))
        engine.script.write([controls["<think>"].id, *thought, controls["</think>"].id, *said, 0])
        output = (await Stage(model, EngineClient("a", engine.url, session)).run(program)).output
    assert (output["text"], output["output_tokens"]) == ("fox", len(thought) + len(said) + 3)


async def test_the_likeliest_choice_is_selected(stage: Stage) -> None:
    async def program(context: ProgramContext, choices: list[str]) -> Selected:
        return await context.select(Prompt(("a lazy dog",)), choices)

    async def said(context: ProgramContext) -> str:
        return (await context.generate(Prompt(("a lazy dog",)), max_tokens=1)).text

    likely = (await stage.run(said)).output
    result = await stage.run(program, choices=["quick", likely, "over a dog"])
    again = await stage.run(program, choices=[likely, "over a dog", "quick"])
    assert (result.output["choice"], result.output["index"]) == (likely, 1)
    assert all(score < 0 for score in result.output["scores"])
    assert sorted(again.output["scores"]) == sorted(result.output["scores"])
    assert again.output["index"] == 0


@pytest.mark.parametrize("choices", [[], ["a", ""]])
async def test_a_choice_there_is_not_is_refused(stage: Stage, choices: list[str]) -> None:
    async def program(context: ProgramContext) -> Selected:
        return await context.select(Prompt(("a",)), choices)

    with pytest.raises(ValueError, match="select needs choices"):
        await stage.run(program)


async def test_what_does_not_fit_the_context_is_refused_before_it_is_sent(stage: Stage, engine: FakeEngine) -> None:
    async def program(context: ProgramContext, tokens: int) -> None:
        await context.generate(Prompt(("a",)), max_tokens=tokens)

    async def length(context: ProgramContext) -> int:
        return context.prompts.room(Prompt(("a",)))

    room = (await stage.run(length)).output
    with pytest.raises(ContextLengthError, match=f"room for {CONTEXT - 8}"):
        await stage.run(program, tokens=room + 1)
    assert engine.state.received == 0


async def test_a_prompt_that_just_fits_is_taken_by_the_engine(stage: Stage, engine: FakeEngine) -> None:
    async def program(context: ProgramContext) -> int:
        prompt = Prompt(("a",))
        prompt = prompt.then(*["a"] * context.prompts.room(prompt))
        await context.prefill(prompt)
        return context.prompts.room(prompt)

    assert (await stage.run(program)).output == 0
    assert engine.state.received == 1


async def test_branches_come_back_in_order_and_run_sixteen_at_once(stage: Stage) -> None:
    running, most = 0, 0

    async def branch(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (40 - number))
        running -= 1
        return number

    async def program(context: ProgramContext) -> list[int]:
        return await context.fork(map(branch, range(40)))

    assert (await stage.run(program)).output == list(range(40))
    assert most == 16


async def test_the_first_branch_that_fails_ends_the_others(stage: Stage) -> None:
    ended: list[str] = []

    async def branch(number: int) -> None:
        if number == 3:
            raise LookupError("number three")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def program(context: ProgramContext) -> None:
        await context.fork([branch(number) for number in range(30)])

    with pytest.raises(LookupError, match="number three"):
        await stage.run(program)
    assert ended == ["cancelled"] * 15


async def test_cancelling_a_run_aborts_what_is_being_generated(model_dir: Path, session: aiohttp.ClientSession) -> None:
    async with running_fake_engine(engine_options(model_dir, decode_tokens_per_s=50)) as engine:
        client = EngineClient("a", engine.url, session)
        await cancelled_amid_three(Stage(ChatModel.load(model_dir), client), engine)
        await client.aclose()
        while not engine.state.idle:
            await asyncio.sleep(0.005)
        assert engine.state.aborted == 3


async def test_progress_is_told_as_it_is_made(stage: Stage) -> None:
    async def program(context: ProgramContext) -> None:
        context.progress(0, 2, "reading")
        context.progress(2, 2)

    await stage.run(program)
    assert stage.progress == [Progress(0, 2, "reading"), Progress(2, 2)]
