"""Stop strings that no single engine sees whole."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs.stops import stopped
from programs.tokenizer import Tokenizer
from router.request import Delta, Finish, TokenLogprob
from tests.model_files import CHATML, tiny_tokenizer


@lru_cache
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny_tokenizer().to_str(), CHATML)


IDS = st.lists(st.integers(2, 399), max_size=20)
STOPS = st.lists(st.text("thequick brown", min_size=1, max_size=4), min_size=1, max_size=3)


def spelled(text: str) -> tuple[int, ...]:
    """One id a letter."""
    return tuple(tokenizer().encode(letter, after_control=True)[0] for letter in text)


@settings(max_examples=200)
@given(before=IDS, fresh=IDS, stop=STOPS)
def test_it_ends_with_the_first_token_that_completes_a_stop_string(
    before: list[int], fresh: list[int], stop: list[str]
) -> None:
    def shown(count: int) -> str:
        return tokenizer().decode(before + fresh[:count], skip_special_tokens=False)

    if any(one in shown(0) for one in stop):
        return
    ends = [count for count in range(1, len(fresh) + 1) if any(one in shown(count) for one in stop)]
    found = stopped(tokenizer(), before, Delta(tuple(fresh), "a"), stop)
    if not ends:
        assert found == Delta(tuple(fresh), "a")
        return
    matched = next(one for one in stop if one in shown(ends[0]))
    assert found == Delta(tuple(fresh[: ends[0]]), "a", Finish("stop", matched))


@pytest.mark.parametrize("cut", range(4))
def test_a_stop_string_may_straddle_the_break_anywhere(cut: int) -> None:
    ids = spelled("so the end is near")
    at = len(spelled("so the ")) + cut
    found = stopped(tokenizer(), ids[:at], Delta(ids[at:], "b", resumes=1), ("end",))
    assert ids[:at] + found.token_ids == spelled("so the end") if cut < 3 else found.finish is None
    assert found.finish == (Finish("stop", "end") if cut < 3 else None)


def test_logprobs_end_with_the_tokens() -> None:
    ids = spelled("end is")
    delta = Delta(ids, "b", logprobs=tuple(TokenLogprob(one, -0.5) for one in ids))
    found = stopped(tokenizer(), (), delta, ("end",))
    assert [one.token_id for one in found.logprobs] == list(found.token_ids) == list(spelled("end"))


def test_what_ends_with_that_very_token_for_another_reason_has_ended_for_that() -> None:
    ids = spelled("end")
    length = Delta(ids, "b", Finish("length"))
    assert stopped(tokenizer(), (), length, ("end",)) is length
    assert stopped(tokenizer(), (), Delta((*ids, 0), "b", Finish("stop", 0)), ("end",)).finish == Finish("stop", "end")


def test_control_tokens_count_as_they_are_spelled() -> None:
    found = stopped(tokenizer(), (), Delta((*spelled("a"), 1, *spelled("b")), "b"), ("<|im_start|>",))
    assert found.token_ids == (*spelled("a"), 1)
