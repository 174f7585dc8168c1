"""How a batch came out: what its job's result is."""

from __future__ import annotations

from typing import Literal

import msgspec

from service.batch.counts import BatchCounts, BatchUsage
from service.batch.lines import LineError

Ending = Literal["completed", "expired", "cancelled"]


class BatchOutcome(msgspec.Struct, frozen=True):
    """`failed`: the input was wrong, and none of it was sent. Times in seconds since the epoch."""

    status: Ending | Literal["failed"]
    model: str | None = None
    errors: tuple[LineError, ...] = ()
    request_counts: BatchCounts = msgspec.field(default_factory=BatchCounts)
    usage: BatchUsage = msgspec.field(default_factory=BatchUsage)
    finalizing_at: float | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
