"""The thinking chat of `antiphon bench prefix`, held with a front and with SGLang itself."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from programs.message import Message
from programs.workloads.thinking_chat import TOOLS, Figures, Step, ThinkingChat, reusable_tokens
from service.commands.chat_client import ChatEndpoint, EndpointError, Reply

_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Target:
    """A server to measure; without a model's name, its first one."""

    url: str
    model: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class PrefixPlan:
    """Conversations, one after another.

    Each question may take up to `loop` requests; `pause_s` is what its user needs to ask it.
    """

    chats: int
    questions: int
    loop: int
    pause_s: float
    max_tokens: int
    temperature: float | None
    seed: int


@dataclass(frozen=True)
class PrefixResult:
    """`engine` is SGLang without us, if it was measured."""

    plan: PrefixPlan
    models: dict[str, str]
    behind: dict[str, Any] | None
    """What the front says of its engine: profile, the profile's hash, SGLang's version."""
    sglang: str | None
    """The version of SGLang without us."""
    page_size: int | None
    front: list[Step]
    engine: list[Step] | None

    @property
    def figures(self) -> dict[str, Figures]:
        sides = {"front": self.front, "engine": self.engine}
        return {name: Figures.of(steps) for name, steps in sides.items() if steps is not None}

    def as_json(self) -> dict[str, Any]:
        figures = {name: asdict(one) for name, one in self.figures.items()}
        return {"figures": figures, **asdict(self)}


async def run(plan: PrefixPlan, front: Target, engine: Target | None, on_question: Callable[[], None]) -> PrefixResult:
    """The same questions to both, in turns. Raises EndpointError."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as http:
        ours = await _Talker.to(http, front, plan, "front")
        straight = await _StraightTalker.to(http, engine, plan, "engine") if engine else None
        behind = await ours.behind()
        talkers: list[_Talker] = [ours, *filter(None, (straight,))]
        for chat in range(plan.chats):
            for talker in talkers:
                talker.begin(chat)
            for _ in range(plan.questions):
                for talker in talkers:
                    await asyncio.sleep(plan.pause_s)
                    await talker.question()
                    on_question()
    return PrefixResult(
        plan=plan,
        models={talker.name: talker.model for talker in talkers},
        behind=behind,
        sglang=straight.version if straight else None,
        page_size=straight.page if straight else None,
        front=ours.steps,
        engine=straight.steps if straight else None,
    )


class _Talker:
    """Holds the conversations with one endpoint."""

    def __init__(self, endpoint: ChatEndpoint, model: str, plan: PrefixPlan, name: str) -> None:
        self.name, self.model = name, model
        self.steps: list[Step] = []
        self._endpoint, self._plan = endpoint, plan
        self.begin(0)

    def begin(self, number: int) -> None:
        """Begin conversation `number`."""
        name, seed = f"{secrets.token_hex(4)} {self.name}", self._plan.seed + number
        self._number = number
        self._chat = ThinkingChat(name, seed, self._plan.questions, self._plan.loop)
        self._more = self._chat.advance()

    @classmethod
    async def to(cls, http: aiohttp.ClientSession, target: Target, plan: PrefixPlan, name: str) -> _Talker:
        endpoint = ChatEndpoint(http, target.url, target.key)
        return cls(endpoint, await _model(endpoint, target), plan, name)

    async def question(self) -> None:
        """One question, with all the calls that its answer takes."""
        number = self._chat.asked
        while self._more and self._chat.asked == number:
            reply = await self._endpoint.complete(self.model, self._chat.messages, TOOLS, self._options())
            self.steps.append(await self._step(reply))
            self._chat.answer(reply.message)
            self._more = self._chat.advance()

    async def behind(self) -> dict[str, Any] | None:
        """What the endpoint says of the engine behind it."""
        return await self._endpoint.engine(self.model)

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"max_tokens": self._plan.max_tokens, "seed": self._plan.seed + len(self.steps)}
        return options if self._plan.temperature is None else options | {"temperature": self._plan.temperature}

    async def _step(self, reply: Reply) -> Step:
        return Step(
            chat=self._number,
            question=self._chat.asked,
            prompt=reply.prompt_tokens,
            output=reply.output_tokens,
            cached=reply.cached_tokens,
            reusable=await self._reusable(reply),
            first_token_s=round(reply.first_token_s, 4),
            miss_reason=reply.antiphon.get("miss_reason"),
            prefilled_ahead=reply.antiphon.get("anticipated_tokens", 0),
        )

    async def _reusable(self, reply: Reply) -> int | None:
        if "reusable_tokens" not in reply.antiphon:
            raise EndpointError(f"{self._endpoint.url} is no Antiphon front: its answers have no `antiphon`")
        return int(reply.antiphon["reusable_tokens"])


class _StraightTalker(_Talker):
    """The same with SGLang's own endpoint, which does not say what could have been reused.

    So it is found by the rule that a front follows: the engine is asked to tokenize, without computing anything, two
    prompts that go on from the last answer with different words; what they share could have been in the cache by then,
    as far as the engine held it: the last prompt and all of its answer but the last token.
    """

    version, page = "", 1

    @classmethod
    async def to(cls, http: aiohttp.ClientSession, target: Target, plan: PrefixPlan, name: str) -> _StraightTalker:
        endpoint = ChatEndpoint(http, target.url, target.key)
        info = await endpoint.server_info()
        if "page_size" not in info:
            raise EndpointError(f"{target.url} is no SGLang server: /server_info does not give its page size")
        talker = cls(endpoint, await _model(endpoint, target), plan, name)
        talker.version, talker.page = str(info.get("version")), int(info["page_size"])
        return talker

    async def _reusable(self, reply: Reply) -> int | None:
        if not self.steps or self.steps[-1].chat != self._number:
            return 0
        known, last = self._chat.known, self.steps[-1]
        first, second = [
            await self._endpoint.tokenize(self.model, [*known, _following(known[-1], text)], TOOLS)
            for text in ("a", "b")
        ]
        return reusable_tokens(last.prompt + last.output - 1, first, second, reply.prompt_tokens, self.page)


def _following(answer: Message, text: str) -> Message:
    if answer.tool_calls:
        return Message("tool", text, tool_call_id=answer.tool_calls[0].id)
    return Message("user", text)


async def _model(endpoint: ChatEndpoint, target: Target) -> str:
    if target.model is not None:
        return target.model
    models = await endpoint.models()
    if not models:
        raise EndpointError(f"{target.url} lists no model")
    return models[0]
