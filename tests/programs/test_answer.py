"""Text from ids as they come: nothing lost, nothing shown that must not be."""

from __future__ import annotations

import re
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs.answer import Answer, AnswerDelta, ThinkTokens
from programs.detokenizer import Detokenizer
from programs.tokenizer import Tokenizer
from router.ids import unpack
from tests.model_files import CHATML, tiny_tokenizer
from tests.packages import REAL_TOKENIZERS, tokenizer_of


@lru_cache
def tokenizer() -> Tokenizer:
    """Byte-level, with think tokens that are not special, as most models have them."""
    whole = tiny_tokenizer()
    whole.add_tokens(["<think>", "</think>"])
    return Tokenizer(whole.to_str(), CHATML)


OPEN, CLOSE = (tokenizer().controls[text].id for text in ("<think>", "</think>"))
END, START = 0, 1
IDS = st.lists(st.integers(2, OPEN - 1), max_size=30)
"""Any text tokens; half of them are single bytes, so most characters are cut."""
WORDS = [[token] for token in range(2, OPEN) if tokenizer().decode([token]).strip().isascii()]
TALK = st.lists(st.sampled_from(WORDS), max_size=30).map(lambda words: [token for word in words for token in word])
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=30)
STOP = st.text("thequick brown", min_size=1, max_size=4)


def pieces(ids: list[int], sizes: list[int]) -> list[list[int]]:
    cut: list[list[int]] = []
    position = 0
    while position < len(ids):
        size = sizes[len(cut) % len(sizes)]
        cut.append(ids[position : position + size])
        position += size
    return cut


def read(answer: Answer, ids: list[int], sizes: list[int], matched: int | str | None = None) -> AnswerDelta:
    """All that the answer shows while it reads `ids`."""
    deltas = [answer.push(piece) for piece in pieces(ids, sizes)]
    deltas.append(answer.finish(matched))
    shown = AnswerDelta("".join(one.reasoning for one in deltas), "".join(one.content for one in deltas))
    assert (shown.reasoning, shown.content) == (answer.reasoning, answer.content)
    return shown


@settings(max_examples=150)
@given(ids=IDS, sizes=CUTS)
def test_a_stream_of_ids_spells_what_the_whole_spells(ids: list[int], sizes: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer())
    text = "".join(detokenizer.push(piece) for piece in pieces(ids, sizes)) + detokenizer.finish()
    assert text == tokenizer().decode(ids)


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
@settings(max_examples=20)
@given(text=st.text(max_size=20), sizes=CUTS)
def test_any_text_streams_whole_on_real_tokenizers(name: str, text: str, sizes: list[int]) -> None:
    real = tokenizer_of(name)
    ids = list(real.encode(text, after_control=True))
    detokenizer = Detokenizer(real)
    shown = "".join(detokenizer.push(piece) for piece in pieces(ids, sizes)) + detokenizer.finish()
    assert shown == real.decode(ids)


def test_characters_that_never_become_whole_are_shown_as_they_come() -> None:
    """A model may babble; what is certain to stay cut is not held back, however much of it comes."""
    detokenizer = Detokenizer(tokenizer())
    byte = next(token for token in range(2, OPEN) if tokenizer().decode([token]) == "\ufffd")
    shown = ""
    for number in range(1, 401):
        shown += detokenizer.push([byte])
        assert len(shown) >= number - 72
    assert shown + detokenizer.finish() == tokenizer().decode([byte] * 400)


@settings(max_examples=150)
@given(ids=IDS | TALK, sizes=CUTS, stop=STOP)
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


@settings(max_examples=150)
@given(thought=st.none() | TALK, ids=IDS | TALK, sizes=CUTS, stop=STOP)
def test_the_kept_ids_and_the_tail_spell_the_content(
    thought: list[int] | None, ids: list[int], sizes: list[int], stop: str
) -> None:
    """Whatever was thought before, and wherever a stop string cut a token."""
    if stop in tokenizer().decode(thought or []):
        return
    answer = Answer(tokenizer(), (), think=ThinkTokens(OPEN, CLOSE), stop=(stop,))
    matched = stop if stop in tokenizer().decode(ids) else None
    read(answer, [*([] if thought is None else [OPEN, *thought, CLOSE]), *ids], sizes, matched)
    spelling = answer.spelling(matched)
    head = 0 if thought is None else len(thought) + 2
    spelled = answer.ids[head : spelling.kept] + unpack(spelling.tail)
    text = tokenizer().decode(spelled)
    assert text == answer.content or (thought is not None and text.lstrip() == answer.content.lstrip())
    if spelling.answer is not None:
        start, end = spelling.answer
        assert end == spelling.kept
        spelled = answer.ids[start:end] + unpack(spelling.tail)
        assert tokenizer().decode(spelled).lstrip() == answer.content.lstrip()


@settings(max_examples=50)
@given(ids=TALK, sizes=CUTS, ends=st.booleans())
def test_a_stop_token_is_no_part_of_the_spelling(ids: list[int], sizes: list[int], ends: bool) -> None:
    answer = Answer(tokenizer(), ())
    read(answer, [*ids, END] if ends else ids, sizes, END if ends else None)
    spelling = answer.spelling(END if ends else None)
    assert (spelling.kept, spelling.tail) == (len(ids), b"")
    assert answer.content == tokenizer().decode(ids)


