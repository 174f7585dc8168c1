"""LoRA adapters that an engine serves beside its model."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Lora(BaseModel):
    """Adapters by name, and room for those that are loaded later."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    adapters: dict[str, str] = Field(default_factory=dict)
    """Name to directory."""
    max_rank: int | None = Field(default=None, ge=1)
    target_modules: tuple[str, ...] = ()
    max_per_batch: int | None = Field(default=None, ge=1)
    max_loaded: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Lora:
        if not self.adapters and not (self.max_rank and self.target_modules):
            raise ValueError("max_rank and target_modules: both needed while no adapter is named")
        if "all" in self.target_modules and len(self.target_modules) > 1:
            raise ValueError("target_modules: all stands alone")
        if self.max_loaded is not None and self.max_loaded < max(len(self.adapters), self.max_per_batch or 8):
            raise ValueError("max_loaded: less than max_per_batch (8 by default) or than the adapters named")
        return self
