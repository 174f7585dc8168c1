"""One thing to prove: which servers it needs, what is done with them, and what has come out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from scripts.gpu.budget import Budget
from scripts.gpu.host import Host, Sizes
from scripts.gpu.server import Server, ServerSpec


@dataclass(frozen=True)
class Context:
    """What an experiment is run with. `servers` are ready, in the order in which it named them."""

    host: Host
    servers: tuple[Server, ...]
    budget: Budget

    @property
    def server(self) -> Server:
        return self.servers[0]

    @property
    def sizes(self) -> Sizes:
        return self.host.sizes


Run = Callable[[Context], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Experiment:
    name: str
    servers: tuple[ServerSpec, ...]
    run: Run
    needs_s: float
    """With its servers ready; it is left out when less time is left."""
    gpus: int = 1
    on_cpu: bool = False
    """Whether it means anything on a CPU, where the scripts themselves are tried."""
