"""What `POST /v1/responses` and `POST /v1/conversations` take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from programs.ledger import HistoryMode
from programs.message import Message, Tool, ToolCall, in_call_order
from programs.turn import Truncation
from service.schema.sampling import JsonObject, SamplingFields, TemplateArguments, WireModel, schema_text
from service.schema.tools import Function
from service.schema.urgency import UrgencyFields


class InputText(WireModel):
    type: Literal["input_text", "output_text", "text"]
    text: str


class InputMessage(WireModel):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputText]
    pinned: bool = False
    """Stays in the prompt, with its turn, whatever the context window drops."""

    def as_message(self) -> Message:
        return Message(self.role, _text(self.content), pinned=self.pinned)


class InputReasoning(WireModel):
    """What a model thought, sent back. The ledger knows it better, so it is not read."""

    type: Literal["reasoning"]


class InputCall(WireModel):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def as_call(self) -> ToolCall:
        return ToolCall(self.call_id, self.name, self.arguments)


class InputCallOutput(WireModel):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText]

    def as_message(self) -> Message:
        return Message("tool", _text(self.output), tool_call_id=self.call_id)


InputItem = InputMessage | InputReasoning | InputCall | InputCallOutput


class FlatFunctionTool(Function):
    type: Literal["function"]


class TextFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = "answer"
    schema_: JsonObject | None = Field(alias="schema", default=None)

    @model_validator(mode="after")
    def _schema_given(self) -> TextFormat:
        if self.type == "json_schema" and self.schema_ is None:
            raise ValueError("schema is required when type is 'json_schema'")
        return self

    def as_schema(self) -> str | None:
        """The JSON Schema that the answer must obey, as JSON; None for free text."""
        return schema_text(self.type, self.schema_)


class TextOptions(WireModel):
    format: TextFormat = Field(default_factory=TextFormat)


class ConversationName(WireModel):
    id: str


class ResponsesRequest(SamplingFields, UrgencyFields):
    model: str
    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    store: bool | None = None
    stream: bool = False
    max_output_tokens: int | None = Field(default=None, gt=0)
    metadata: dict[str, str] | None = None
    text: TextOptions = Field(default_factory=TextOptions)
    tools: list[FlatFunctionTool] | None = None
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool | None = None
    background: bool | None = None
    chat_template_kwargs: TemplateArguments = Field(default_factory=dict)
    history: HistoryMode | None = None
    truncation: Truncation | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=256)
    """Turns with different salts share nothing in the engine's cache."""
    return_token_ids: bool = False
    """Ask for the prompt's and the answer's ids, in `antiphon`."""

    @field_validator("background")
    @classmethod
    def _no_background(cls, value: bool | None) -> bool | None:
        if value:
            raise ValueError("background responses are not supported")
        return value

    @model_validator(mode="after")
    def _one_history(self) -> ResponsesRequest:
        if self.previous_response_id is not None and self.conversation is not None:
            raise ValueError("previous_response_id and conversation exclude each other")
        return self

    @property
    def stores(self) -> bool:
        return self.store is not False

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationName) else self.conversation

    def as_messages(self) -> tuple[Message, ...]:
        if isinstance(self.input, str):
            return (Message("user", self.input),)
        return in_call_order(_folded(self.input))

    def as_tools(self) -> tuple[Tool, ...]:
        return tuple(tool.as_tool() for tool in self.tools or ())


def _folded(items: Sequence[InputItem]) -> list[Message]:
    """The items as messages: calls belong to the answer before them, or make one of their own."""
    messages: list[Message] = []
    for item in items:
        match item:
            case InputCall():
                answer = Message("assistant")
                if messages and messages[-1].role == "assistant":
                    answer = messages.pop()
                messages.append(replace(answer, tool_calls=(*answer.tool_calls, item.as_call())))
            case InputMessage() | InputCallOutput():
                messages.append(item.as_message())
    return messages


def _text(content: str | list[InputText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class ConversationRequest(WireModel):
    metadata: dict[str, str] | None = None
    items: list[Any] | None = None

    @field_validator("items")
    @classmethod
    def _no_items(cls, value: list[Any] | None) -> list[Any] | None:
        if value:
            raise ValueError("a conversation cannot be made with items yet; send them as input of its first response")
        return value
