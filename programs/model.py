"""A model as the front knows it: its tokenizer, its template, and what its files say of sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from programs.answer import ThinkTokens
from programs.errors import TemplateError, TokenizerError
from programs.prompt import PromptBuilder
from programs.template import ChatTemplate
from programs.tokenizer import Tokenizer
from router.errors import ModelError
from router.model.directory import ModelDirectory
from router.request import Sampling

_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_THINK_MARKS = (("<think>", "</think>"),)


@dataclass(frozen=True)
class ChatModel:
    """What turns messages into ids and back. `name` is what clients call it, `context_length` is in tokens."""

    name: str
    created: int
    context_length: int
    tokenizer: Tokenizer
    template: ChatTemplate
    sampling_defaults: Mapping[str, float | int]
    end_ids: frozenset[int]
    """The tokens that end an answer."""
    vocabulary_size: int
    """Ids from here on would end an engine."""

    @property
    def identity(self) -> str:
        """The model's name, and what tells its ids from those of another tokenizer under the same name."""
        return f"{self.name}@{self.tokenizer.digest}"

    @classmethod
    def load(cls, directory: Path, name: str | None = None) -> ChatModel:
        """Read the files that a model directory holds beside its weights.

        Raises ModelError, TemplateError or TokenizerError, each naming what is missing or wrong.
        """
        files = ModelDirectory.read(directory)
        if not files.tokenizer_config:
            raise ModelError(f"model {directory}: tokenizer_config.json is missing or says nothing")
        if files.chat_template is None:
            raise TemplateError(
                f"{directory} has no chat template (chat_template.jinja, or one in tokenizer_config.json)"
            )
        tokenizer = Tokenizer.load(directory, files.chat_template)
        if tokenizer.vocabulary_size > files.vocab_size:
            raise TokenizerError(
                f"{directory}: the tokenizer has {tokenizer.vocabulary_size} tokens, more than the "
                f"{files.vocab_size} that config.json says the model knows"
            )
        return cls(
            name=name or directory.name,
            created=int((directory / "config.json").stat().st_mtime),
            context_length=files.context_length,
            tokenizer=tokenizer,
            template=ChatTemplate(files.chat_template, _special_tokens(files.tokenizer_config)),
            sampling_defaults=_sampling_defaults(files.generation_config),
            end_ids=frozenset(files.eos_ids),
            vocabulary_size=files.vocab_size,
        )

    @cached_property
    def prompts(self) -> PromptBuilder:
        return PromptBuilder(self.template, self.tokenizer, self.end_ids)

    @cached_property
    def think(self) -> ThinkTokens | None:
        """The model's think tokens, if its template knows any."""
        for opening, closing in _THINK_MARKS:
            first, last = self.tokenizer.controls.get(opening), self.tokenizer.controls.get(closing)
            if first and last and closing in self.template.source:
                return ThinkTokens(first.id, last.id)
        return None

    @cached_property
    def rewrites(self) -> bool:
        """Whether the template writes an answer otherwise once another message follows it."""
        return self.prompts.rewrites()

    def with_defaults(self, sampling: Sampling) -> Sampling:
        """`sampling` with what the request leaves open taken from the model's generation_config.json."""
        defaults = self.sampling_defaults.items()
        missing: dict[str, Any] = {name: value for name, value in defaults if getattr(sampling, name) is None}
        return replace(sampling, **missing)


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like, by the names that templates use."""
    tokens: dict[str, str] = {}
    for name, value in tokenizer_config.items():
        if name.endswith("_token") and isinstance(value, str | dict):
            tokens[name] = value if isinstance(value, str) else value["content"]
    return tokens


def _sampling_defaults(generation: Mapping[str, Any]) -> dict[str, float | int]:
    return {name: generation[name] for name in _SAMPLING_DEFAULTS if isinstance(generation.get(name), int | float)}
