"""A replica: one DP rank of one server, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from router.engine.client import EngineClient, ServerInfo
from router.standing import Standing

ReplicaState = Literal["starting", "ready", "warming", "draining", "kept_out", "down"]


@dataclass(eq=False, slots=True)
class Replica:
    """`standing` is what placement looks at. `proven` is when it last produced a token (monotonic seconds)."""

    client: EngineClient
    version: str = "stable"
    info: ServerInfo | None = None
    state: ReplicaState = "starting"
    trouble: str = "has not answered yet"
    proven: float | None = None
    standing: Standing = field(init=False)

    def __post_init__(self) -> None:
        self.standing = Standing(self.name)

    @property
    def name(self) -> str:
        return self.client.name

    @property
    def available(self) -> bool:
        """Whether it takes new requests."""
        return self.state == "ready"

    @property
    def in_flight(self) -> int:
        return self.standing.in_flight
