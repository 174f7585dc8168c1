"""Why a prompt's prefix was, or was not, in the engine's cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MissReason = Literal["cold", "template_rewrite", "client_edit", "moved", "evicted"]


@dataclass(frozen=True, slots=True)
class Reuse:
    """What was known before a turn was generated. Lengths are tokens.

    `held` is how much of the history the engine held when the turn before ended, `common` how much of the history the
    new prompt begins with, `page` the page size of the prefix cache. `rewritten` says that the messages before the new
    ones are the ledger's own, so that only the template can have changed them.
    """

    held: int
    common: int
    prompt: int
    page: int
    previous_replica: str | None
    rewritten: bool

    @property
    def reusable_tokens(self) -> int:
        """SGLang matches at most all but the last token of a prompt, in whole pages."""
        usable = max(0, min(self.held, self.common, self.prompt - 1))
        return usable - usable % self.page

    def miss_reason(self, cached_tokens: int, replica: str) -> MissReason | None:
        """Why something was computed again that need not have been; None when nothing was."""
        if self.previous_replica is None:
            return "cold"
        if cached_tokens < self.reusable_tokens:
            return "evicted" if replica == self.previous_replica else "moved"
        if self.common < self.held:
            return "template_rewrite" if self.rewritten else "client_edit"
        return None
