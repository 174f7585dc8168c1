"""How long a proof may take altogether."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Budget:
    seconds: float
    clock: Callable[[], float] = time.monotonic
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_started", self.clock())

    @property
    def left_s(self) -> float:
        return max(0.0, self.seconds - (self.clock() - self._started))

    def has(self, seconds: float) -> bool:
        return self.left_s >= seconds
