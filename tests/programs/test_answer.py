"""Text from ids as they come: nothing lost, nothing shown that must not be."""

from __future__ import annotations

from array import array
from functools import lru_cache

from hypothesis import given, settings
from hypothesis import strategies as st

from programs.answer import Answer, ThinkTokens
from programs.detokenizer import Detokenizer
from programs.ids import unpack
from programs.tokenizer import Tokenizer
from tests.model_files import CHATML, tiny_tokenizer

OPEN, CLOSE = 398, 399
IDS = st.lists(st.integers(2, 397), max_size=30)
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=30)


@lru_cache
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny_tokenizer().to_str(), CHATML)


def pieces(ids: list[int], sizes: list[int]) -> list[list[int]]:
    cut: list[list[int]] = []
    position = 0
    while position < len(ids):
        size = sizes[len(cut) % len(sizes)]
        cut.append(ids[position : position + size])
        position += size
    return cut


@settings(max_examples=150, deadline=None)
@given(ids=IDS, sizes=CUTS)
def test_a_stream_of_ids_spells_what_the_whole_spells(ids: list[int], sizes: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer())
    text = "".join(detokenizer.push(piece) for piece in pieces(ids, sizes)) + detokenizer.finish()
    assert text == tokenizer().decode(ids)


@settings(max_examples=150, deadline=None)
@given(ids=IDS, sizes=CUTS, stop=st.text("thequick brown", min_size=1, max_size=4))
def test_a_stop_string_is_never_shown_and_nothing_before_it_is_lost(
    ids: list[int], sizes: list[int], stop: str
) -> None:
    answer = Answer(tokenizer(), (), stop=(stop,))
    shown, sent = "", []
    for piece in pieces(ids, sizes):
        shown += answer.push(piece).content
        sent += piece
        assert stop not in shown
        if stop in tokenizer().decode(sent):
            break
    whole = tokenizer().decode(sent)
    matched = stop if stop in whole else None
    shown += answer.finish(matched).content
    assert shown == answer.content == (whole[: whole.index(stop)] if matched else whole)


@settings(max_examples=150, deadline=None)
@given(ids=IDS, sizes=CUTS, stop=st.text("thequick brown", min_size=1, max_size=4))
def test_the_kept_ids_and_the_tail_spell_the_content(ids: list[int], sizes: list[int], stop: str) -> None:
    answer = Answer(tokenizer(), (), stop=(stop,))
    for piece in pieces(ids, sizes):
        answer.push(piece)
    matched = stop if stop in tokenizer().decode(ids) else None
    answer.finish(matched)
    spelling = answer.spelling(matched)
    spelled = answer.ids[: spelling.kept] + unpack(spelling.tail)
    assert tokenizer().decode(spelled) == answer.content


def test_a_stop_token_is_no_part_of_the_spelling() -> None:
    answer = Answer(tokenizer(), ())
    answer.push([50, 51, 0])
    answer.finish(0)
    assert answer.spelling(0).kept == 2
    assert answer.content == tokenizer().decode([50, 51])


@settings(max_examples=100, deadline=None)
@given(thought=IDS, said=IDS, sizes=CUTS, opened=st.booleans())
def test_reasoning_stands_between_the_think_tokens(
    thought: list[int], said: list[int], sizes: list[int], opened: bool
) -> None:
    answer = Answer(tokenizer(), (), think=ThinkTokens(OPEN, CLOSE, opened_by_prompt=opened))
    ids = [*([] if opened else [OPEN]), *thought, CLOSE, *said]
    reasoning = content = ""
    for piece in pieces(ids, sizes):
        delta = answer.push(piece)
        reasoning, content = reasoning + delta.reasoning, content + delta.content
    last = answer.finish(None)
    assert reasoning + last.reasoning == answer.reasoning == tokenizer().decode(thought).strip()
    assert content + last.content == answer.content == tokenizer().decode(said).lstrip()
    span = answer.spelling(None).answer
    if span is not None:
        assert tokenizer().decode(answer.ids[slice(*span)]).lstrip() == answer.content


def test_reasoning_that_never_ends_is_no_content() -> None:
    answer = Answer(tokenizer(), (), think=ThinkTokens(OPEN, CLOSE))
    answer.push([OPEN, 60, 61])
    answer.finish(None)
    assert (answer.reasoning, answer.content) == (tokenizer().decode([60, 61]).strip(), "")
    assert answer.spelling(None).answer is None


def test_what_may_be_a_call_is_held_back_and_given_out_when_it_is_none() -> None:
    ids = array("I", [70, 1, 71, 72])
    answer = Answer(tokenizer(), (), calls=True)
    shown = answer.push(ids).content + answer.finish(None).content
    assert shown == tokenizer().decode([70])
    assert answer.call_text(None) == tokenizer().decode([1, 71, 72], skip_special_tokens=False)
    assert answer.release_calls().content == tokenizer().decode([71, 72])
    assert answer.content == tokenizer().decode(ids)
