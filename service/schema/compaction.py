"""What `POST /v1/responses/compact` takes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from programs.message import Message
from service.schema.responses import InputItem, ResponsesRequest

DEFAULT_QUESTION = (
    "Summarise our conversation so far, so that it can go on from your summary alone: what was asked, what was "
    "decided and found out, what was tried and failed, exact names, numbers and file paths, and what is still to do. "
    "Write only the summary."
)


class CompactionRequest(ResponsesRequest):
    """As for a response; without `input`, all of the history that is named is summarised."""

    input: str | Annotated[list[InputItem], Field(min_length=1)] | None = None  # type: ignore[assignment]
    question: str = Field(default=DEFAULT_QUESTION, min_length=1)
    """What the model is asked for its summary."""

    @model_validator(mode="after")
    def _something_to_summarise(self) -> CompactionRequest:
        if self.input is None and self.previous_response_id is None and self.conversation is None:
            raise ValueError("give previous_response_id, conversation or input: what to summarise")
        if self.stream:
            raise ValueError("a compaction is not streamed; leave stream out")
        return self

    def as_messages(self) -> tuple[Message, ...]:
        sent = () if self.input is None else super().as_messages()
        return (*sent, Message("user", self.question))
