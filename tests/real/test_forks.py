"""Regenerating and editing make branches: each lives on with its own history, and what they share is stored once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer

from programs.ledger import Turn
from router.ids import ID_BYTES
from tests.real.front import Stack, running_stack
from tests.real.talk import Chained, Resending, Seen, assert_extends

pytestmark = pytest.mark.engine

PAGE = 16


@pytest.fixture(scope="module")
def stack(smollm2_engine: Any, smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(smollm2_engine.url, smollm2_dir, tmp_path_factory.mktemp("stack"), fronts=2) as stack:
        yield stack


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with stack.redis() as redis:
        await redis.flushall()
    async with stack.front.client() as client:
        yield client


@dataclass(frozen=True)
class Tree:
    """Three turns, the third made again, the second edited; each branch then went on for one more turn."""

    first: Seen
    second: Seen
    third: Seen
    regenerated: Seen
    edited: Seen
    after_third: Seen
    after_regenerated: Seen
    after_edited: Seen


async def grow_by_resending(client: AsyncOpenAI) -> Tree:
    trunk = Resending(client, {"temperature": 1.0, "max_tokens": 12})
    first, second, third = [await trunk.say(text) for text in ("Name a city.", "Another one.", "And a third.")]
    again, edit = trunk.branched(2), trunk.branched(1)
    return Tree(
        first,
        second,
        third,
        regenerated=await again.say("And a third."),
        edited=await edit.say("Name a river in it."),
        after_third=await trunk.say("Which is the largest?"),
        after_regenerated=await again.say("Which is the smallest?"),
        after_edited=await edit.say("Which is the oldest?"),
    )


async def grow_by_response_ids(client: AsyncOpenAI) -> Tree:
    trunk = Chained(client, {"temperature": 1.0, "max_output_tokens": 12})
    first, second, third = [await trunk.say(text) for text in ("Name a city.", "Another one.", "And a third.")]
    again, edit = Chained(client, trunk.options, second.id), Chained(client, trunk.options, first.id)
    return Tree(
        first,
        second,
        third,
        regenerated=await again.say("And a third."),
        edited=await edit.say("Name a river in it."),
        after_third=await trunk.say("Which is the largest?"),
        after_regenerated=await again.say("Which is the smallest?"),
        after_edited=await edit.say("Which is the oldest?"),
    )


GROW = {"resend": grow_by_resending, "previous_response_id": grow_by_response_ids}


@pytest.mark.parametrize("way", GROW)
async def test_branches_live_on_with_their_own_history(
    stack: Stack, client: AsyncOpenAI, tokenizer: Tokenizer, way: str
) -> None:
    tree = await GROW[way](client)
    assert_extends(tree.first, tree.second, PAGE)
    assert_extends(tree.second, tree.third, PAGE)
    assert tree.regenerated.prompt_ids == tree.third.prompt_ids
    assert tree.regenerated.cached_tokens >= whole_pages(len(tree.third.prompt_ids) - 1)
    assert_extends(tree.first, tree.edited, PAGE)
    assert_extends(tree.third, tree.after_third, PAGE)
    assert_extends(tree.regenerated, tree.after_regenerated, PAGE)
    assert_extends(tree.edited, tree.after_edited, PAGE)

    def shown(*pairs: tuple[str, Seen], last: str) -> list[str]:
        texts = [f"{text}<|im_end|>\n" for question, turn in pairs for text in (f"user\n{question}", said(turn))]
        return [*texts, f"user\n{last}<|im_end|>\n", "assistant\n"]

    first, second = ("Name a city.", tree.first), ("Another one.", tree.second)
    assert messages(tokenizer, tree.after_third) == shown(
        first, second, ("And a third.", tree.third), last="Which is the largest?"
    )
    assert messages(tokenizer, tree.after_regenerated) == shown(
        first, second, ("And a third.", tree.regenerated), last="Which is the smallest?"
    )
    assert messages(tokenizer, tree.after_edited) == shown(
        first, ("Name a river in it.", tree.edited), last="Which is the oldest?"
    )
    sessions = {turn.session_id for turn in (tree.first, tree.after_third, tree.after_regenerated, tree.after_edited)}
    assert len(sessions) == 1
    await assert_shared_turns_are_stored_once(stack, tree)


def said(turn: Seen) -> str:
    return f"assistant\n{turn.text}"


def messages(tokenizer: Tokenizer, turn: Seen) -> list[str]:
    """The prompt's messages after the system's, as the model reads them."""
    return tokenizer.decode(turn.prompt_ids, skip_special_tokens=False).split("<|im_start|>")[2:]


def whole_pages(tokens: int) -> int:
    return tokens - tokens % PAGE


async def assert_shared_turns_are_stored_once(stack: Stack, tree: Tree) -> None:
    """Ids and messages are in the store once, whatever number of branches they belong to."""
    turns = await stored_turns(stack)
    assert len(turns) == 8
    own = [
        len(tree.after_third.ids),
        len(tree.after_regenerated.ids) - len(tree.third.prompt_ids),
        len(tree.after_edited.ids) - len(tree.first.ids),
    ]
    assert stored_ids(turns) <= sum(own)
    assert sorted(message.content for turn in turns for message in turn.messages if message.role == "user") == [
        "And a third.",
        "Another one.",
        "Name a city.",
        "Name a river in it.",
        "Which is the largest?",
        "Which is the oldest?",
        "Which is the smallest?",
    ]


async def test_a_fork_of_a_fork_is_whole_on_another_front(stack: Stack, client: AsyncOpenAI) -> None:
    """A front that has seen none of it puts the branches together from the store."""
    options = {"temperature": 1.0, "max_output_tokens": 8}
    trunk = Chained(client, options)
    first = await trunk.say("Name a city.")
    await trunk.say("Another one.")
    fork = Chained(client, options, first.id)
    second = await fork.say("Another one.")
    await fork.say("And a third.")
    deeper = Chained(client, options, second.id)
    assert_extends(second, third := await deeper.say("And a third."), PAGE)
    assert_extends(third, fourth := await deeper.say("And a fourth."), PAGE)
    async with stack.fronts[1].client() as elsewhere:
        assert_extends(fourth, await Chained(elsewhere, options, fourth.id).say("And a fifth."), PAGE)
        assert_extends(third, await Chained(elsewhere, options, third.id).say("Or a river."), PAGE)


@pytest.mark.parametrize("way", ["resend", "previous_response_id"])
async def test_regenerating_stores_the_prompt_once(stack: Stack, client: AsyncOpenAI, way: str) -> None:
    """A long question answered thrice costs the store three answers, not three questions."""
    question = "Sum this up: " + "The river rises in the hills and goes down to the sea. " * 40
    if way == "resend":
        talk = Resending(client, {"temperature": 1.0, "max_tokens": 6})
        await talk.say("Hello.")
        turns = [await talk.branched(1).say(question) for _ in range(3)]
    else:
        options = {"temperature": 1.0, "max_output_tokens": 6}
        first = await Chained(client, options).say("Hello.")
        turns = [await Chained(client, options, first.id).say(question) for _ in range(3)]
    assert turns[0].prompt_ids == turns[1].prompt_ids == turns[2].prompt_ids
    outputs = sum(len(turn.output_ids) for turn in turns)
    assert stored_ids(await stored_turns(stack)) == len(turns[0].prompt_ids) + outputs


async def stored_turns(stack: Stack) -> list[Turn]:
    lists = [key for key in await stack.keys() if ":turns:" in key]
    async with stack.redis() as redis:
        packed = [one for key in lists for one in await redis.lrange(key, 0, -1)]
    return [msgspec.msgpack.decode(cast("bytes", one), type=Turn) for one in packed]


def stored_ids(turns: list[Turn]) -> int:
    return sum(len(turn.prompt_ids) + len(turn.output_ids) for turn in turns) // ID_BYTES
