"""What a run of a program is asked for with."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from service.schema.sampling import WireModel


class RunRequest(WireModel):
    parameters: dict[str, Any] = Field(default_factory=dict)
    """As the program's own schema says."""
    deadline_s: float | None = Field(default=None, gt=0)
    """Seconds from now; a run that has not ended by then fails."""
    user: str | None = Field(default=None, max_length=256)
    """Where requests have to wait, users have equal shares."""
