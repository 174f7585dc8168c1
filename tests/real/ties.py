"""Greedy generations of one prompt that were computed in different ways, compared."""

from __future__ import annotations

from collections.abc import Sequence

from router.request import Delta, TokenLogprob

NEAR_TIE = 0.26
"""Prefill and decode sum in different orders, and logits are bfloat16: from 16 to 32 their steps are 0.125. Between two
tokens that are two steps apart or less (in nats) either may be chosen."""


def tokens_of(deltas: Sequence[Delta]) -> list[TokenLogprob]:
    return [one for delta in deltas for one in delta.logprobs]


def ids_of(deltas: Sequence[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def tie_at(one: Sequence[Delta], other: Sequence[Delta]) -> tuple[int, float] | None:
    """Where the two part, and how close the two best tokens were there; None when they do not. `one` has logprobs."""
    pairs = zip(ids_of(one), ids_of(other), strict=True)
    at = next((index for index, (first, second) in enumerate(pairs) if first != second), None)
    if at is None:
        return None
    (_, best), (_, second) = tokens_of(one)[at].top[:2]
    return at, best - second
