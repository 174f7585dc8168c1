"""How fast a replica works, measured while it does."""

from __future__ import annotations

_PREFILL_S = 1 / 5_000
_TOKEN_S = 0.02
_WEIGHTY_TOKENS = 4096
"""After so many tokens, a measurement weighs as much as all before it."""
_TOKEN_SHARE = 0.02
_SLICE_S = 0.1
_LEAST_SLICE = 256
_SLICE_GRAIN = 256
_WORTH_TOKENS = 16


class Pace:
    """A replica's pace, or its fleet's: what has not been measured of a replica is taken to be as in its `fleet`."""

    def __init__(self, fleet: Pace | None = None) -> None:
        self._fleet = fleet
        self._prefill_s: float | None = None
        self._token_s: float | None = None
        self._totals: tuple[int, float] | None = None

    @property
    def prefill_s(self) -> float:
        """Seconds to compute one token of a prompt."""
        if self._prefill_s is not None:
            return self._prefill_s
        return self._fleet.prefill_s if self._fleet else _PREFILL_S

    @property
    def token_s(self) -> float:
        """Seconds between two tokens of one stream."""
        if self._token_s is not None:
            return self._token_s
        return self._fleet.token_s if self._fleet else _TOKEN_S

    @property
    def slice_tokens(self) -> int:
        """How much of a document is computed at a time: what others may have to wait for."""
        return max(_LEAST_SLICE, int(_SLICE_S / self.prefill_s) // _SLICE_GRAIN * _SLICE_GRAIN)

    def prefilled(self, tokens: int, seconds: float) -> None:
        """The replica computed so many prompt tokens in so many seconds."""
        if tokens < _WORTH_TOKENS or seconds <= 0:
            return
        before = self._prefill_s
        weight = 1.0 if before is None else tokens / (tokens + _WEIGHTY_TOKENS)
        self._prefill_s = (1 - weight) * (before or 0.0) + weight * seconds / tokens
        if self._fleet is not None:
            self._fleet.prefilled(tokens, seconds)

    def totals(self, tokens: int, seconds: float) -> None:
        """The same, from a server's own totals since its start."""
        before, self._totals = self._totals, (tokens, seconds)
        if before is not None and tokens >= before[0]:
            self.prefilled(tokens - before[0], seconds - before[1])

    def decoded(self, tokens: int, seconds: float) -> None:
        """One stream had so many tokens in so many seconds."""
        before, now = self._token_s, seconds / tokens
        self._token_s = now if before is None else before + _TOKEN_SHARE * (now - before)
        if self._fleet is not None:
            self._fleet.decoded(tokens, seconds)
