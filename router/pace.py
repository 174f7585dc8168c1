"""How fast a replica works, measured while it does."""

from __future__ import annotations

from dataclasses import dataclass

_PREFILL_S = 1 / 5_000
_TOKEN_S = 0.02
_WEIGHTY_TOKENS = 4096
"""After so many tokens, a measurement weighs as much as all before it."""
_TOKEN_SHARE = 0.02
_SLICE_S = 0.1
_LEAST_SLICE = 64
_LEAST_SLICE_OF = {"torch_native": 1024}
"""It pays for every slice with all that is before it."""
_WORTH_TOKENS = 16


@dataclass(slots=True)
class Pace:
    """Of a replica, or of a whole fleet. Guesses until measured.

    `prefill_s` are the seconds to compute one token of a prompt, `token_s` those between two tokens of a stream, and
    `slice_tokens` is how much of a document is computed at a time: what others may have to wait for.
    """

    prefill_s: float = _PREFILL_S
    token_s: float = _TOKEN_S
    slice_tokens: int = int(_SLICE_S / _PREFILL_S)
    _least_slice: int = _LEAST_SLICE
    _prefill_measured: bool = False
    _token_measured: bool = False
    _totals: tuple[int, float] = (0, 0.0)

    def attends_by(self, backend: str | None) -> None:
        """The replica's attention backend, by SGLang's name."""
        self._least_slice = _LEAST_SLICE_OF.get(backend or "", _LEAST_SLICE)
        self._set_prefill(self.prefill_s)

    def assume(self, other: Pace) -> None:
        """What has not been measured is as there."""
        if not self._prefill_measured:
            self._set_prefill(other.prefill_s)
        if not self._token_measured:
            self.token_s = other.token_s

    def prefilled(self, tokens: int, seconds: float) -> None:
        """The replica computed so many prompt tokens in so many seconds."""
        if tokens < _WORTH_TOKENS or seconds <= 0:
            return
        weight = tokens / (tokens + _WEIGHTY_TOKENS) if self._prefill_measured else 1.0
        self._prefill_measured = True
        self._set_prefill((1 - weight) * self.prefill_s + weight * seconds / tokens)

    def totals(self, tokens: int, seconds: float) -> tuple[int, float]:
        """The same, from a server's own totals since its start. How much that is since they were last told."""
        before = self._totals if tokens >= self._totals[0] else (0, 0.0)
        self._totals = tokens, seconds
        self.prefilled(tokens - before[0], seconds - before[1])
        return tokens - before[0], seconds - before[1]

    def decoded(self, tokens: int, seconds: float) -> None:
        """One stream had so many tokens in so many seconds."""
        share = _TOKEN_SHARE if self._token_measured else 1.0
        self._token_measured = True
        self.token_s += share * (seconds / tokens - self.token_s)

    def _set_prefill(self, seconds: float) -> None:
        self.prefill_s = seconds
        self.slice_tokens = max(self._least_slice, int(_SLICE_S / seconds) // _LEAST_SLICE * _LEAST_SLICE)
