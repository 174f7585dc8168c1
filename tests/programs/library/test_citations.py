"""What is cited is in the text, and what was quoted is cited."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.documents.document import Document, Page
from programs.library.citations import Quotable, citations

LEASE = (
    "1. Term. The lease begins on 1 March 2024 and ends on 28 February 2029.\n\n"
    "2. Rent. The tenant pays 1,250 euros a month, due on the third\nworking day. “Late payment” is payment after that "
    "day; it costs 5 % a year.\n\n3. Notice. Either party may give notice in writing, 30 days before the end of a "
    "quarter. The café on the ground ﬂoor is excluded.\n"
)
TEXTS = st.text(st.sampled_from("abAB é.,\n“ﬁß1"), max_size=60) | st.text(max_size=60)


def found(quote: str, text: str = LEASE, near: tuple[int, int] | None = None) -> str | None:
    place = Quotable(text).find(quote, near)
    return None if place is None else text[slice(*place)]


@given(TEXTS, st.data())
def test_whatever_is_quoted_word_for_word_is_found_as_it_stands(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    quote = text[start : data.draw(st.integers(start, len(text)))]

    assert found(quote, text) == (quote.strip() or None)


@given(TEXTS, st.data())
def test_case_whitespace_and_punctuation_do_not_hide_a_quote(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    quote = text[start : data.draw(st.integers(start, len(text)))]
    mangled = re.sub(r"[\s.,“]", lambda match: data.draw(st.sampled_from(["", " ", "\n\n", " - "])), quote.upper())
    letters = [char for char in mangled if char.isalnum()]

    cited = found(mangled, text)

    if letters:
        assert cited is not None
        assert Quotable(cited).find(mangled) is not None


@given(TEXTS, st.text(max_size=40), st.none() | st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_a_range_is_never_empty_and_never_outside_of_the_text(
    text: str, quote: str, near: tuple[int, int] | None
) -> None:
    place = Quotable(text).find(quote, near)

    assert place is None or 0 <= place[0] < place[1] <= len(text)


@pytest.mark.parametrize(
    ("quote", "cited"),
    [
        ("due on the third working day", "due on the third\nworking day"),
        ('"late payment" IS payment after that day', "Late payment” is payment after that day"),
        ("the cafe on the ground floor", "The café on the ground ﬂoor"),
        ("Either party may give notice in writing 30 days", "Either party may give notice in writing, 30 days"),
        (
            "Either party may give notice in writing, 30 days before Christmas.",
            "Either party may give notice in writing, 30 days before",
        ),
        ("“The lease begins on 1 March 2024 … it costs 5 % a year”", "The lease begins on 1 March 2024"),
        ("The landlord shall repaint all walls every five years.", None),
        ("The tenant pays his way.", None),
        ("…", None),
        ("", None),
    ],
)
def test_quotes_as_models_write_them(quote: str, cited: str | None) -> None:
    assert found(quote) == cited


def test_a_whole_word_is_better_than_a_part_of_one() -> None:
    assert Quotable("In 1930, 30 days.").find("30") == (9, 11)


def test_of_several_places_the_one_in_what_was_read_is_cited() -> None:
    text = "Signed in Oslo. " * 3

    assert Quotable(text).find("Signed in Oslo.") == (0, 15)
    assert Quotable(text).find("signed in oslo", near=(16, 48)) == (16, 30)


def test_a_part_of_a_quote_counts_only_in_what_was_read() -> None:
    text = "The rent is due on the third working day of each month. " * 2
    quote = "The rent is due on the third working day of every month"

    assert Quotable(text).find(quote, near=(56, 112)) == (56, 101)
    assert Quotable(text).find(quote, near=(80, 112)) is None


def test_a_quote_within_another_is_not_cited_beside_it() -> None:
    document = Document("doc_1", "lease.txt", "text/plain", len(LEASE), LEASE, (Page(7, 0, len(LEASE)),), 0.0)
    quotes = ["the lease begins", "The lease begins on 1 March 2024", "Notice", "Notice", "nowhere"]

    cited = citations(document, Quotable(LEASE), quotes, None)

    assert [(one.quote, one.page) for one in cited] == [("The lease begins on 1 March 2024", 7), ("Notice", 7)]


def test_a_quote_in_a_large_text_is_found_without_delay() -> None:
    text = "".join(
        f"Item {number} costs {number * 7} crowns, all taxes included, at the harbour.\n" for number in range(9_000)
    )

    assert found("item 8123 costs 56861 crowns, all taxes included, at the airport", text) == (
        "Item 8123 costs 56861 crowns, all taxes included, at the"
    )
