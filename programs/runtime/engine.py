"""What a program's steps are computed by."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from router.engine.scoring import Score
from router.request import Delta, GenerateRequest


class TokenEngine(Protocol):
    """Token ids in, token ids out: an `EngineClient` of an engine or of a front, which speaks the same wire."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta]:
        """As `EngineClient.generate`."""

    async def prefill(self, prompt_ids: array[int], cache_salt: str | None) -> int:
        """As `EngineClient.prefill`."""

    async def score(
        self, prompt_ids: array[int], continuations: Sequence[array[int]], cache_salt: str | None
    ) -> tuple[Score, ...]:
        """As `EngineClient.score`."""
