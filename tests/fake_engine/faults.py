"""What can go wrong on purpose. Set from a test, or over HTTP with `POST /fake/faults`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(slots=True)
class Faults:
    """0 and None are healthy. Those of /generate count requests to come."""

    fail_next: int = 0
    fail_status: int = 500
    """Answer the next `fail_next` with this status."""
    cut_next: int = 0
    cut_after_tokens: int = 0
    """Cut the connection of the next `cut_next` streams after this many tokens; the engine itself goes on."""
    die_after_tokens: int | None = None
    """Once this many tokens were generated from now on, die as kill -9 would: all connections cut, none accepted."""
    hang: bool = False
    """Accept, but compute nothing."""
    slow_next: int = 0
    first_token_delay_s: float = 0.0
    """The next `slow_next` wait this long before they are queued."""
    drop_events: int = 0
    """Lose the next `drop_events` batches of KV events; a replay still has them."""
    lag_events_s: float = 0.0
    """Publish batches of KV events this much later."""

    def update(self, values: dict[str, Any]) -> None:
        """Raises KeyError for a fault there is not."""
        known = {entry.name for entry in fields(self)}
        for name, value in values.items():
            if name not in known:
                raise KeyError(name)
            setattr(self, name, value)

    def take_failure(self) -> int | None:
        if self.fail_next <= 0:
            return None
        self.fail_next -= 1
        return self.fail_status

    def take_delay(self) -> float:
        if self.slow_next <= 0:
            return 0.0
        self.slow_next -= 1
        return self.first_token_delay_s

    def take_cut(self) -> int | None:
        if self.cut_next <= 0:
            return None
        self.cut_next -= 1
        return self.cut_after_tokens
