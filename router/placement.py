"""Which replica takes a request: a pure decision over what is known of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from router.standing import Standing

PlacementReason = Literal["home", "prefix", "balance", "moved", "homeless", "retry"]
"""At the session's home; where most of the prompt is cached; where it is cheapest; away from a home that was much
dearer; away from a home that takes nothing; after another replica failed."""

_HOME_FACTOR = 1.5
_HOME_SLACK_S = 0.05
"""A home keeps its sessions unless it costs so much more than the cheapest."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be placed. `held` says how many of the prompt's tokens each replica has cached, by name."""

    prompt_tokens: int
    held: Mapping[str, int] = field(default_factory=dict)
    home: str | None = None
    tried: Collection[str] = ()
    document_tokens: int = 1 << 62
    """From so many uncached tokens on, a prompt has the long-prefill lane."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes. `costs` are estimated seconds to its first token, cheapest first."""

    name: str
    reason: PlacementReason
    cached: int
    uncached: int
    document: bool = False
    costs: tuple[tuple[str, float], ...] = ()


def cost_s(standing: Standing, cached: int, prompt_tokens: int) -> float:
    """Seconds until a first token there: what is queued and what is not cached, and the decode steps between."""
    uncached = max(1, prompt_tokens - cached)
    return (standing.queued_tokens + uncached) / standing.prefill_rate + standing.decoding * standing.token_s


def choose(standings: Iterable[Standing], wanted: Wanted) -> Placement | None:
    """The cheapest of `standings`, or the home unless it is much dearer; None when there are none.

    Replicas in `tried` come into question again only when nothing else is left: they were full a moment ago.
    """
    held, prompt = wanted.held, wanted.prompt_tokens
    costs = [(cost_s(one, held.get(one.name, 0), prompt), one.in_flight, one.name) for one in standings]
    fresh = [cost for cost in costs if cost[2] not in wanted.tried] or costs
    if not fresh:
        return None
    fresh.sort()
    cheapest, name = fresh[0][0], fresh[0][2]
    home = next((cost for cost in fresh if cost[2] == wanted.home), None)
    if home is not None and home[0] <= cheapest * _HOME_FACTOR + _HOME_SLACK_S:
        name = home[2]
    cached = min(held.get(name, 0), prompt - 1)
    uncached = prompt - cached
    return Placement(
        name=name,
        reason=_reason(name, wanted, home is not None),
        cached=cached,
        uncached=uncached,
        document=uncached >= wanted.document_tokens,
        costs=tuple((one, cost) for cost, _, one in fresh[:8]),
    )


def _reason(name: str, wanted: Wanted, home_takes: bool) -> PlacementReason:
    if wanted.tried:
        return "retry"
    if wanted.home is not None:
        if name == wanted.home:
            return "home"
        return "moved" if home_takes else "homeless"
    if wanted.held and wanted.held.get(name, 0) == max(wanted.held.values()):
        return "prefix"
    return "balance"
