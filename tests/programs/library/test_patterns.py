"""Patterns mean what they mean everywhere, and none takes long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs.errors import ImpossibleSchemaError
from programs.library.patterns import matcher

DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
PATTERNS = [
    "b",
    "^a",
    "a|b$",
    "",
    "^(?!ab)a",
    "^(?=.*[A-Z])(?=.*[0-9]).{3,}$",
    r"^(?![)(]|\)|a\|)[^|]$",
    "^(a|b)+$",
    DECIMAL,
]


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=50)
@given(text=st.text("abcAB01.+-()|\\", max_size=6))
def test_a_pattern_is_found_where_python_finds_it(pattern: str, text: str) -> None:
    assert matcher(pattern).found_in(text) == (re.search(pattern, text) is not None)


@pytest.mark.parametrize("pattern", ["(?!b)b?", "^(?!a)a|^", "^(?!a", r"(a)\1"])
def test_what_cannot_be_matched_so_is_refused(pattern: str) -> None:
    with pytest.raises(ImpossibleSchemaError, match="cannot be used"):
        matcher(pattern)


def test_no_text_takes_long() -> None:
    assert not matcher("^(a+)+$").found_in("a" * 100_000 + "!")
    assert not matcher(r"(\s*)*\s*\s*\s*x$").found_in(" " * 10_000)


def test_what_is_no_text_matches_nothing() -> None:
    assert not matcher("a").found_in("a\ud800")
