"""Text in the form documents are kept in."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.documents.text import cleaned


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("a\r\nb\rc\x0bd\x85e\u2028f\u2029g", "a\nb\nc\nd\ne\nf\ng"),
        ("\ufeffa\x00\x07b\x1b[0m\x7f\x9f", "ab[0m"),
        ("tab\tpage\fend", "tab\tpage\fend"),
        ("cafe\u0301", "café"),
        ("\ud800 \ufdd0 \ufdee \uffff", "\ufffd \ufffd \ufffd \ufffd"),
        ("ﬁ 👩‍👩‍👧 \xa0 Å", "ﬁ 👩‍👩‍👧 \xa0 Å"),
    ],
)
def test_text_is_put_in_one_form(given_: str, expected: str) -> None:
    assert cleaned(given_) == expected


@given(st.text())
def test_cleaning_twice_changes_nothing(text: str) -> None:
    once = cleaned(text)
    assert cleaned(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert once.encode("utf-8").decode("utf-8") == once
