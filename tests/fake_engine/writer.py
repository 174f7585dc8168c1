"""Answers as models write them: words that nearly always have the ids that their text encodes to, thoughts, calls."""

from __future__ import annotations

import json
import random
import zlib
from array import array
from dataclasses import dataclass
from functools import cached_property

from tests.fake_engine.language import Speller, unpack
from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.parsers import CLOSE_CALL, CLOSE_THINK, OPEN_CALL, OPEN_THINK
from tests.fake_engine.radix import TOKEN_BYTES

CALL_SHARE = 0.6
"""Of the answers that may be calls."""
ODD_CALL_SHARE = 0.2
"""Of the calls, those that are written otherwise than a template writes them when they are sent back."""
_STRUCTURE_TOKENS = 60
"""What marks and a call take of an answer."""
_TAIL_TOKENS, _TAIL_CHARACTERS = 64, 60
_CITIES = ("Oslo", "Lima", "Kyoto", "Nairobi", "Quito", "Perth", "Boston", "Hanoi")


@dataclass(frozen=True, slots=True)
class _Marks:
    open_think: int
    close_think: int
    open_call: int
    close_call: int


class Writer:
    """What it answers depends on the end of the prompt's text alone, so that a session goes the same way on every
    replica and however the tokens of its history are spelled. Another seed is another model.
    """

    def __init__(self, options: FakeEngineOptions, speller: Speller) -> None:
        self._options = options
        self._speller = speller
        self._agent = options.writes == "agent"

    def write(self, prompt: bytes, max_new_tokens: int) -> tuple[int, ...]:
        """Ids that end with the end token, at most `max_new_tokens`."""
        ids = unpack(prompt[-_TAIL_TOKENS * TOKEN_BYTES :])
        text = self._speller.decode(ids, skip_special=False)[-_TAIL_CHARACTERS:]
        dice = random.Random(zlib.crc32(text.encode(), self._options.seed))
        if self._agent and (marks := self._marks) and max_new_tokens > 2 * _STRUCTURE_TOKENS:
            ids = self._thoughtful(marks, dice, max_new_tokens - _STRUCTURE_TOKENS, prompt)
        else:
            ids = self._prose(dice, dice.randint(max_new_tokens // 2, max_new_tokens - 1))
        return (*ids[: max_new_tokens - 1], self._options.eos_token_id)

    def _thoughtful(self, marks: _Marks, dice: random.Random, words: int, prompt: bytes) -> list[int]:
        encode = self._speller.encode
        thoughts = dice.randint(words // 4, words * 3 // 4)
        ids = [marks.open_think, *encode("\n"), *self._prose(dice, thoughts), *encode("\n"), marks.close_think]
        ids += encode("\n\n")
        if marks.open_call in array("I", prompt) and dice.random() < CALL_SHARE:
            return [*ids, marks.open_call, *encode(f"\n{self._call(dice)}\n"), marks.close_call]
        return [*ids, *self._prose(dice, words - thoughts)]

    def _call(self, dice: random.Random) -> str:
        arguments = {"city": dice.choice(_CITIES), "days": dice.randint(2, 9)}
        compact = (",", ":") if dice.random() < ODD_CALL_SHARE else None
        return json.dumps({"name": "get_weather", "arguments": arguments}, separators=compact)

    def _prose(self, dice: random.Random, count: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < count:
            word = dice.choice(self._words)
            ids += self._oddly(word) if dice.random() < self._options.odd_spelling else (word,)
        return ids[:count]

    def _oddly(self, word: int) -> tuple[int, ...]:
        """Two ids that spell the word as well, if there are such."""
        text = self._speller.piece(word, skip_special=True)
        assert text is not None
        for at in range(2, len(text[0]) - 1):
            head, tail = self._speller.encode(text[0][:at]), self._speller.encode(text[0][at:])
            if len(head) == len(tail) == 1:
                return (*head, *tail)
        return (word,)

    @cached_property
    def _words(self) -> tuple[int, ...]:
        """Every id that is a word with the space before it and that its text encodes to, whatever stands before it."""
        pieces = ((token, self._speller.piece(token, skip_special=True)) for token in self._speller.plain_ids)
        words = [(token, piece[0]) for token, piece in pieces if piece is not None and _is_word(piece[0])]
        encoded = self._speller.encode_batch([text for _, text in words])
        return tuple(token for (token, _), ids in zip(words, encoded, strict=True) if ids == [token])

    @cached_property
    def _marks(self) -> _Marks | None:
        ids = [self._speller.tokenizer.token_to_id(mark) for mark in (OPEN_THINK, CLOSE_THINK, OPEN_CALL, CLOSE_CALL)]
        known = [token for token in ids if token is not None]
        return _Marks(*known) if len(known) == len(ids) else None


def _is_word(text: str) -> bool:
    return len(text) > 3 and text[0] == " " and text[1:].isascii() and text[1:].isalpha() and text.islower()
