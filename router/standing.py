"""How a replica stands: what it has to do and how fast it does it, as far as this front knows."""

from __future__ import annotations

from dataclasses import dataclass

_PREFILL_RATE = 5_000.0
_TOKEN_S = 0.02


@dataclass(eq=False, slots=True)
class Standing:
    """Counts of what this front has in flight on one replica, and its measured pace.

    `prefilling_tokens` are uncached tokens of prompts whose first token has not come; `documents` are those of them
    that have the long-prefill lane; `reported_tokens` are the uncached tokens that the server says are waiting, other
    fronts' included. `prefill_rate` is tokens a second, `token_s` the seconds between two tokens of one stream.
    """

    name: str
    in_flight: int = 0
    prefilling_tokens: int = 0
    documents: int = 0
    reported_tokens: int = 0
    prefill_rate: float = _PREFILL_RATE
    token_s: float = _TOKEN_S
    most_running: int = 256
    prefilling: int = 0

    @property
    def decoding(self) -> int:
        return self.in_flight - self.prefilling

    @property
    def queued_tokens(self) -> int:
        """Tokens that are computed before those of a prompt that comes now."""
        return max(self.prefilling_tokens, self.reported_tokens)

    def board(self, tokens: int, *, document: bool) -> None:
        """A request with so many uncached tokens is on its way there."""
        self.in_flight += 1
        self.prefilling += 1
        self.prefilling_tokens += tokens
        self.documents += document

    def prefilled(self, tokens: int, *, document: bool) -> None:
        """Its first token has come, or it ends without one."""
        self.prefilling -= 1
        self.prefilling_tokens -= tokens
        self.documents -= document

    def leave(self) -> None:
        """It has ended; `prefilled` was called before."""
        self.in_flight -= 1
