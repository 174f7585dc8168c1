"""What engines of one model share: its tokenizer, its chat template, what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.fake_engine.chat import ChatFormat
from tests.fake_engine.language import Language, Speller
from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.writer import Writer


@dataclass(frozen=True, slots=True)
class FakeModel:
    """`chat` is None without a model directory; `writer` stands in for `language` where answers should make sense."""

    language: Language
    vocabulary: Sequence[int]
    speller: Speller | None
    chat: ChatFormat | None
    writer: Writer | None

    @classmethod
    def load(cls, options: FakeEngineOptions) -> FakeModel:
        """Raises ModelError, TemplateError or TokenizerError for a directory that is no model's."""
        path = options.tokenizer
        speller = Speller(path) if path else None
        vocabulary = options.vocabulary or (speller.plain_ids if speller else range(3, 32_000))
        has_template = path is not None and (path / "tokenizer_config.json").is_file()
        return cls(
            language=Language(options, vocabulary),
            vocabulary=vocabulary,
            speller=speller,
            chat=ChatFormat(path, speller) if speller and path and has_template else None,
            writer=Writer(options, speller) if speller and options.writes != "hash" else None,
        )
