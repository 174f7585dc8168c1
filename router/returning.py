"""Whether what caches drop is asked for again: then what would have to be dropped for a prompt is part of its cost."""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.02


@dataclass(slots=True)
class Returning:
    """`share` is, of late, that of the sessions that came back and found most of their history gone from their home."""

    share: float = 0.0

    def came_home(self, prompt_tokens: int, held: int) -> None:
        """A session's next prompt, and how many of its tokens its home has cached."""
        gone = held < prompt_tokens // 2
        self.share += _WEIGHT * (gone - self.share)
