"""Which replica takes a request: a pure decision over what is known of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

_HOME_SLACK = 4
"""How many more requests in flight than the idlest replica a home may have and still keep its sessions."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as placement sees it."""

    name: str
    available: bool
    in_flight: int


def choose(candidates: Sequence[Candidate], home: str | None, tried: Collection[str]) -> str | None:
    """The home of the session while it can take it, else the one with the least in flight; None when there is none.

    Replicas in `tried` come into question again only when nothing else is left: they were full a moment ago.
    """
    available = [one for one in candidates if one.available]
    fresh = [one for one in available if one.name not in tried] or available
    if not fresh:
        return None
    idlest = min(fresh, key=lambda one: one.in_flight)
    for one in fresh:
        if one.name == home and one.in_flight <= idlest.in_flight + _HOME_SLACK:
            return one.name
    return idlest.name
