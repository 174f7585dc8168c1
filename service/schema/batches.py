"""What `POST /v1/batches` takes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.batch.lines import Endpoint
from service.schema.sampling import WireModel

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class ExpiresAfter(WireModel):
    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2_592_000)


class BatchCreation(WireModel):
    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None
