"""Where the time goes, stage by stage, and how much text the tokenizer is given meanwhile."""

from __future__ import annotations

import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import programs.prompt
import programs.session
from programs.finder import LedgerFinder
from programs.prompt import PromptBuilder
from programs.store import SessionStore
from programs.tokenizer import Tokenizer

STAGES: dict[str, tuple[Any, str]] = {
    "find": (LedgerFinder, "find"),
    "read": (SessionStore, "read"),
    "render": (PromptBuilder, "_render"),
    "recognise": (programs.prompt, "_recognise"),
    "respell": (PromptBuilder, "_regions"),
    "encode": (PromptBuilder, "_encode"),
    "compare": (programs.session, "common_prefix"),
    "foresee": (PromptBuilder, "foresee"),
}
"""Where the function is that each is done by. What is done within another counts for itself alone."""
WHOLE = "foresee"
"""What is done within this one counts for it."""


@dataclass
class Stopwatch:
    """`characters` were given to the tokenizer."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    characters: int = 0
    _running: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def attached(self) -> Iterator[None]:
        """To every stage's function, and to the tokenizer."""
        with ExitStack() as stack:
            for stage, (owner, name) in STAGES.items():
                stack.enter_context(patch.object(owner, name, self._timed(stage, getattr(owner, name))))
            stack.enter_context(patch.object(Tokenizer, "encode", self._counted(Tokenizer.encode)))
            yield

    def _counted(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        def counted(tokenizer: Tokenizer, text: str, *, after_control: bool) -> Any:
            self.characters += len(text)
            return encode(tokenizer, text, after_control=after_control)

        return counted

    def _timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            async def timed_coroutine(*args: Any, **kwargs: Any) -> Any:
                with self._in(stage):
                    return await function(*args, **kwargs)

            return timed_coroutine

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._in(stage):
                result = function(*args, **kwargs)
                return list(result) if inspect.isgenerator(result) else result

        return timed

    @contextmanager
    def _in(self, stage: str) -> Iterator[None]:
        if WHOLE in self._running:
            yield
            return
        self._lap()
        self._running.append(stage)
        try:
            yield
        finally:
            self._lap()
            self._running.pop()

    def _lap(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now
