"""Which replica takes a request: a pure decision over what is known of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from router.standing import Standing

PlacementReason = Literal["home", "prefix", "balance", "moved", "homeless", "retry", "copy"]
"""At the session's home; where most of the prompt is cached; where it is cheapest; away from a home that was much
dearer; away from a home that takes nothing; after another replica failed; a hot prefix, before it is needed there."""

_HOME_FACTOR = 1.5
_HOME_SLACK_S = 0.05
"""A home keeps its sessions unless it costs so much more than the cheapest."""
_ALIKE_S = 0.005
"""Costs that differ by less are measured no better: then what is cached decides, and after that what is in flight."""
_TWIN_FACTOR = 1.1
"""By so much do measured paces of equal replicas differ: it must not send all that is new to one of them."""
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be placed. `held` says how many of the prompt's tokens each replica has cached, by name, and `room`
    how many more tokens its cache can take before others must go."""

    prompt_tokens: int
    held: Mapping[str, int] = field(default_factory=dict)
    home: str | None = None
    tried: Collection[str] = ()
    room: Callable[[str], int] = lambda name: 0
    returning: float = 0.0
    """The share of what caches drop that is asked for again."""

    def uncached(self, name: str) -> int:
        """Tokens of the prompt that the replica would have to compute."""
        return max(1, self.prompt_tokens - self.held.get(name, 0))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes. `costs` are the estimated seconds to its first token at the cheapest, in order."""

    name: str
    reason: PlacementReason
    cached: int
    uncached: int
    document: bool = False
    costs: tuple[tuple[str, float], ...] = ()


def choose(standings: Iterable[Standing], wanted: Wanted) -> Placement | None:
    """One of the cheapest of `standings`, or the home unless it is much dearer; None when there are none.

    Replicas in `tried` come into question again only when nothing else is left: they were full a moment ago.
    """
    held, prompt = wanted.held.get, wanted.prompt_tokens
    costs = [(one.cost_s(max(1, prompt - held(one.name, 0))), one.in_flight, one.name, one) for one in standings]
    if wanted.returning:
        costs = [(cost + _displaced_s(one, wanted), number, name, one) for cost, number, name, one in costs]
    fresh = [cost for cost in costs if cost[2] not in wanted.tried] if wanted.tried else costs
    fresh = sorted(fresh or costs)
    if not fresh:
        return None
    alike = [cost for cost in fresh if cost[0] <= fresh[0][0] + _ALIKE_S]
    chosen = min(alike, key=lambda cost: (-held(cost[2], 0), cost[1])) if len(alike) > 1 else fresh[0]
    home = next((cost for cost in fresh if cost[2] == wanted.home), None)
    if home is not None and home[0] <= fresh[0][0] * _HOME_FACTOR + _HOME_SLACK_S:
        chosen = home
    elif len(twins := _twins(chosen, fresh, wanted)) > 1:
        chosen = max(twins, key=lambda cost: wanted.room(cost[2]))
    _, _, name, standing = chosen
    uncached = wanted.uncached(name)
    return Placement(
        name=name,
        reason=_reason(name, wanted, home is not None),
        cached=wanted.prompt_tokens - uncached,
        uncached=uncached,
        document=standing.takes_as_document(uncached),
        costs=tuple((cost[2], cost[0]) for cost in fresh[:_SHOWN]),
    )


def _displaced_s(one: Standing, wanted: Wanted) -> float:
    """Seconds that others will need for what is dropped there to make room for the prompt."""
    dropped = max(0, wanted.uncached(one.name) - wanted.room(one.name))
    return wanted.returning * dropped * one.pace.prefill_s


_Cost = tuple[float, int, str, Standing]
"""Seconds, in flight, name, standing."""


def _twins(chosen: _Cost, costs: Iterable[_Cost], wanted: Wanted) -> list[_Cost]:
    """Itself, and those of `costs` that differ from it by little more than what was measured of their pace."""
    most, held = chosen[0] * _TWIN_FACTOR + _ALIKE_S, wanted.held.get
    cached = held(chosen[2], 0)
    near = takewhile(lambda cost: cost[0] <= most, costs)
    return [cost for cost in near if cost[1] == chosen[1] and held(cost[2], 0) == cached]


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
