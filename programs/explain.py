"""Why a prompt's prefix was, or was not, in the engine's cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MissReason = Literal[
    "cold",
    "evicted",
    "moved",
    "template_rewrite",
    "client_edit",
    "tools_changed",
    "model_changed",
    "salt",
    "window",
]
"""Nothing was cached yet; it was, but no longer is; it is on another replica; or the prompt begins in another way: by
the template's doing, the client's, with other tools, for another model, in another isolation, without dropped turns."""

TO_OPENAI: Mapping[MissReason, str | None] = {
    "cold": None,
    "evicted": None,
    "moved": None,
    "template_rewrite": "context_compacted",
    "client_edit": "input_changed",
    "tools_changed": "tools_changed",
    "model_changed": "model_changed",
    "salt": "prompt_cache_key_changed",
    "window": "context_compacted",
}
"""OpenAI's name for each, the nearest one where a template drops reasoning; none for what a server did."""

_ANOTHER_CACHE: frozenset[MissReason | None] = frozenset({"model_changed", "salt"})
"""Reasons for which nothing at all is found, however alike the prompts."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """What was known of a prompt before it was generated. Lengths are tokens.

    `held` of the history were in the engine's cache when the turn before ended, and the prompt begins with `common` of
    them. `foreseen` is how much of the prompt was certain then. `changed` says why the two differ, and `page` is the
    page size of the prefix cache.
    """

    held: int
    common: int
    foreseen: int
    prompt: int
    page: int
    previous_replica: str | None
    changed: MissReason | None

    @property
    def reusable_tokens(self) -> int:
        """What could have been in the cache: SGLang matches at most all but the last token, in whole pages."""
        return self._whole_pages(min(self.held, self.foreseen))

    def miss_reason(self, cached_tokens: int, replica: str) -> MissReason | None:
        """Why something was computed again that need not have been; None when nothing was."""
        if self.previous_replica is None:
            return self.changed or "cold"
        if cached_tokens >= self.reusable_tokens:
            return None
        if self.changed in _ANOTHER_CACHE or cached_tokens >= self._whole_pages(min(self.held, self.common)):
            return self.changed
        return "evicted" if replica == self.previous_replica else "moved"

    def _whole_pages(self, tokens: int) -> int:
        usable = max(0, min(tokens, self.prompt - 1))
        return usable - usable % self.page
