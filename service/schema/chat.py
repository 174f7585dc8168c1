"""What `POST /v1/chat/completions` takes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from programs.ledger import HistoryMode
from programs.message import Message, Tool, in_call_order
from programs.turn import Truncation
from service.errors import ServiceError
from service.schema.sampling import ResponseFormat, SamplingFields, TemplateArguments, WireModel
from service.schema.tools import FunctionTool, WireToolCall
from service.schema.urgency import UrgencyFields


class TextPart(WireModel):
    type: Literal["text"]
    text: str


class ChatMessage(WireModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: list[WireToolCall] | None = None
    tool_call_id: str | None = None
    pinned: bool = False
    """Stays in the prompt, with its turn, whatever the context window drops."""

    def as_message(self, index: int) -> Message:
        """Raises ServiceError for a message that lacks what its role needs."""
        if self.content is None and self.role != "assistant":
            raise ServiceError(f"a {self.role} message needs content", param=f"messages.{index}.content")
        if self.role == "tool" and self.tool_call_id is None:
            raise ServiceError("a tool message needs tool_call_id", param=f"messages.{index}.tool_call_id")
        return Message(
            self.role,
            self._text(),
            self.reasoning_content or "",
            self.name,
            tuple(call.as_call() for call in self.tool_calls or ()),
            self.tool_call_id,
            self.pinned,
        )

    def _text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(WireModel):
    include_usage: bool = False


class ChatRequest(SamplingFields, UrgencyFields):
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
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: TemplateArguments = Field(default_factory=dict)
    history: HistoryMode | None = None
    truncation: Truncation = "disabled"
    cache_salt: str | None = Field(default=None, min_length=1, max_length=256)
    """Turns with different salts share nothing in the engine's cache."""
    one_off: bool = False
    """No turn is to follow: nothing is kept of this one."""
    return_token_ids: bool = False
    """Ask for the prompt's and the answer's ids, in `antiphon`."""

    @field_validator("n")
    @classmethod
    def _one_choice(cls, value: int | None) -> int | None:
        if value not in (None, 1):
            raise ValueError("only n=1 is supported; send the request again for another choice")
        return value

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def as_messages(self) -> tuple[Message, ...]:
        return in_call_order([message.as_message(index) for index, message in enumerate(self.messages)])

    def as_tools(self) -> tuple[Tool, ...]:
        return tuple(tool.function.as_tool() for tool in self.tools or ())
