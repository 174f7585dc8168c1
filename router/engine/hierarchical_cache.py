"""SGLang's hierarchical cache: KV that leaves the GPU is kept in host memory, and beyond."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class HierarchicalCache(BaseModel):
    """One engine's host cache. Without `size_gb` it is `ratio` times the GPU's, 2 by SGLang's default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ratio: float | None = Field(default=None, gt=1)
    size_gb: int | None = Field(default=None, ge=1)
    """10⁹ bytes a rank."""
    write_policy: Literal["write_back", "write_through", "write_through_selective"] | None = None
    io_backend: Literal["direct", "kernel"] | None = None
    mem_layout: Literal["layer_first", "page_first", "page_first_direct"] | None = None
    storage: str | None = None
    """A third level: SGLang's name of a storage backend (`file`, `mooncake`, `hf3fs`, …)."""
    prefetch_policy: Literal["best_effort", "wait_complete", "timeout"] | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> HierarchicalCache:
        if self.ratio is not None and self.size_gb is not None:
            raise ValueError("ratio and size_gb both say how large it is: give one")
        if self.prefetch_policy is not None and self.storage is None:
            raise ValueError("prefetch_policy: there is no storage to prefetch from")
        return self
