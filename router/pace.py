"""How fast a replica works, measured while it does."""

from __future__ import annotations

from dataclasses import dataclass

_PREFILL_RATE = 5_000.0
_TOKEN_S = 0.02
_WEIGHTY_TOKENS = 4096
"""After so many tokens, a measurement weighs as much as all before it."""
_TOKEN_SHARE = 0.02
_SLICE_S = 0.1
_LEAST_SLICE = 256
_SLICE_GRAIN = 256
_WORTH_TOKENS = 16


@dataclass(slots=True)
class Pace:
    """`prefill_rate` is tokens a second, `token_s` seconds between two tokens of a stream; guesses until measured."""

    prefill_rate: float = _PREFILL_RATE
    token_s: float = _TOKEN_S
    _totals: tuple[int, float] | None = None
    _measured: bool = False

    @property
    def slice_tokens(self) -> int:
        """How much of a document is computed at a time: what others may have to wait for."""
        return max(_LEAST_SLICE, int(self.prefill_rate * _SLICE_S) // _SLICE_GRAIN * _SLICE_GRAIN)

    def prefilled(self, tokens: int, seconds: float) -> None:
        """The replica computed so many prompt tokens in so many seconds."""
        if tokens < _WORTH_TOKENS or seconds <= 0:
            return
        weight = tokens / (tokens + _WEIGHTY_TOKENS) if self._measured else 1.0
        # seconds a token are averaged, not tokens a second: a pause counts as long as it was
        spent_s = (1 - weight) / self.prefill_rate + weight * seconds / tokens
        self.prefill_rate, self._measured = 1 / spent_s, True

    def totals(self, tokens: int, seconds: float) -> None:
        """The same, from a server's own totals since its start."""
        before, self._totals = self._totals, (tokens, seconds)
        if before is not None and tokens >= before[0]:
            self.prefilled(tokens - before[0], seconds - before[1])

    def decoded(self, tokens: int, seconds: float) -> None:
        """One stream had so many tokens in so many seconds."""
        if tokens:
            self.token_s += _TOKEN_SHARE * (seconds / tokens - self.token_s)
