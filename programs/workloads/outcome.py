"""What became of a benchmark's requests, as their clients saw it, and what that adds up to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from programs.workloads.traffic import Kind


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. `sheds` counts the tries that were turned away with 429 or 503 before, all but the last tried again.

    `first_token_s` counts from the first try; `error` says why it has no answer.
    """

    kind: Kind
    sent_s: float
    sheds: int = 0
    error: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    reusable_tokens: int | None = None
    """What could have been reused, where the front says so, and why not all of that was."""
    miss_reason: str | None = None

    @property
    def per_token_s(self) -> float | None:
        """Time per output token after the first."""
        if self.error is not None or self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Figures:
    """Outcomes added up. Times are seconds, shares of one; NaN stands for what nothing was measured of."""

    requests: int
    errors: int
    shed_rate: float
    """Tries turned away, of all tries."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cached_ratio: float
    first_token_p50_s: float
    first_token_p99_s: float
    per_token_p50_s: float
    per_token_p99_s: float
    reused_share: float | None
    """Cached tokens of those that could have been reused; None where the front does not tell."""
    misses: dict[str, int]
    """Requests by the reason that not all of that was reused."""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Figures:
        answered = [one for one in outcomes if one.error is None]
        sheds = sum(one.sheds for one in outcomes)
        prompt, cached = sum(one.prompt_tokens for one in answered), sum(one.cached_tokens for one in answered)
        first = [one.first_token_s for one in answered]
        per_token = [pace for one in answered if (pace := one.per_token_s) is not None]
        return cls(
            requests=len(outcomes),
            errors=len(outcomes) - len(answered),
            shed_rate=sheds / (len(answered) + sheds) if answered or sheds else 0.0,
            prompt_tokens=prompt,
            cached_tokens=cached,
            output_tokens=sum(one.output_tokens for one in answered),
            cached_ratio=cached / prompt if prompt else math.nan,
            first_token_p50_s=percentile(first, 0.50),
            first_token_p99_s=percentile(first, 0.99),
            per_token_p50_s=percentile(per_token, 0.50),
            per_token_p99_s=percentile(per_token, 0.99),
            reused_share=_reused_share(answered),
            misses=dict(Counter(one.miss_reason for one in answered if one.miss_reason is not None)),
        )


def _reused_share(answered: Sequence[Outcome]) -> float | None:
    """More cached than could have been reused (another session's prefix) counts as all of it."""
    told = [(one.cached_tokens, one.reusable_tokens) for one in answered if one.reusable_tokens is not None]
    reusable = sum(most for _, most in told)
    return sum(min(cached, most) for cached, most in told) / reusable if reusable else None


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed (nearest rank); NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
