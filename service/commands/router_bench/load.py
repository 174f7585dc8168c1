"""Sessions sent to a front: each begins when it is due, whether or not the front keeps up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import aiohttp

from programs.workloads.outcome import Outcome
from programs.workloads.traffic import Conversation, Step, Talk
from service.commands.chat_client import ChatEndpoint, EndpointError, TurnedAwayError

TRIES = 4
"""A request that is turned away comes back, so many times in all."""
_COME_BACK_S = 1.0
"""Where nothing else is said."""
UNFINISHED = "not finished in time"


class Load:
    """Plays sessions through one endpoint and keeps what became of every request."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        model: str,
        headers: Callable[[str], Mapping[str, str]],
        on_end: Callable[[], None],
    ) -> None:
        """`headers` gives those of a session by its key; `on_end` is called when a session ends."""
        self._endpoint = ChatEndpoint(http, url)
        self._model = model
        self._headers = headers
        self._on_end = on_end
        self.outcomes: list[Outcome] = []

    async def play(self, talks: Sequence[Talk], limit_s: float) -> None:
        """A request that is not finished after `limit_s` counts as an error; what would have come after it does not."""
        begun = asyncio.get_running_loop().time()
        tasks = [asyncio.create_task(self._session(talk, begun)) for talk in talks]
        try:
            await asyncio.wait(tasks, timeout=limit_s)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _session(self, talk: Talk, begun: float) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(begun + talk.start_s - clock())
        conversation = Conversation(talk)
        while (step := conversation.advance()) is not None:
            await asyncio.sleep(step.pause_s)
            if not await self._request(conversation, step, begun):
                break
        self._on_end()

    async def _request(self, conversation: Conversation, step: Step, begun: float) -> bool:
        """Whether there was an answer."""
        clock = asyncio.get_running_loop().time
        first_try = clock()
        outcome = Outcome(conversation.talk.kind, first_try - begun, error=UNFINISHED)
        try:
            for sheds in range(TRIES):
                outcome, sent = replace(outcome, sheds=sheds), clock()
                try:
                    outcome = await self._answered(conversation, step, replace(outcome, error=None), sent - first_try)
                except TurnedAwayError as away:
                    outcome = replace(outcome, sheds=sheds + 1, error=str(away))
                    if sheds + 1 < TRIES:
                        await asyncio.sleep(away.retry_after_s or _COME_BACK_S)
                else:
                    return True
        except EndpointError as error:
            outcome = replace(outcome, error=str(error))
        finally:
            self.outcomes.append(outcome)
        return False

    async def _answered(self, conversation: Conversation, step: Step, outcome: Outcome, waited_s: float) -> Outcome:
        talk = conversation.talk
        options = {"max_tokens": step.max_tokens, "temperature": 0}
        if not talk.tools:
            # SGLang takes an answer without marks for reasoning, where it has a parser: a client would lose it.
            options["separate_reasoning"] = False
        reply = await self._endpoint.complete(
            self._model, conversation.messages, talk.tools, options, self._headers(talk.key)
        )
        conversation.answer(reply.message)
        return replace(
            outcome,
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=reply.cached_tokens,
            output_tokens=reply.output_tokens,
            first_token_s=waited_s + reply.first_token_s,
            last_token_s=waited_s + reply.last_token_s,
            reusable_tokens=reply.antiphon.get("reusable_tokens"),
            miss_reason=reply.antiphon.get("miss_reason"),
        )
