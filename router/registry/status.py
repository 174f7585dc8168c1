"""How a replica is, for people and programs that ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReplicaState = Literal["ready", "starting", "warming", "draining", "kept_out", "down"]
"""Takes requests; not heard of yet; is given the hottest prefixes first; gets nothing new; does not fit in; failed."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """`name` is its server's, and `server/rank` where that has several DP ranks; `reason` says why it is not ready."""

    name: str
    server: str
    url: str
    version: str
    state: ReplicaState
    reason: str = ""
    rank: int | None = None
    in_flight: int = 0
    cached_tokens: int | None = None
    """As far as its KV events or our own routing tell; None when nothing does."""
