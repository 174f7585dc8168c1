"""What an engine has done, and does now."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Finished:
    """A request as a test wants to look at it afterwards."""

    rid: str
    prompt: bytes
    output_ids: tuple[int, ...]
    cached_tokens: int
    finish: dict[str, Any]
    body: dict[str, Any]


@dataclass(slots=True)
class EngineState:
    """Counters since the start. `running` and `waiting` are now."""

    running: int = 0
    waiting: int = 0
    received: int = 0
    aborted: int = 0
    disconnected: int = 0
    retracted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    prefill_busy_us: int = 0
    generated_tokens: int = 0
    finished: deque[Finished] = field(default_factory=deque)

    @classmethod
    def total(cls, states: Sequence[EngineState]) -> EngineState:
        """A sum as of now. `finished` is rank by rank."""
        counted = [entry.name for entry in fields(cls) if entry.name != "finished"]
        sums = {name: sum(getattr(state, name) for state in states) for name in counted}
        return cls(**sums, finished=deque(one for state in states for one in state.finished))

    @property
    def idle(self) -> bool:
        return self.running == 0 and self.waiting == 0
