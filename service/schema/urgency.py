"""How urgent a request is, in fields that the chat and the responses API share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from router.request import Urgency
from service.schema.sampling import WireModel


class UrgencyFields(WireModel):
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    """`flex` waits behind all that someone waits for."""
    user: str | None = Field(default=None, max_length=256)
    """Where requests have to wait, users have equal shares."""
    deadline_s: float | None = Field(default=None, gt=0)
    """Seconds that the request may wait for room; after that it ends in an error."""

    def urgency(self, tenant: str) -> Urgency:
        priority: Literal["batch", "interactive"] = "batch" if self.service_tier == "flex" else "interactive"
        return Urgency(f"{tenant}/{self.user}" if self.user else tenant, priority, self.deadline_s)