@settings(max_examples=100)
@given(thought=IDS | TALK, said=IDS | TALK, sizes=CUTS, opened=st.booleans())
def test_reasoning_stands_between_the_think_tokens(
    thought: list[int], said: list[int], sizes: list[int], opened: bool
) -> None:
    answer = Answer(tokenizer(), (), think=ThinkTokens(OPEN, CLOSE, opened_by_prompt=opened))
    ids = [*([] if opened else [OPEN]), *thought, CLOSE, *said]
    shown = read(answer, ids, sizes)
    assert shown.reasoning == tokenizer().decode(thought).strip()
    assert shown.content == tokenizer().decode(said).lstrip()
    assert answer.reasoning_tokens == len(ids) - len(said)
    span = answer.spelling(None).answer
    if span is not None:
        assert tokenizer().decode(answer.ids[slice(*span)]).lstrip() == answer.content


@settings(max_examples=50)
@given(thought=IDS | TALK, sizes=CUTS, opened=st.booleans())
def test_reasoning_that_never_ends_is_no_content(thought: list[int], sizes: list[int], opened: bool) -> None:
    answer = Answer(tokenizer(), (), think=ThinkTokens(OPEN, CLOSE, opened_by_prompt=opened))
    ids = [*([] if opened else [OPEN]), *thought]
    shown = read(answer, ids, sizes)
    assert (shown.reasoning, shown.content) == (tokenizer().decode(thought).strip(), "")
    assert answer.reasoning_tokens == len(ids)
    if ids:
        assert answer.spelling(None).answer is None


@settings(max_examples=100)
@given(blanks=st.integers(0, 6), thought=TALK, said=TALK, sizes=CUTS)
def test_reasoning_may_begin_after_some_whitespace(
    blanks: int, thought: list[int], said: list[int], sizes: list[int]
) -> None:
    newline = tokenizer().encode("\n", after_control=True)
    ids = [*newline] * blanks + [OPEN, *thought, CLOSE, *said]
    answer = Answer(tokenizer(), [START], think=ThinkTokens(OPEN, CLOSE))
    shown = read(answer, ids, sizes)
    if blanks <= 4:
        words = tokenizer().decode(thought).strip(), tokenizer().decode(said).lstrip()
        assert (shown.reasoning, shown.content) == words
    else:
        assert (shown.reasoning, shown.content) == ("", tokenizer().decode(ids))


@settings(max_examples=50)
@given(said=st.lists(st.sampled_from(["\n", " ", "x"]), max_size=6), sizes=CUTS)
def test_whitespace_with_no_reasoning_behind_it_is_content(said: list[str], sizes: list[int]) -> None:
    ids = [token for text in said for token in tokenizer().encode(text, after_control=True)]
    shown = read(Answer(tokenizer(), [START], think=ThinkTokens(OPEN, CLOSE)), ids, sizes)
    assert (shown.reasoning, shown.content) == ("", "".join(said))


@settings(max_examples=50)
@given(said=TALK, sizes=CUTS)
def test_think_tokens_in_the_middle_are_no_reasoning(said: list[int], sizes: list[int]) -> None:
    answer = Answer(tokenizer(), (), think=ThinkTokens(OPEN, CLOSE))
    first = WORDS[0]
    shown = read(answer, [*first, *said, OPEN, *first, CLOSE], sizes)
    assert shown.reasoning == ""
    assert shown.content.startswith(tokenizer().decode([*first, *said]))


def test_whitespace_before_a_stop_string_is_not_content() -> None:
    spaced = next(token for token in range(2, OPEN) if re.fullmatch(" [a-z]", tokenizer().decode([token])))
    letter = tokenizer().decode([spaced]).strip()
    half = next(token for token in range(2, OPEN) if tokenizer().decode([token]) == "\ufffd")
    answer = Answer(tokenizer(), (), think=ThinkTokens(OPEN, CLOSE), stop=(letter,))
    assert read(answer, [OPEN, CLOSE, spaced, half], [2], letter).content == ""


def test_a_stop_string_is_not_shown_in_the_reasoning_either() -> None:
    whole = tokenizer()
    answer = Answer(whole, (), think=ThinkTokens(OPEN, CLOSE), stop=("fox",))
    ids = [OPEN, *whole.encode("the quick brown fox", after_control=True)]
    shown = read(answer, ids, [1], "fox")
    assert shown == AnswerDelta("the quick brown", "")


def test_what_may_be_a_call_is_held_back_and_given_out_when_it_is_none() -> None:
    ids = [70, START, 71, 72]
    answer = Answer(tokenizer(), (), calls=True)
    shown = answer.push(ids).content + answer.finish(None).content
    assert shown == tokenizer().decode([70])
    assert answer.call_text(None) == tokenizer().decode([START, 71, 72], skip_special_tokens=False)
    assert answer.release_calls().content == tokenizer().decode([71, 72])
    assert answer.content == tokenizer().decode(ids)


def test_what_is_a_call_is_spelled_with_the_answer_but_not_shown() -> None:
    ids = [70, START, 71, 72]
    answer = Answer(tokenizer(), (), calls=True)
    answer.push(ids)
    answer.finish(None)
    answer.accept_calls("")
    spelling = answer.spelling(None)
    assert answer.content == tokenizer().decode([70])
    assert (spelling.kept, spelling.answer) == (4, (0, 4))


@settings(max_examples=60)
@given(ids=TALK, sizes=CUTS)
def test_an_answer_that_looks_like_json_is_held_back_whole(ids: list[int], sizes: list[int]) -> None:
    opening = list(tokenizer().encode('{"', after_control=True))
    answer = Answer(tokenizer(), (), calls=True)
    deltas = [answer.push(piece).content for piece in pieces([*opening, *ids], sizes)]
    deltas.append(answer.finish(None).content)
    assert deltas == [""] * len(deltas)
    assert answer.call_text(None) == tokenizer().decode([*opening, *ids])
    assert answer.release_calls().content == answer.content == tokenizer().decode([*opening, *ids])
