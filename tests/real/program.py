"""Sessions on a real engine without HTTP in front of them, so that one can look inside."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import orjson

from programs.anticipation import AnticipationBudget, Anticipator
from programs.message import Message, Tool
from programs.model import ChatModel
from programs.session import Sessions
from programs.turn import FinishedTurn, Resend, TurnRequest
from router.engine.client import EngineClient
from router.registry.spec import ReplicaSpec
from router.request import Delta, GenerateRequest, Sampling
from router.router import Router
from tests.real.front import Stack
from tests.real.thinking import FUNCTIONS, IM_END, TOOLS

_DEFINED = tuple(zip(FUNCTIONS, TOOLS, strict=True))
_NEVER_ENDING = ((IM_END, -100.0),)


class Watched(Router):
    """A router that notes what is prefilled only, and how much of it was computed."""

    def __init__(self, client: EngineClient) -> None:
        super().__init__(lambda spec: client, [ReplicaSpec(client.name, client.url)])
        self.prefilled: list[int] = []

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta]:
        async with aclosing(super().generate(request)) as deltas:
            async for delta in deltas:
                if request.sampling.max_new_tokens == 0:
                    self.prefilled.append(len(request.prompt_ids) - delta.cached_tokens)
                yield delta

    async def be_ready(self) -> None:
        while self.trouble() is not None:
            await asyncio.sleep(0.05)


class Program:
    """A client of sessions that answers all calls."""

    def __init__(self, sessions: Sessions, router: Watched, anticipator: Anticipator) -> None:
        self.sessions, self.router, self.anticipator = sessions, router, anticipator
        self.tools = tuple(Tool(function["name"], orjson.dumps(tool).decode()) for function, tool in _DEFINED)

    async def ask(self, history: list[Message], text: str) -> list[FinishedTurn]:
        """One question with all the calls it takes; `history` grows."""
        history.append(Message("user", text))
        turns = [await self._turn(history)]
        while turns[-1].calls:
            history += [Message("tool", "7", tool_call_id=call.id) for call in turns[-1].calls]
            turns.append(await self._turn(history))
        return turns

    async def _turn(self, history: list[Message]) -> FinishedTurn:
        request = TurnRequest(
            "tenant", Resend(), tuple(history), Sampling(0, temperature=1.0), max_tokens=1500, tools=self.tools
        )
        async with aclosing(self.sessions.run(request)) as events:
            turn = [event async for event in events][-1]
        assert isinstance(turn, FinishedTurn)
        history.append(Message("assistant", turn.content, turn.reasoning, tool_calls=turn.calls))
        return turn

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """The replica generates something else meanwhile."""
        sampling = Sampling(4000, temperature=1.0, logit_bias=_NEVER_ENDING)
        request = GenerateRequest("b" * 32, array("I", [0]), sampling)
        started = asyncio.Event()

        async def generate() -> None:
            async with aclosing(self.router.generate(request)) as deltas:
                async for _ in deltas:
                    started.set()

        task = asyncio.create_task(generate())
        try:
            await started.wait()
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def running_program(engine_url: str, stack: Stack, model: Path) -> AsyncIterator[Program]:
    async with AsyncExitStack() as exits:
        http = await exits.enter_async_context(aiohttp.ClientSession())
        router = Watched(EngineClient("replica-0", engine_url, http))
        await exits.enter_async_context(router)
        store = await exits.enter_async_context(stack.store())
        anticipator = Anticipator(router, AnticipationBudget())
        exits.push_async_callback(anticipator.aclose)
        await router.be_ready()
        yield Program(Sessions(ChatModel.load(model, "program"), store, router, anticipator), router, anticipator)
