"""Why turns went where they did: the last placements, remembered."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from router.placement import Placement


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """One placement. `at` is seconds since the epoch, `waited_s` how long it took to find room."""

    at: float
    session: str | None
    version: str
    home: str | None
    prompt_tokens: int
    waited_s: float
    placement: Placement


class PlacementLog:
    """The last placements of one front."""

    def __init__(self, most: int = 4096) -> None:
        self._records: deque[PlacementRecord] = deque(maxlen=most)

    def add(self, record: PlacementRecord) -> None:
        self._records.append(record)

    def of_session(self, session: str) -> Iterator[PlacementRecord]:
        """Newest first."""
        return (record for record in reversed(self._records) if record.session == session)
