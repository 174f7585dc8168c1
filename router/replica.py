"""A replica: one DP rank of one server, and what is known of it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

from router.breaker import Breaker
from router.engine.client import EngineClient, ServerInfo
from router.engine.sleeper import Sleeper
from router.registry.status import ReplicaState
from router.standing import Standing


@dataclass(eq=False, slots=True)
class Replica:
    """`standing` is what placement looks at. `proven` is when it last produced a token (monotonic seconds).

    `measured_by_us`: its server reports no totals to measure its pace from.
    """

    client: EngineClient
    breaker: Breaker
    sleeper: Sleeper | None = None
    """Its server's, where that may sleep."""
    version: str = "stable"
    draining: bool = False
    info: ServerInfo | None = None
    health: Literal["starting", "ready", "warming", "kept_out", "down"] = "starting"
    trouble: str = "has not answered yet"
    proven: float | None = None
    measured_by_us: bool = True
    standing: Standing = field(init=False)

    def __post_init__(self) -> None:
        self.standing = Standing(self.name)

    @property
    def name(self) -> str:
        return self.client.name

    @property
    def state(self) -> ReplicaState:
        return "draining" if self.draining and self.health in ("ready", "warming") else self.health

    @property
    def available(self) -> bool:
        """Whether it takes new requests."""
        return self.health == "ready" and not self.draining

    @property
    def in_flight(self) -> int:
        return self.standing.in_flight

    def awake(self) -> AbstractAsyncContextManager[None]:
        """Within, its server does not sleep. Raises EngineUnavailableError when it does not wake."""
        return self.sleeper.awake() if self.sleeper else nullcontext()

    def down(self, trouble: str) -> None:
        """It cannot generate."""
        self.health, self.trouble = "down", trouble
        self.breaker.failed()

    def learn(self, info: ServerInfo) -> None:
        """What its server says of itself."""
        self.info = info
        self.standing.most_running = info.max_running_requests or self.standing.most_running
        self.standing.chunk = info.chunked_prefill_size or info.max_prompt_tokens
        self.standing.pace.attends_by(info.attention_backend)
