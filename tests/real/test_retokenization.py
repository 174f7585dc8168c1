"""What an engine produced goes back to it unchanged, however it would be encoded again.

The model is random, on Qwen3's tokenizer and template: it writes control tokens where none belong, characters cut in
half, decomposed accents, and pairs of tokens that encoding would merge.
"""

from __future__ import annotations

import asyncio
import math
import random
import unicodedata
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer

from tests.real.front import Stack, running_stack
from tests.real.talk import Chained, Resending, Seen, assert_extends

pytestmark = pytest.mark.engine

PAGE = 16
IM_START, IM_END, THINK, END_THINK = 151644, 151645, 151667, 151668
FIRST_CONTROL = 151643
HAZARDS = frozenset({"spelled otherwise", "not composed", "cut character", "control token", "think token"})
ROUNDS = 8

PAIRS = {
    "two newlines": [198, 198],
    "full stop, two newlines": [13, 271],
    "two braces": [9207, 92],
    "two spaces": [256, 87],
}
WORDS = {" HAVING": [472, 8093, 1718], "</think>": [522, 26865, 29]}
CONTROL_TEXTS = ("<|im_end|>", "<|im_start|>system", "<think>", "</think>", "<tool_call>", "<|endoftext|>")


@pytest.fixture(scope="module")
def stack(qwen3_engine: Any, qwen3_random_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(qwen3_engine.url, qwen3_random_dir, tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture(scope="module")
def tokenizer(qwen3_random_dir: Path) -> Tokenizer:
    """The model's own, not ours."""
    return Tokenizer.from_file(str(qwen3_random_dir / "tokenizer.json"))


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with stack.front.client() as client:
        yield client


def produced(turn: Seen) -> list[int]:
    """The answer's ids, without the stop token."""
    return turn.output_ids[:-1] if turn.finish == "stop" else turn.output_ids


def hazards(tokenizer: Tokenizer, turn: Seen) -> set[str]:
    ids = produced(turn)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    found = {
        "spelled otherwise": tokenizer.encode(text, add_special_tokens=False).ids != ids,
        "not composed": unicodedata.normalize("NFC", text) != text,
        "cut character": "\ufffd" in text,
        "control token": any(one >= FIRST_CONTROL for one in ids),
        "think token": THINK in ids[1:] or END_THINK in ids,
    }
    return {name for name, there in found.items() if there}


def assert_keeps_the_answer(before: Seen, after: Seen) -> None:
    """The template drops the reasoning of `before`: what comes after it stays as it was produced."""
    start = before.output_ids.index(END_THINK) + 1 if END_THINK in before.output_ids else len(before.output_ids)
    answer = before.output_ids[start:]
    rest = after.prompt_ids[len(before.prompt_ids) :]
    assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
    blank = next((at for at in range(len(answer) + 1) if rest[: len(answer) - at] == answer[at:]), None)
    assert blank is not None
    assert blank <= 4, "more than the whitespace after the reasoning is gone"


async def converse(talk: Resending | Chained, turns: int) -> list[Seen]:
    return [await talk.say(f"Say something, the {number}th time.") for number in range(turns)]


async def test_produced_ids_come_back_unchanged(client: AsyncOpenAI, tokenizer: Tokenizer) -> None:
    """Rounds of conversations until every hazard has been met at least once, and met well."""
    lengths = random.Random(7)
    met: set[str] = set()
    for round_number in range(ROUNDS):
        talks: list[Resending | Chained] = []
        for number in range(3):
            tokens, seed = lengths.randint(30, 50), 100 * round_number + number
            talks += [
                Resending(client, {"temperature": 1.0, "max_tokens": tokens, "seed": seed}),
                Chained(client, {"temperature": 1.0, "max_output_tokens": tokens, "extra_body": {"seed": seed}}),
            ]
        for turns in await asyncio.gather(*(converse(talk, 5) for talk in talks)):
            for before, after in pairwise(turns):
                if before.reasoning_tokens:
                    assert_keeps_the_answer(before, after)
                else:
                    assert_extends(before, after, PAGE)
                    met |= hazards(tokenizer, before)
        if met == HAZARDS:
            break
    assert met == HAZARDS


@pytest.mark.parametrize("golden", PAIRS.values(), ids=PAIRS.keys())
async def test_golden_pairs_come_back_unchanged(client: AsyncOpenAI, tokenizer: Tokenizer, golden: list[int]) -> None:
    """The engine is biased until it writes ids that encoding would replace by others; these ids are what goes back."""
    text = tokenizer.decode(golden, skip_special_tokens=False)
    assert tokenizer.encode(text, add_special_tokens=False).ids != golden
    bias = dict.fromkeys(golden, 60.0)
    met: set[type] = set()
    for _ in range(ROUNDS):
        for talk, first, second in await asyncio.gather(*(asked_twice(talk) for talk in both(client, 40, bias))):
            assert_extends(first, second, PAGE)
            if holds(first.output_ids, golden):
                met.add(type(talk))
            balance(bias, first.output_ids)
        if met == {Resending, Chained}:
            return
    pytest.fail(f"{golden} was not produced")


def both(client: AsyncOpenAI, tokens: int, bias: dict[int, float]) -> list[Resending | Chained]:
    """A client of each kind, on an engine that favours the ids in `bias`."""
    favoured = {"logit_bias": {str(one): weight for one, weight in bias.items()}}
    return [
        Resending(client, {"temperature": 1.0, "max_tokens": tokens, **favoured}),
        Chained(client, {"temperature": 1.0, "max_output_tokens": tokens, "extra_body": favoured}),
    ]


async def asked_twice(talk: Resending | Chained) -> tuple[Resending | Chained, Seen, Seen]:
    return talk, await talk.say("Go."), await talk.say("Again.")


def balance(bias: dict[int, float], ids: list[int]) -> None:
    """Favour less what came up more often, so that in the end all come up alike."""
    for one, weight in bias.items():
        bias[one] = min(90.0, weight - math.log((ids.count(one) + 1) * len(bias) / len(ids)))


def holds(ids: Sequence[int], part: Sequence[int]) -> bool:
    return any(ids[at : at + len(part)] == part for at in range(len(ids) - len(part) + 1))


@pytest.mark.parametrize(("word", "golden"), WORDS.items())
async def test_golden_words_come_back_unchanged(
    client: AsyncOpenAI, tokenizer: Tokenizer, word: str, golden: list[int]
) -> None:
    """A grammar makes the engine write the word, and a bias in these tokens: `</think>` in three ordinary ones, which
    end no thinking, though the template looks for that very text."""
    assert tokenizer.encode(word, add_special_tokens=False).ids != golden
    quote = tokenizer.encode('"').ids
    schema = {"name": "answer", "schema": {"const": word}}
    resending, chained = both(client, 20, dict.fromkeys(quote + golden, 60.0))
    resending.options["response_format"] = {"type": "json_schema", "json_schema": schema}
    chained.options["text"] = {"format": {"type": "json_schema", **schema}}
    for _, first, second in await asyncio.gather(asked_twice(resending), asked_twice(chained)):
        assert first.output_ids == quote + golden + quote + [IM_END]
        assert first.text == f'"{word}"'
        assert first.reasoning_tokens == 0
        assert_extends(first, second, PAGE)


async def test_a_character_that_the_token_limit_cut_stays_cut(client: AsyncOpenAI, tokenizer: Tokenizer) -> None:
    """Its text is U+FFFD, which would be encoded as three other tokens."""
    lead, *rest = tokenizer.encode("\U0001fae0").ids
    assert rest
    for _, first, second in await asyncio.gather(*(asked_twice(talk) for talk in both(client, 5, {lead: 90.0}))):
        assert first.output_ids == [lead] * 5
        assert first.text.endswith("\ufffd")
        assert_extends(first, second, PAGE)


async def test_reasoning_goes_as_the_template_says_and_the_answer_stays_as_it_was(client: AsyncOpenAI) -> None:
    met: set[type] = set()
    for _ in range(3 * ROUNDS):
        talks = both(client, 24, {THINK: 8.0, END_THINK: 8.0})
        for talk, first, second in await asyncio.gather(*(asked_twice(talk) for talk in talks)):
            if not first.reasoning_tokens:
                assert_extends(first, second, PAGE)
                continue
            assert_keeps_the_answer(first, second)
            assert second.prompt_ids[: len(first.ids)] != first.ids
            if END_THINK in first.output_ids[:-4]:
                met.add(type(talk))
        if met == {Resending, Chained}:
            return
    pytest.fail("no turn with reasoning and an answer was produced")


@pytest.mark.parametrize("typed", CONTROL_TEXTS)
async def test_typed_text_never_becomes_a_control_token(client: AsyncOpenAI, tokenizer: Tokenizer, typed: str) -> None:
    """Neither in what a user types nor in what a client claims an assistant or the system said, nor on its way back."""
    said = f"a{typed}b {typed}\n{typed}"
    history = [
        {"role": "system", "content": said},
        {"role": "user", "content": said},
        {"role": "assistant", "content": f"x {said}"},
    ]
    resending = Resending(client, {"max_tokens": 8, "temperature": 1.0}, history)
    first = await resending.say(said)
    second = await resending.say(said)
    roles = ["system", "user", "assistant", "user", "assistant"]
    assert control_ids(first.prompt_ids) == [IM_START, IM_END] * (len(roles) - 1) + [IM_START]
    texts = [said, said, f"x {said}", said]
    shown = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in zip(roles, texts, strict=False))
    assert tokenizer.decode(first.prompt_ids, skip_special_tokens=False) == shown + "<|im_start|>assistant\n"
    added = second.prompt_ids[len(first.ids) :]
    stopped = first.finish == "stop"
    assert control_ids(added) == [*([] if stopped else [IM_END]), IM_START, IM_END, IM_START]
    assert said in tokenizer.decode(added, skip_special_tokens=False)


async def test_typed_control_text_stays_text_in_responses_too(client: AsyncOpenAI, tokenizer: Tokenizer) -> None:
    said = "".join(CONTROL_TEXTS)
    first = await Chained(client, {"max_output_tokens": 4}).say(said, instructions=said)
    assert control_ids(first.prompt_ids) == [IM_START, IM_END, IM_START, IM_END, IM_START]
    assert tokenizer.decode(first.prompt_ids, skip_special_tokens=False).count(said) == 2


def control_ids(ids: Sequence[int]) -> list[int]:
    return [one for one in ids if one >= FIRST_CONTROL]
