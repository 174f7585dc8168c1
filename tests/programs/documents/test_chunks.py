"""Chunks hold every token, keep to their budget, and end where the text has an end."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs.documents.chunks import Chunk, chunked
from programs.documents.tokens import DocumentTokens

PIECES = ["word", "Wort.", "Ende! ", "\n", "\n\n", "# Title\n", "\f", "日本。", " ", "a b ", "🦄", "...", "x" * 40]
TEXT = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=60).map("".join)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, DocumentTokens]:
    """A text, and tokens of 0 to 4 characters over it; those of 0 begin inside a character."""
    text = draw(TEXT)
    widths = draw(st.lists(st.integers(0, 4), min_size=len(text), max_size=len(text)))
    starts = array("I", (start for start in accumulate(widths, initial=0) if start < len(text)))
    return text, DocumentTokens(array("I", range(len(starts))), starts)


@settings(max_examples=300)
@given(document=documents(), budget=st.integers(1, 40), data=st.data())
def test_every_token_is_in_a_chunk_and_no_chunk_is_over_its_budget(
    document: tuple[str, DocumentTokens], budget: int, data: st.DataObject
) -> None:
    text, tokens = document
    overlap = data.draw(st.integers(0, budget - 1))
    chunks = chunked(text, tokens, budget, overlap)
    assert {token for chunk in chunks for token in range(chunk.start, chunk.stop)} == set(range(len(tokens)))
    assert all(0 < chunk.stop - chunk.start <= budget for chunk in chunks)
    for before, after in pairwise(chunks):
        assert before.start < after.start
        assert before.stop < after.stop
        assert before.stop - after.start >= overlap
    if not overlap:
        assert sum(chunk.stop - chunk.start for chunk in chunks) == len(tokens)


@settings(max_examples=200)
@given(document=documents(), budget=st.integers(8, 40), data=st.data())
def test_a_chunk_tears_no_character(document: tuple[str, DocumentTokens], budget: int, data: st.DataObject) -> None:
    text, tokens = document
    longest = max((sum(1 for start in tokens.starts if start == one) for one in set(tokens.starts)), default=0)
    if longest > budget // 4:
        return
    for chunk in chunked(text, tokens, budget, data.draw(st.integers(0, budget // 2))):
        for cut in (chunk.start, chunk.stop):
            assert cut in (0, len(tokens)) or tokens.starts[cut] > tokens.starts[cut - 1]


@settings(max_examples=200)
@given(sentences=st.lists(st.integers(1, 9), min_size=2, max_size=80), budget=st.integers(46, 90))
def test_a_chunk_ends_with_a_sentence_where_sentences_are_short(sentences: list[int], budget: int) -> None:
    text = " ".join("Wo" + "rd" * length + "." for length in sentences)
    tokens = characters(text)
    for chunk in chunked(text, tokens, budget, 0)[:-1]:
        assert text[: chunk.stop].endswith(".")


@pytest.mark.parametrize(
    ("text", "budget", "expected"),
    [
        ("One two. Three.\n\nFour five. Six.\n# Seven\nEight. Nine. Ten", 45, "# Seven\n"),
        ("One two. Three.\n\nFour five. Six. Seven eight nine", 30, "Four"),
        ("One two. Three.\nFour five. Six. Seven eight nine", 26, " Six"),
        ("One two three\nfour five six seven", 20, "four"),
        ("one two three four five six", 12, " three"),
        ("onetwothreefourfivesixseven", 12, "ourfive"),
        ("Page one is this\n\fPage two is this, and it is long", 30, "Page two"),
        ("それは猫です。「名前は無い。」どこで生れたか分らぬ。", 18, "どこ"),
        ("He said (see p. 3, i.e. the third) that. Then he left", 44, " Then"),
        ("A title\n=======\nText.  \n  \n    Indented text goes on", 32, "    Indented"),
    ],
)
def test_a_chunk_ends_at_the_best_boundary_in_the_second_half_of_its_budget(
    text: str, budget: int, expected: str
) -> None:
    first, second, *_ = chunked(text, characters(text), budget, 0)
    assert second.start == first.stop
    assert text[second.start :].startswith(expected)


def test_a_boundary_inside_a_token_is_where_the_next_token_is() -> None:
    text = "One.\n\nTwo three four"
    starts = [0, 3, 6, 9, 15]  # One · .\n\n · Two · three · four
    assert chunked(text, DocumentTokens(array("I", range(5)), array("I", starts)), 3, 0) == (Chunk(0, 2), Chunk(2, 5))


def test_an_overlap_begins_with_a_sentence_too() -> None:
    text = "Aa bb cc. Dd ee ff. Gg hh ii. Jj kk ll. Mm nn oo. Pp qq rr."
    chunks = chunked(text, characters(text), 30, 5)
    assert [text[chunk.start : chunk.stop] for chunk in chunks] == [
        "Aa bb cc. Dd ee ff. Gg hh ii.",
        " Gg hh ii. Jj kk ll. Mm nn oo.",
        " Mm nn oo. Pp qq rr.",
    ]


def test_a_text_that_fits_is_one_chunk_and_an_empty_one_is_none() -> None:
    assert chunked("a b. c", characters("a b. c"), 6, 5) == (Chunk(0, 6),)
    assert chunked("", characters(""), 6, 5) == ()


@pytest.mark.parametrize(("budget", "overlap"), [(0, 0), (5, 5), (5, -1), (-1, 0)])
def test_a_budget_that_leaves_no_room_for_anything_new_is_refused(budget: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="does not go into"):
        chunked("a", characters("a"), budget, overlap)


@pytest.mark.parametrize("unit", [".", " ", "\n", "a", "# ", "\n ", "。", "a. ", ".\n\n"])
def test_a_long_run_of_the_same_is_cut_in_linear_time(unit: str) -> None:
    """Going back over the run from each of its places would take hours."""
    text = unit * (400_000 // len(unit))
    chunks = chunked(text, characters(text), 1_000, 100)
    assert len(text) / 1_000 <= len(chunks) <= 2 * len(text) / 450 + 1


def characters(text: str) -> DocumentTokens:
    """A token a character."""
    return DocumentTokens(array("I", range(len(text))), array("I", range(len(text))))
