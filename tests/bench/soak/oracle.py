"""What one undisturbed engine would say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.fake_engine.language import pack
from tests.fake_engine.model import FakeModel


@dataclass(frozen=True, slots=True)
class Expected:
    """An answer at temperature 0. `ids` end with the end token, unless it was cut off by its length."""

    ids: list[int]
    text: str


class Oracle:
    """The language of fake engines of one model, without an engine."""

    def __init__(self, model: FakeModel, eos: int) -> None:
        assert model.speller is not None
        self._language, self._speller, self._eos = model.language, model.speller, eos

    def answer(self, prompt: Sequence[int], max_tokens: int) -> Expected:
        state, ids = self._language.read(pack(prompt)), list[int]()
        while len(ids) < max_tokens and self._eos not in ids[-1:]:
            ids.append(self._language.next(state, may_end=True))
            state = self._language.advance(state, ids[-1])
        said = ids[:-1] if ids[-1:] == [self._eos] else ids
        return Expected(ids, self._speller.decode(said, skip_special=True))
