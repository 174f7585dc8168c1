"""What `POST /v1/chat/completions` takes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from programs.message import Message
from service.errors import ServiceError
from service.schema.sampling import ResponseFormat, SamplingFields, WireModel


class TextPart(WireModel):
    type: Literal["text"]
    text: str


class ChatMessage(WireModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None

    def as_message(self, index: int) -> Message:
        """Raises ServiceError for what is not supported, or a message that says nothing."""
        if self.tool_calls:
            raise ServiceError("tool calls are not supported yet", param=f"messages.{index}.tool_calls")
        if self.content is None and self.role != "assistant":
            raise ServiceError(f"a {self.role} message needs content", param=f"messages.{index}.content")
        return Message(self.role, self._text(), self.reasoning_content or "", self.name)

    def _text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(WireModel):
    include_usage: bool = False


class ChatRequest(SamplingFields):
    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    max_completion_tokens: int | None = Field(default=None, gt=0)
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = None
    return_token_ids: bool = False
    """Ask for the prompt's and the answer's ids, in `antiphon`."""

    @field_validator("n")
    @classmethod
    def _one_choice(cls, value: int | None) -> int | None:
        if value not in (None, 1):
            raise ValueError("only n=1 is supported; send the request again for another choice")
        return value

    @field_validator("tools")
    @classmethod
    def _no_tools(cls, value: list[Any] | None) -> list[Any] | None:
        if value:
            raise ValueError("tools are not supported yet")
        return value

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def as_messages(self) -> tuple[Message, ...]:
        return tuple(message.as_message(index) for index, message in enumerate(self.messages))
