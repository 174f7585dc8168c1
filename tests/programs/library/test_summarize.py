"""Summaries: all of a document is read, and it always ends, whatever the model writes."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.errors import ContextLengthError, UnknownDocumentError
from programs.library.summarize import grouped, levels_of, summarize
from programs.runtime.program import Program
from tests.programs.library.lab import Lab, running_lab

SUMMARIZE = Program.of(summarize)
SENTENCES = 400
TEXT = "".join(f"Fact number {n} is what this sentence says.{chr(10) * (1 + n % 5 // 4)}" for n in range(SENTENCES))
"""Of 400 sentences, about 9,000 tokens of a model with a context of 4,096."""


def said(prompt: str) -> str:
    """What a model that summarizes by facts answers: which it was told."""
    facts = re.findall(r"(?:Fact number|#)\s*(\d+)", prompt)
    return " ".join(f"#{fact}" for fact in dict.fromkeys(facts[:2] + facts[-2:]))


def facts_in(prompts: list[str]) -> set[int]:
    return {int(number) for prompt in prompts for number in re.findall(r"Fact number (\d+) is what", prompt)}


async def test_every_sentence_reaches_some_prompt_and_summaries_are_combined(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(said)
        result = await lab.run(SUMMARIZE, document=await lab.document(TEXT), chunk_tokens=500, max_tokens=60)
        first, combined = _split(lab.prompts)
        assert facts_in(first) == set(range(SENTENCES))
        assert result.output["chunks"] == len(first) > 15
        assert result.output["levels"] >= 1
        assert result.output["summary"].startswith("#0 #1 ")
        assert result.output["summary"].endswith(f"#{SENTENCES - 1}")
        assert len(combined) + len(first) == len(lab.engine.state.finished)
        assert result.provenance.steps == len(lab.engine.state.finished)
        _require_counting_up(lab)


async def test_chunks_overlap(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:
        await lab.run(SUMMARIZE, document=await lab.document(TEXT), chunk_tokens=500, max_tokens=60)
        first = sorted(_split(lab.prompts)[0], key=lambda prompt: min(facts_in([prompt])))
        assert len(first) > 15
        assert all(facts_in([one]) & facts_in([next_one]) for one, next_one in pairwise(first))


@pytest.mark.parametrize("max_tokens", [16, 300, 100_000])
@pytest.mark.parametrize("method", ["map_reduce", "refine"])
async def test_it_ends_when_every_summary_is_as_long_as_it_may_be(
    store: str, model_dir: Path, method: str, max_tokens: int
) -> None:
    async with running_lab(
        store, model_dir
    ) as lab:  # never ends by itself, and says what encodes to more than it wrote
        document = await lab.document(TEXT)
        result = await lab.run(SUMMARIZE, document=document, method=method, max_tokens=max_tokens)
        assert facts_in(lab.prompts) == set(range(SENTENCES))
        assert result.output["summary"]
        assert result.output["levels"] <= result.output["chunks"]
        _require_counting_up(lab)


@pytest.mark.parametrize("method", ["map_reduce", "refine"])
async def test_it_ends_when_summaries_take_more_tokens_than_the_model_wrote(
    store: str, model_dir: Path, method: str
) -> None:
    async with running_lab(store, model_dir) as lab:
        torn = next(token for token in range(400) if lab.text([token]) == "\ufffd")  # three tokens, when it is read
        lab.engine.script.reply = lambda prompt: [torn] * 1_000
        result = await lab.run(SUMMARIZE, document=await lab.document(TEXT), method=method, max_tokens=100_000)
        assert facts_in(lab.prompts) == set(range(SENTENCES))
        assert set(result.output["summary"]) == {"\ufffd"}
        assert len(lab.prompts) > 2


async def test_a_document_that_fits_is_summarized_at_once(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(lambda prompt: " A fact. ")
        result = await lab.run(SUMMARIZE, document=await lab.document("Fact number 1."), focus="the number")
        assert result.output == {"summary": "A fact.", "chunks": 1, "levels": 0}
        assert "Summarize this document." in lab.prompts[0]
        assert "What matters most: the number." in lab.prompts[0]


@pytest.mark.parametrize(
    ("written", "summary"),
    [
        (
            "The fox jumps. Then it runs. Now it is here. The dog" + " going" * 50,
            "The fox jumps. Then it runs. Now it is here.",
        ),
        ("The fox jumps. " + "It runs on. " * 50, "The fox jumps. It runs on."),
        ("One. " + " fox" * 100, None),
        (" fox" * 100, None),
    ],
)
async def test_a_summary_that_was_cut_ends_with_a_whole_sentence_and_says_none_twice(
    store: str, model_dir: Path, written: str, summary: str | None
) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(lambda prompt: written)
        result = await lab.run(SUMMARIZE, document=await lab.document("Fact number 1."), max_tokens=30)
        said = result.output["summary"]
        assert said == summary or (summary is None and said in written and len(said) > 40)


async def test_refining_carries_one_summary_through_all_parts(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:
        lab.replies(said)
        document = await lab.document(TEXT)
        result = await lab.run(SUMMARIZE, document=document, method="refine", chunk_tokens=500, max_tokens=60)
        prompts = lab.prompts
        assert facts_in(prompts) == set(range(SENTENCES))
        assert result.output["chunks"] == len(prompts) > 15
        assert result.output["levels"] == 0
        for before, after in pairwise(prompts):
            assert f"Summary so far:\n{said(before)}\n\nNext part:" in after
        assert result.output["summary"] == said(prompts[-1])


async def test_it_asks_the_same_in_the_same_order_however_long_the_answers_take(store: str, model_dir: Path) -> None:
    bodies = []
    for speed in (0.0, 4_000.0):
        async with running_lab(store, model_dir, decode_tokens_per_s=speed) as lab:
            lab.replies(lambda prompt: said(prompt) * (1 + len(prompt) % 7))
            document = await lab.document(TEXT)
            output = (await lab.run(SUMMARIZE, document=document, chunk_tokens=300, max_tokens=60)).output
            bodies.append((sorted(lab.prompts), output))
    assert bodies[0] == bodies[1]


async def test_what_is_said_of_no_document_or_no_room_is_said_clearly(store: str, model_dir: Path) -> None:
    async with running_lab(store, model_dir) as lab:
        with pytest.raises(UnknownDocumentError):
            await lab.run(SUMMARIZE, document="doc_none")
        document = await lab.document(TEXT)
        with pytest.raises(ContextLengthError, match="tokens for a part of the document"):
            await lab.run(SUMMARIZE, document=document, focus="all of it " * 3_000)


@given(sizes=st.lists(st.integers(0, 50), max_size=40), room=st.integers(0, 100))
def test_groups_are_neighbours_that_fit_and_each_level_has_half_as_many_or_fewer(sizes: list[int], room: int) -> None:
    groups = grouped(sizes, room)
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    assert len(groups) <= (len(sizes) + 1) // 2
    for group in groups:
        assert len(group) <= 2 or sum(sizes[index] for index in group) <= room


@given(count=st.integers(1, 200), group=st.integers(0, 10))
def test_the_levels_to_come_are_those_of_groups_of_one_size(count: int, group: int) -> None:
    expected = []
    sizes = [1] * count
    while len(sizes) > 1:
        groups = grouped(sizes, group)
        expected.append(sum(len(one) > 1 for one in groups))
        sizes = [1] * len(groups)
    assert list(levels_of(count, group)) == expected


def _split(prompts: list[str]) -> tuple[list[str], list[str]]:
    """Those of parts, and those of summaries."""
    combined = [prompt for prompt in prompts if "summaries of consecutive parts" in prompt]
    return [prompt for prompt in prompts if prompt not in combined], combined


def _require_counting_up(lab: Lab) -> None:
    done = [one.done for one in lab.progress]
    assert done == list(range(1, len(done) + 1))
    assert all(one.done <= one.total for one in lab.progress)
    assert lab.progress[-1].done == lab.progress[-1].total == len(lab.engine.state.finished)
