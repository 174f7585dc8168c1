"""An engine that says what it is told to, at once and within this process: what is left to measure is the front."""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncGenerator, Sequence

import aiohttp

from router.engine.client import EngineClient, ServerInfo
from router.request import Delta, Finish, GenerateRequest, ParsedCall, ParsedText

CONTEXT_LENGTH = 1 << 20


class ScriptedEngine(EngineClient):
    """`answer` is what it says next, `calls` how it reads tool calls; `asked` is the prompt it was given last."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        super().__init__("scripted", "http://nowhere", session)
        self.answer = array("I", (0,))
        self.end = 0
        self.calls: tuple[ParsedCall, ...] = ()
        self.asked = array("I")
        self.asked_at = self.asked_cpu = 0.0
        """When (`time.perf_counter`), and how much this thread had computed by then."""

    async def server_info(self) -> ServerInfo:
        return ServerInfo("0", "", "", CONTEXT_LENGTH, CONTEXT_LENGTH - 1, 16, CONTEXT_LENGTH, None)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta]:
        self.asked_at, self.asked_cpu, self.asked = time.perf_counter(), time.thread_time(), request.prompt_ids
        yield Delta((*self.answer, self.end), self.name, Finish("stop", self.end))

    async def parse_calls(self, text: str, tools: Sequence[str], parser: str | None) -> ParsedText:
        return ParsedText("", self.calls)
