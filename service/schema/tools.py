"""Tools as the chat API writes them; the responses API has the same fields, one level up."""

from __future__ import annotations

from typing import Any, Literal

import orjson
from pydantic import Field

from programs.message import Tool, ToolCall
from service.schema.sampling import JsonObject, WireModel


class Function(WireModel):
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    def as_tool(self) -> Tool:
        """As templates and the engine's parsers expect it: OpenAI's chat shape, without what was not said."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return Tool(self.name, orjson.dumps({"type": "function", "function": function}).decode())


class FunctionTool(WireModel):
    type: Literal["function"]
    function: Function


class CalledFunction(WireModel):
    name: str
    arguments: str


class WireToolCall(WireModel):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def as_call(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments)
