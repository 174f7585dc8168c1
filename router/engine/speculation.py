"""Speculative decoding: what an engine drafts with, and how far ahead."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SpeculativeAlgorithm = Literal["NGRAM", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE"]

_NEED_A_DRAFT = ("EAGLE", "EAGLE3", "STANDALONE")


class Speculation(BaseModel):
    """One engine's speculation. NEXTN drafts with the model's own MTP layers, NGRAM with what was said before."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: SpeculativeAlgorithm
    draft_model: str | None = None
    """A directory, or a name that the engine may fetch. Needed by EAGLE, EAGLE3 and STANDALONE."""
    steps: int | None = Field(default=None, ge=1)
    """Passes of the draft model."""
    top_k: int | None = Field(default=None, ge=1)
    """Branches of the draft's tree at each step."""
    draft_tokens: int | None = Field(default=None, ge=1)
    """Tokens checked in one pass of the model."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Speculation:
        if self.algorithm in _NEED_A_DRAFT and self.draft_model is None:
            raise ValueError(f"draft_model: {self.algorithm} needs one")
        if self.algorithm == "NGRAM":
            self._check_ngram()
        else:
            self._check_tree()
        return self

    def _check_ngram(self) -> None:
        for name in ("draft_model", "steps", "top_k"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: NGRAM drafts from what was said, and has none")

    def _check_tree(self) -> None:
        """SGLang chooses all three or none (`_handle_eagle_family`, speculative_hook.py, 0.5.23)."""
        given = [value for value in (self.steps, self.top_k, self.draft_tokens) if value is not None]
        if len(given) not in (0, 3):
            raise ValueError("steps, top_k and draft_tokens: give all three, or none to let SGLang choose")
        if self.top_k == 1 and self.steps is not None and self.draft_tokens != self.steps + 1:
            raise ValueError(f"draft_tokens: with top_k 1 it must be steps + 1, {self.steps + 1}")
